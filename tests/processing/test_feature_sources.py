# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which features a model was trained on: kept by its processor, compared by the pipeline and its command."""

import json

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor

from grounded_attention.commands.ground import main
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.dataset_scripts.scenes.shape_regions import SceneFeatures, ShapeDetector
from grounded_attention.dataset_scripts.scenes.shapes import paint
from grounded_attention.dataset_scripts.scenes.world import Scene, SceneObject
from grounded_attention.families import FAMILIES
from grounded_attention.modeling.caption_phrases import unknown_words
from grounded_attention.processing.load_extractor import load_extractor
from grounded_attention.processing.processing_grounded import feature_mismatch, feature_source
from grounded_attention.training.experiments.models import record_features
from grounded_attention.training.loop.joins import JoinedRegions
from tests.helpers.tiny_backbone import save_backbone
from tests.helpers.tiny_pipeline import BOXES, PHRASES, example, features, load
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from tests.helpers.tiny_vgp import FEATURE_SIZE, tiny_model, tiny_processor

CAPTION = "a b d e c"
SCENES = {"name": "scenes"}
OTHER = {"name": "microsoft/resnet-50", "weights": "abc"}


def save_model(folder, source, size=FEATURE_SIZE):
    tiny_model(region_feature_size=size).save_pretrained(folder)
    processor = tiny_processor()
    processor.region_feature_size = size
    processor.region_feature_source = source
    processor.save_pretrained(folder)
    return folder


def table(folder, provenance):
    with RegionTableWriter(folder, provenance) as writer:
        writer.write(Regions("dog", 80, 60, np.array(BOXES, np.float32) / [80, 60, 80, 60], features().astype("f2")))
    return RegionTable.open(folder)


# What is known


@pytest.mark.parametrize(
    "provenance, source",
    [
        ({"source": "scenes", "version": 4, "classes": ["red ball"]}, SCENES),
        ({"detector": {"name": "yolos"}, "features": {**OTHER, "model_type": "resnet", "config": "1"}}, OTHER),
        ({"sources": [{"file": "a.tsv"}], "detector": "bottom-up"}, {"name": "bottom-up"}),
        ({"sources": [{"file": "a.tsv"}], "detector": None}, None),
        ({"detector": {"name": "yolos"}, "features": None}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_source_of_features_by_their_provenance(provenance, source):
    assert feature_source(provenance) == source


def test_only_known_differences_are_a_mismatch():
    assert feature_mismatch(None, SCENES) is None
    assert feature_mismatch(OTHER, None) is None
    assert feature_mismatch(OTHER, OTHER) is None
    assert feature_mismatch({**OTHER, "weights": "in another type"}, OTHER) is None
    assert feature_mismatch({"name": "a copy of it", "weights": "abc"}, OTHER) is None
    assert feature_mismatch({"name": "another", "weights": "def"}, OTHER) is not None
    line = feature_mismatch(OTHER, SCENES)
    assert "those of 'microsoft/resnet-50', but the model was trained on those of 'scenes'" in line


@pytest.mark.parametrize("family", FAMILIES)
def test_a_processor_stores_the_source_and_older_ones_lack_it(family, tmp_path):
    tokenizer = tiny_processor().tokenizer
    for name, given in (("known", {"region_feature_source": OTHER}), ("old", {})):
        FAMILIES[family].processor_class(tokenizer, **given).save_pretrained(tmp_path / name)
    settings = json.loads((tmp_path / "old" / "processor_config.json").read_text())
    settings.pop("region_feature_source")  # as checkpoints of before have it
    (tmp_path / "old" / "processor_config.json").write_text(json.dumps(settings))
    known, old = (AutoProcessor.from_pretrained(tmp_path / name) for name in ("known", "old"))
    assert known.region_feature_source == OTHER
    assert old.region_feature_source is None
    assert known.feature_mismatch(SCENES)
    assert not old.feature_mismatch(SCENES)


def test_training_stores_the_source_of_its_tables(tmp_path):
    scenes, other, imported = (
        table(tmp_path / name, provenance)
        for name, provenance in (("a", {"source": "scenes"}), ("b", {"features": OTHER}), ("c", {"detector": None}))
    )
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
    assert "'scenes', but the model was trained on those of 'microsoft/resnet-50'" in record_features(
        load_processor(OTHER), scenes
    )


def load_processor(source):
    processor = tiny_processor()
    processor.region_feature_source = source
    return processor


def test_a_checkpoint_of_training_knows_its_features(tmp_path, monkeypatch):
    scenes = tiny_scenes(tmp_path / "data")
    recipe = tiny_recipe(scenes, tmp_path / "run", training={"max_steps": 1, "save_strategy": "no", "use_cpu": True})
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    assert AutoProcessor.from_pretrained(tmp_path / "run" / "direct").region_feature_source == SCENES


# The pipeline


def test_the_pipeline_warns_of_other_features_once(tmp_path, caplog):
    pipe = load(save_model(tmp_path / "model", SCENES))
    known = {"caption": CAPTION, "phrases": PHRASES}
    own = table(tmp_path / "own", {"source": "scenes"})["dog"]
    other = table(tmp_path / "other", {"features": OTHER})["dog"]
    with caplog.at_level("WARNING"):
        expected = pipe({**known, "regions": own})
        # plain arrays: not known
        assert pipe.remarks == []
        assert pipe(example(CAPTION))
        assert pipe.remarks == []
        assert pipe({**known, "regions": other}) == expected == pipe({**known, "regions": other})
    assert len(pipe.remarks) == 1
    assert "those of 'microsoft/resnet-50'" in pipe.remarks[0]
    assert caplog.text.count("trained on those of 'scenes'") == 1


def test_the_pipeline_warns_of_another_feature_model(tmp_path):
    (tmp_path / "backbone").mkdir()
    save_backbone(tmp_path / "backbone")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(tmp_path / "dog.png")
    for source, remarks in ((SCENES, 1), ({"name": "backbone"}, 0), (None, 0)):
        folder = save_model(tmp_path / f"model{remarks}{source is None}", source, size=12)
        pipe = load(folder, feature_model=str(tmp_path / "backbone"))
        pipe(str(tmp_path / "dog.png"), CAPTION, boxes=BOXES, phrases=PHRASES)
        assert len(pipe.remarks) == remarks
    with pytest.raises(ValueError, match=r"give feature_model, the same as in training \('scenes'\)"):
        load(tmp_path / "model1False", detector=ShapeDetector())


def test_words_that_the_tokenizer_does_not_know_are_named(tmp_path):
    assert unknown_words(tiny_processor().tokenizer, "A zebra, a b and a zebra's b") == ["zebra", "and", "s"]
    assert unknown_words(tiny_processor().tokenizer, "a [SEP] b [UNK]") == ["SEP", "UNK"]
    pipe = load(save_model(tmp_path / "model", None))
    pipe(example("a b of c", ["c"]))
    assert len(pipe.remarks) == 1
    assert "[UNK]: 'of'; " in pipe.remarks[0]
    pipe(example("a b c", ["c"]))
    assert len(pipe.remarks) == 1


# The scenes' own features, and a picture of one's own


def scene(scale=1):
    """Three shapes far apart on sand, and their boxes in pixels."""
    places = (("red", "ball", 40, 40), ("blue", "cube", 150, 50), ("green", "cone", 90, 110))
    objects = tuple(
        SceneObject((shape,), (colour,), ("large",), ("plain",), x=x, y=y, radius=22.0, tilt=0.0)
        for colour, shape, x, y in places
    )
    picture = paint(Scene(width=200, height=150, ground="sand", light="left", objects=objects, noise_seed=1))
    boxes = np.array([[x - 22, y - 22, x + 22, y + 22] for *_, x, y in places], np.float32)
    return picture.resize((200 * scale, 150 * scale), Image.Resampling.BICUBIC), boxes * scale


@pytest.mark.parametrize("scale", [1, 4])
def test_shapes_are_found_and_named_by_colour_at_any_size(scale):
    picture, boxes = scene(scale)
    found = ShapeDetector().detect([picture])[0]
    assert [ShapeDetector.label_names[index] for index in found.classes] == ["red", "green", "blue"]
    np.testing.assert_allclose(found.boxes.numpy(), boxes[[0, 2, 1]], atol=4 * scale)
    assert len(ShapeDetector().detect([Image.new("RGB", (50, 40), "white")])[0].boxes) == 0


def test_features_are_those_of_the_scenes_region_table(tmp_path):
    scenes = tiny_scenes(tmp_path / "data")
    regions = RegionTable.open(scenes / "regions")
    for image in regions.ids[:3]:
        record = regions[image]
        picture = Image.open(scenes / "flickr30k-images" / f"{image}.jpg")
        boxes = record.boxes * np.array([record.width, record.height] * 2, np.float32)
        extractor = load_extractor({image: {"boxes": boxes.tolist()}}, SceneFeatures())
        found = extractor.extract([picture], [image])[0]
        np.testing.assert_allclose(found.features, record.features.astype(np.float32), atol=0.02)
        assert feature_source(extractor.provenance)["name"] == "scenes"


def test_features_of_a_large_picture_are_near_those_of_the_same_scene():
    (small, boxes), (large, _) = scene(1), scene(4)
    found = [
        load_extractor({"a": {"boxes": (boxes * scale).tolist()}}, SceneFeatures()).extract([picture], ["a"])[0]
        for picture, scale in ((small, 1), (large, 4))
    ]
    assert np.corrcoef(found[0].features.ravel(), found[1].features.ravel())[0, 1] > 0.98


def test_the_command_grounds_a_picture_of_shapes_and_warns_in_picture_and_json(tmp_path, capsys):
    save_model(tmp_path / "model", SCENES, size=2048)
    scene(3)[0].save(tmp_path / "shapes.png")
    own = ("--detector", "scenes", "--features", "scenes", "--phrases", "a b,c")
    command = [str(tmp_path / "shapes.png"), CAPTION, "--model", str(tmp_path / "model"), *own]
    assert main([*command, "--json", "--output", str(tmp_path / "plain.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["warnings"] == []
    assert found["regions"] == 3
    assert {one["label"] for one in found["grounding"]} <= {"red", "green", "blue"}

    command[1] = "a b sits on c"
    assert main([*command, "--output", str(tmp_path / "warned.png")]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("warning: ")
    assert "[UNK]: 'sits', 'on'; " in printed.err
    heights = [Image.open(tmp_path / name).height for name in ("plain.png", "warned.png")]
    assert heights[1] > heights[0]
