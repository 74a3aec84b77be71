# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which features a model was trained on: kept by its processor, compared by the pipeline and its command."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image
from transformers import AutoProcessor

from grounded_attention.commands.ground import main
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.dataset_scripts.scenes.shape_regions import SceneFeatures, ShapeDetector
from grounded_attention.dataset_scripts.scenes.shapes import paint
from grounded_attention.dataset_scripts.scenes.world import Scene, SceneObject
from grounded_attention.families import FAMILIES
from grounded_attention.modeling.grounding_items import unknown_words
from grounded_attention.processing.load_extractor import load_extractor
from grounded_attention.processing.processing_grounded import feature_mismatch, feature_source
from grounded_attention.training.experiments.models import record_features
from grounded_attention.training.loop.joins import JoinedRegions
from tests.helpers.tiny_backbone import save_backbone
from tests.helpers.tiny_pictures import picture
from tests.helpers.tiny_pipeline import BOXES, PHRASES, example, features, load
from tests.helpers.tiny_scenes import run_train, tiny_recipe
from tests.helpers.tiny_vgp import FEATURE_SIZE, tiny_model, tiny_processor

CAPTION = "a b d e c"
SCENES = {"name": "scenes"}
OTHER = {"name": "microsoft/resnet-50", "weights": "abc"}


def save_model(folder, source, size=FEATURE_SIZE):
    tiny_model(region_feature_size=size).save_pretrained(folder)
    processor = load_processor(source)
    processor.region_feature_size = size
    processor.save_pretrained(folder)
    return folder


def table(folder, provenance):
    boxes = np.array(BOXES, np.float32) / [80, 60, 80, 60]
    with RegionTableWriter(folder, provenance) as writer:
        writer.write(Regions("dog", 80, 60, boxes, features().astype("f2")))
    return RegionTable.open(folder)


# What is known


PROVENANCE = {
    '{"source": "scenes", "version": 4, "classes": ["red ball"]}': SCENES,
    '{"detector": {"name": "d"}, "features": {"name": "microsoft/resnet-50", "weights": "abc", "x": 1}}': OTHER,
    '{"sources": [{"file": "a.tsv"}], "detector": "bottom-up"}': {"name": "bottom-up"},
    '{"sources": [{"file": "a.tsv"}], "detector": null}': None,
    '{"detector": {"name": "yolos"}, "features": null}': None,
    "{}": None,
    "null": None,
}


@pytest.mark.parametrize("provenance, source", PROVENANCE.items())
def test_the_source_of_features_by_their_provenance(provenance, source):
    assert feature_source(json.loads(provenance)) == source


@pytest.mark.parametrize(
    "found, trained",
    [
        (None, SCENES),
        (OTHER, None),
        (OTHER, OTHER),
        ({**OTHER, "weights": "in another type"}, OTHER),
        ({"name": "a copy of it", "weights": "abc"}, OTHER),
    ],
)
def test_only_known_differences_are_a_mismatch(found, trained):
    assert feature_mismatch(found, trained) is None


def test_a_mismatch_names_both_sources():
    assert feature_mismatch({"name": "another", "weights": "def"}, OTHER) is not None
    line = feature_mismatch(OTHER, SCENES)
    assert "those of 'microsoft/resnet-50', but the model was trained on those of 'scenes'" in line


@pytest.mark.parametrize("family", FAMILIES)
def test_a_processor_stores_the_source_and_older_ones_lack_it(family, tmp_path):
    FAMILIES[family].processor_class(tiny_processor().tokenizer, region_feature_source=OTHER).save_pretrained(tmp_path)
    known = AutoProcessor.from_pretrained(tmp_path)
    assert known.region_feature_source == OTHER
    assert known.feature_mismatch(SCENES)
    path = tmp_path / "processor_config.json"
    settings = json.loads(path.read_text())
    settings.pop("region_feature_source")  # as checkpoints of before have it
    path.write_text(json.dumps(settings))
    old = AutoProcessor.from_pretrained(tmp_path)
    assert old.region_feature_source is None
    assert not old.feature_mismatch(SCENES)


def test_training_stores_the_source_of_its_tables(tmp_path):
    scenes = table(tmp_path / "a", {"source": "scenes"})
    other = table(tmp_path / "b", {"features": OTHER})
    imported = table(tmp_path / "c", {"detector": None})
    for regions, kept in (
        (scenes, SCENES),
        (JoinedRegions([scenes, scenes]), SCENES),
        (JoinedRegions([scenes, other]), None),
        (imported, None),
        (None, None),
    ):
        processor = tiny_processor()
        assert record_features(processor, regions) is None
        assert processor.region_feature_source == kept
    remark = record_features(load_processor(OTHER), scenes)
    assert "'scenes', but the model was trained on those of 'microsoft/resnet-50'" in remark


def load_processor(source):
    processor = tiny_processor()
    processor.region_feature_source = source
    return processor


def test_a_checkpoint_of_training_knows_its_features(scenes, tmp_path, monkeypatch):
    recipe = tiny_recipe(scenes, tmp_path / "run", training={"max_steps": 1, "save_strategy": "no", "use_cpu": True})
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    assert AutoProcessor.from_pretrained(tmp_path / "run" / "direct").region_feature_source == SCENES


# The pipeline


def test_the_pipeline_warns_of_other_features_once(tmp_path, caplog):
    pipe = load(save_model(tmp_path / "model", SCENES))
    known = {"caption": CAPTION, "phrases": PHRASES}
    own = {**known, "regions": table(tmp_path / "own", {"source": "scenes"})["dog"]}
    other = {**known, "regions": table(tmp_path / "other", {"features": OTHER})["dog"]}
    with caplog.at_level("WARNING"):
        expected = pipe(own)
        assert pipe(example(CAPTION))  # plain arrays: not known
        assert pipe.remarks == []
        assert pipe(other) == expected == pipe(other)
    (remark,) = pipe.remarks
    assert "those of 'microsoft/resnet-50'" in remark
    assert caplog.text.count("trained on those of 'scenes'") == 1


@pytest.mark.parametrize("source, remarks", [(SCENES, 1), ({"name": "backbone"}, 0), (None, 0)])
def test_the_pipeline_warns_of_another_feature_model(tmp_path, source, remarks):
    backbone = tmp_path / "backbone"
    backbone.mkdir()
    save_backbone(backbone)
    pipe = load(save_model(tmp_path / "model", source, size=12), feature_model=str(backbone))
    pipe(picture(80, 60), CAPTION, boxes=BOXES, phrases=PHRASES)
    assert len(pipe.remarks) == remarks


def test_a_detector_without_the_feature_model_of_training_is_refused(tmp_path):
    save_model(tmp_path, SCENES)
    with pytest.raises(ValueError, match=r"give feature_model, the same as in training \('scenes'\)"):
        load(tmp_path, detector=ShapeDetector())


def test_words_that_the_tokenizer_does_not_know_are_named(tmp_path):
    tokenizer = tiny_processor().tokenizer
    assert unknown_words(tokenizer, "A zebra, a b and a zebra's b") == ["zebra", "and", "s"]
    assert unknown_words(tokenizer, "a [SEP] b [UNK]") == ["SEP", "UNK"]
    pipe = load(save_model(tmp_path, None))
    pipe(example("a b of c", ["c"]))
    pipe(example("a b c", ["c"]))
    (remark,) = pipe.remarks
    assert "[UNK]: 'of'; " in remark


# The scenes' own features, and a picture of one's own


def scene(scale=1):
    """Three shapes far apart on sand, and their boxes in pixels."""
    places = {("red", "ball"): (40, 40), ("blue", "cube"): (150, 50), ("green", "cone"): (90, 110)}
    objects = []
    for (colour, shape), (x, y) in places.items():
        objects.append(SceneObject((shape,), (colour,), ("large",), ("plain",), x=x, y=y, radius=22.0, tilt=0.0))
    picture = paint(Scene(200, 150, ground="sand", light="left", objects=tuple(objects), noise_seed=1))
    middles = np.array([*places.values()], np.float32)
    boxes = np.concatenate([middles - 22, middles + 22], axis=1)
    return picture.resize((200 * scale, 150 * scale), Image.Resampling.BICUBIC), boxes * scale


def extract(picture, boxes):
    extractor = load_extractor({"a": {"boxes": boxes.tolist()}}, SceneFeatures())
    assert feature_source(extractor.provenance)["name"] == "scenes"
    return extractor.extract([picture], ["a"])[0].features


@pytest.mark.parametrize("scale", [1, 4])
def test_shapes_are_found_and_named_by_colour_at_any_size(scale):
    picture, boxes = scene(scale)
    found = ShapeDetector().detect([picture])[0]
    assert [ShapeDetector.label_names[index] for index in found.classes] == ["red", "green", "blue"]
    assert_allclose(found.boxes.numpy(), boxes[[0, 2, 1]], atol=4 * scale)
    assert len(ShapeDetector().detect([Image.new("RGB", (50, 40), "white")])[0].boxes) == 0


def test_features_are_those_of_the_scenes_region_table(scenes):
    regions = RegionTable.open(scenes / "regions")
    for image in regions.ids[:3]:
        record = regions[image]
        picture = Image.open(scenes / "flickr30k-images" / f"{image}.jpg")
        found = extract(picture, record.boxes * np.tile(picture.size, 2))
        assert_allclose(found, record.features.astype(np.float32), atol=0.02)


def test_features_of_a_large_picture_are_near_those_of_the_same_scene():
    small = extract(*scene(1))
    large = extract(*scene(4))
    assert np.corrcoef(small.ravel(), large.ravel())[0, 1] > 0.98


def test_the_command_grounds_a_picture_of_shapes_and_warns_in_picture_and_json(tmp_path, capsys):
    model = save_model(tmp_path / "model", SCENES, size=2048)
    shapes = tmp_path / "shapes.png"
    scene(3)[0].save(shapes)
    own = ["--detector", "scenes", "--features", "scenes", "--phrases", "a b,c", "--model", str(model), "--output"]
    assert main([str(shapes), CAPTION, *own, str(tmp_path / "plain.png"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["warnings"] == []
    assert found["regions"] == 3
    assert {phrase["label"] for phrase in found["grounding"]} <= {"red", "green", "blue"}

    assert main([str(shapes), "a b sits on c", *own, str(tmp_path / "warned.png")]) == 0
    printed = capsys.readouterr().err
    assert printed.startswith("warning: ")
    assert "[UNK]: 'sits', 'on'; " in printed
    assert Image.open(tmp_path / "warned.png").height > Image.open(tmp_path / "plain.png").height
