# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The pipeline `visual-grounding`: numbers, inputs, batches, files of a checkpoint alone, and mistakes."""

import functools
import http.server
import json
import sys
import threading
import types

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image

from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.families import FAMILIES
from grounded_attention.modeling import (
    FastRCNNConfig,
    VisualGroundingPipeline,
    VLBertForVGP,
    VLBertModel,
    grounding_items,
)
from grounded_attention.processing import FastRCNNImageProcessor, VLBertProcessor
from tests.helpers.hub_models import tiny_config
from tests.helpers.phrase_attention import phrase_attention
from tests.helpers.project_files import ROOT
from tests.helpers.run_elsewhere import run_elsewhere
from tests.helpers.tiny_backbone import save_backbone
from tests.helpers.tiny_detectors import save_detector
from tests.helpers.tiny_pipeline import BOXES, CAPTION, PHRASES, example, features, load
from tests.helpers.tiny_vgp import FEATURE_SIZE, tiny_model, tiny_processor
from tests.helpers.warm_python import run_python

VISION = {"embedding_size": 4, "hidden_sizes": [4, 4, 4, 8], "depths": [1, 1, 1, 1], "roi_size": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Checkpoints of three kinds, an image of 80 x 60, a detector and a backbone."""
    folder = tmp_path_factory.mktemp("pipeline")
    for name, size in {"model": FEATURE_SIZE, "narrow": 12}.items():
        tiny_model(region_feature_size=size).save_pretrained(folder / name)
        processor = tiny_processor()
        processor.region_feature_size = size
        processor.save_pretrained(folder / name)
    tiny_model(region_feature_size=8, vision_config=FastRCNNConfig(**VISION)).save_pretrained(folder / "pixels")
    pixels = FastRCNNImageProcessor({"shortest_edge": 32, "longest_edge": 48})
    VLBertProcessor(tiny_processor().tokenizer, pixels).save_pretrained(folder / "pixels")
    picture = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(picture).save(folder / "dog.png")
    save_detector("yolos", folder / "detector")
    (folder / "backbone").mkdir()
    save_backbone(folder / "backbone")
    return folder


EXAMPLES = [example(), example("c d", ["d"], 2, seed=2), example("a b c d e f g", [(0, 1), "e f"], 3, seed=3)]


@pytest.fixture(scope="module")
def pipe(files):
    return load(files / "model")


def assert_same(found, expected):
    """Records that are equal but for the rounding of their scores."""
    for record, other in zip(found, expected, strict=True):
        assert {**record, "score": 0} == {**other, "score": 0}
        assert record["score"] == pytest.approx(other["score"], abs=1e-5)


def records_of(process):
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


# Numbers


@pytest.mark.parametrize("layer, head", [(None, None), (0, None), (1, 1)])
def test_scores_are_those_of_phrase_attention(files, pipe, layer, head):
    found = pipe(example(), layer=layer, head=head, top_k=None)
    model = VLBertForVGP.from_pretrained(files / "model").eval()
    spans = [{"sentence": 0, "start": 0, "end": 3}, {"sentence": 0, "start": 12, "end": 13}]
    known = {"region_features": features(), "region_boxes": BOXES, "image_sizes": (80, 60)}
    inputs = tiny_processor()(CAPTION, phrases=spans, **known)
    attention = phrase_attention(model, inputs, 1 if layer is None else layer, head)
    for start, shares in zip((0, 12), attention[0, :, 1:], strict=True):
        records = [record for record in found if record["start"] == start]
        scores, order = shares.sort(descending=True)
        assert [record["region"] for record in records] == order.tolist()
        assert [record["score"] for record in records] == pytest.approx(scores.tolist(), abs=1e-5)


def test_the_score_of_several_heads_is_their_mean(pipe):
    pairs = [(0, 1), (1, 0)]
    options = [{"layer": 0, "head": 1}, {"layer": 1, "head": 0}, {"heads": pairs}]
    scores = []
    for chosen in options:
        found = pipe(example(), top_k=None, **chosen)
        found.sort(key=lambda record: (record["start"], record["region"]))
        scores.append([record["score"] for record in found])
    assert scores[2] == pytest.approx(np.mean(scores[:2], axis=0), abs=1e-6)


# Two layers of attention from words to regions; their other fields say two layers of text.
TWO_LAYERS = {"vilbert": {"v_num_hidden_layers": 2}, "lxmert": {"x_layers": 2}}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_grounds_in_batches(family, tmp_path):
    """Each class with a head, in a batch that is padded: what phrase_attention gives its base model for each alone."""
    tokenizer = tiny_processor().tokenizer
    processor = FAMILIES[family].processor_class(tokenizer, region_feature_size=FEATURE_SIZE)
    torch.manual_seed(0)
    for cls in FAMILIES[family].heads.values():
        model = cls(tiny_config(family, num_hidden_layers=2, **TWO_LAYERS.get(family, {}))).eval()
        pipe = VisualGroundingPipeline(model, processor=processor, device="cpu", layer=1, head=0)
        found = pipe(EXAMPLES, batch_size=3)
        for one, records in zip(EXAMPLES, found, strict=True):
            spans = [{"sentence": 0, "start": record["start"], "end": record["end"]} for record in records]
            known = {"region_features": one["features"], "region_boxes": one["boxes"], "image_sizes": (80, 60)}
            inputs = processor(one["caption"], phrases=spans, **known)
            attention = phrase_attention(model.base_model, inputs, layer=1, head=0)[0]
            attention = attention[:, inputs["region_candidate_mask"][0].bool()]
            assert [record["region"] for record in records] == attention.argmax(1).tolist()
            assert [record["score"] for record in records] == pytest.approx(attention.amax(1).tolist(), abs=1e-5)
    model.save_pretrained(tmp_path)
    assert "custom_pipelines" in json.loads((tmp_path / "config.json").read_text())
    assert (tmp_path / "pipeline_visual_grounding.py").is_file()


def test_eager_maps_give_the_same_and_the_model_keeps_its_back_end(files):
    model = VLBertModel.from_pretrained(files / "model", attn_implementation="eager").eval()
    inputs = tiny_processor()(CAPTION, region_features=features(), region_boxes=BOXES, image_sizes=(80, 60))
    with torch.no_grad():
        maps = model(**inputs, output_attentions=True).attentions[1].mean(1)[0]
    words = maps[[1, 2], inputs["input_ids"].shape[1] + 1 : -1]  # after the whole image, before END
    shares = (words / words.sum(-1, keepdim=True)).mean(0)
    best = VisualGroundingPipeline(model, processor=tiny_processor(), device="cpu")(example(phrases=["a b"]))[0]
    assert best["region"] == shares.argmax()
    assert best["score"] == pytest.approx(shares.max().item(), abs=1e-5)
    assert model.config._attn_implementation == "eager"


def test_a_record_has_text_span_box_score_and_label_as_json(pipe):
    labels = ["dog", None, "cat", "ball"]
    found = pipe(example(labels=labels), top_k=2)
    assert json.loads(json.dumps(found)) == found
    spans = [(record["text"], record["start"], record["end"]) for record in found]
    assert spans == [("a b", 0, 3)] * 2 + [("c", 12, 13)] * 2
    for record in found:
        assert list(record["box"]) == ["xmin", "ymin", "xmax", "ymax"]
        assert list(record["box"].values()) == pytest.approx(BOXES[record["region"]], abs=0.06)
        assert record["label"] == labels[record["region"]]
    assert found[0]["score"] >= found[1]["score"]


def test_the_threshold_leaves_weak_regions_out(pipe):
    every = pipe(example(), top_k=None)
    limit = sorted(record["score"] for record in every)[3]
    kept = pipe(example(), top_k=None, threshold=limit)
    assert kept == [record for record in every if record["score"] >= limit]
    assert len(kept) == len(every) - 3


# Batches


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_lists_generators_and_data_sets_give_what_single_inputs_give(pipe, batch_size):
    rows = [{**inputs, "phrases": None, "features": inputs["features"].tolist()} for inputs in EXAMPLES]
    for given, inputs in (
        (EXAMPLES, EXAMPLES),
        ((inputs for inputs in EXAMPLES), EXAMPLES),
        ((row for row in Dataset.from_list(rows)), rows),
    ):
        for found, alone in zip(pipe(given, batch_size=batch_size), inputs, strict=True):
            assert_same(found, pipe(alone))


def test_more_regions_than_the_processor_keeps_all_stay(files):
    pipe = load(files / "model")
    pipe.processor.max_regions = 2
    assert {record["region"] for record in pipe(example(), top_k=None)} == {0, 1, 2, 3}
    assert pipe.processor.max_regions == 2


# Where regions come from


def test_a_record_of_a_region_table(pipe, tmp_path):
    half = features().astype("f2")
    with RegionTableWriter(tmp_path / "table", {}) as writer:
        writer.write(Regions("dog", 80, 60, np.array(BOXES, np.float32) / [80, 60, 80, 60], half))
    record = RegionTable.open(tmp_path / "table")["dog"]
    assert_same(pipe({"caption": CAPTION, "phrases": PHRASES, "regions": record}), pipe(example(features=half)))


def test_a_detector_and_a_feature_model_by_name(files):
    pipe = load(files / "narrow", detector=str(files / "detector"), feature_model=str(files / "backbone"))
    picture = Image.open(files / "dog.png")
    found = pipe(files / "dog.png", CAPTION, phrases=PHRASES)
    assert_same(pipe(picture, CAPTION, phrases=PHRASES), found)
    regions = pipe.extractor.extract([picture])[0]
    assert_same(pipe({"caption": CAPTION, "phrases": PHRASES, "regions": regions}), found)
    for record in found:
        corners = regions.boxes[record["region"]] * [80, 60, 80, 60]
        assert list(record["box"].values()) == pytest.approx(corners.tolist(), abs=0.06)
        assert record["label"] == regions.label(record["region"])


def test_features_of_known_boxes_are_computed(files):
    """A box without area is widened to a pixel, so that all keep their numbers and labels."""
    pipe = load(files / "narrow", feature_model=str(files / "backbone"))
    labels = ["none", "dog", "cat", "ball", "pole"]
    given = {"boxes": [[3, 3, 3, 9], *BOXES], "labels": labels, "phrases": PHRASES}
    found = pipe(str(files / "dog.png"), CAPTION, **given, top_k=None)
    assert len(found) == 10
    expected = dict(zip(labels, [[3, 3, 4, 9], *BOXES], strict=True))
    for record in found:
        assert list(record["box"].values()) == pytest.approx(expected[record["label"]], abs=0.06)


def test_a_model_that_reads_pixels_takes_boxes_alone(files):
    pipe = load(files / "pixels")
    known = {"caption": CAPTION, "boxes": BOXES, "phrases": PHRASES}
    found = pipe({"image": Image.open(files / "dog.png"), **known})
    other = pipe({"image": Image.new("RGB", (80, 60)), **known})
    assert [record["score"] for record in found] != [record["score"] for record in other]
    for records in pipe([{"image": str(files / "dog.png"), **known}] * 2, batch_size=2):
        assert_same(records, found)


def test_an_image_by_its_address(files):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(files))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        pipe = load(files / "pixels")
        asked = {"boxes": BOXES, "phrases": PHRASES}
        assert_same(pipe(f"{address}/dog.png", CAPTION, **asked), pipe(files / "dog.png", CAPTION, **asked))
        with pytest.raises(ValueError, match=rf"image {address}/cat.png: "):
            pipe(f"{address}/cat.png", CAPTION, **asked)
        server.shutdown()


# Phrases


def test_noun_phrases_by_spacy_where_it_is_installed(pipe, monkeypatch):
    chunk = types.SimpleNamespace(text="a b", start_char=0, end_char=3, root=types.SimpleNamespace(pos_="NOUN"))
    spacy = types.SimpleNamespace(load=lambda name: lambda text: types.SimpleNamespace(noun_chunks=[chunk]))
    monkeypatch.setitem(sys.modules, "spacy", spacy)
    monkeypatch.setattr(grounding_items, "_has_spacy", lambda: True)
    grounding_items._parser.cache_clear()
    found = pipe(example(phrases=None))
    grounding_items._parser.cache_clear()
    assert [record["text"] for record in found] == ["a b"]


def test_without_spacy_it_says_that_words_are_phrases(pipe, monkeypatch, caplog):
    monkeypatch.setattr(grounding_items, "_has_spacy", lambda: False)
    sys.modules[VisualGroundingPipeline.__module__].logger.warning_once.cache_clear()
    with caplog.at_level("WARNING"):
        found = pipe(example(phrases=None))
    assert [record["text"] for record in found] == ["b", "sits", "c"]
    assert "each content word is a phrase" in caplog.text


# Files


ELSEWHERE = """
import json, sys
import numpy as np
from transformers import pipeline
assert "modeling" not in sys.modules
folder, again, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
options = arguments.pop("options")
pipe = pipeline("visual-grounding", model=folder, trust_remote_code=True, device="cpu", **options)
assert type(pipe).__module__.startswith("transformers_modules."), type(pipe).__module__
assert "modeling" not in sys.modules and "processing" not in sys.modules
print(json.dumps(pipe(arguments)))
pipe.save_pretrained(again)
"""


PICTURE = {"caption": CAPTION, "phrases": PHRASES}


@pytest.mark.parametrize("kind", ["features", "pixels"])
def test_a_checkpoints_own_files_are_enough(files, tmp_path, kind):
    """In a process without the project; what that process saves has the same files, and loads here."""
    if kind == "features":
        folder = files / "model"
        options = {}
        known = {**example(), "features": features().tolist()}
    else:
        folder = files / "pixels"
        known = {**PICTURE, "image": str(files / "dog.png")}
        options = {"detector": str(files / "detector")}
    again = tmp_path / "again"
    arguments = json.dumps({**known, "options": options})
    found = records_of(run_elsewhere(ELSEWHERE, tmp_path, str(folder), str(again), arguments))
    assert_same(found, load(folder, **options)(known))
    assert_same(found, load(again, **options)(known))
    code = {path.name for path in folder.glob("*.py")}
    assert code == {path.name for path in again.glob("*.py")}
    assert len(code) == (4 if kind == "features" else 5)


@pytest.mark.parametrize("installed", [False, True])
def test_a_checkpoint_leaves_detectors_and_feature_models_to_the_package(files, tmp_path, installed):
    options = {"detector": str(files / "detector"), "feature_model": str(files / "backbone")}
    known = {**PICTURE, "image": str(files / "dog.png")}
    script = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{ELSEWHERE}" if installed else ELSEWHERE
    arguments = (str(files / "narrow"), str(tmp_path / "again"), json.dumps({**known, "options": options}))
    process = run_elsewhere(script, tmp_path, *arguments, with_project=installed)
    if installed:
        assert_same(records_of(process), load(files / "narrow", **options)(known))
    else:
        line = process.stderr.strip().splitlines()[-1]
        assert line.startswith("ImportError")
        assert "install the package grounded-attention" in line


PUSH = """
import sys, grounded_attention.modeling, grounded_attention.processing
from transformers import pipeline
pipeline("visual-grounding", model=sys.argv[1], device="cpu").push_to_hub("tester/grounds")
"""


def run_with_hub(script, folder, environment, *arguments):
    folder.mkdir()
    return run_python(script, arguments, cwd=folder, env=environment)


def test_a_pushed_pipeline_loads_from_the_hub_without_the_project(files, pipe, tmp_path, loopback_hub):
    pusher = {**loopback_hub.environment(tmp_path / "pusher"), "PYTHONPATH": str(ROOT)}
    pushed = run_with_hub(PUSH, tmp_path / "push", pusher, files / "model")
    assert pushed.returncode == 0, pushed.stderr[-3000:]
    puller = loopback_hub.environment(tmp_path / "puller")
    puller.pop("PYTHONPATH", None)
    arguments = json.dumps({**example(), "features": features().tolist(), "options": {}})
    pulled = run_with_hub(ELSEWHERE, tmp_path / "pull", puller, "tester/grounds", tmp_path / "again", arguments)
    assert_same(records_of(pulled), pipe(example()))


# Mistakes


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"caption": " "}, "expected a text"),
        ({"colour": "red"}, "unknown: colour; known keys of an input are image, caption"),
        ({"phrases": ["zebra"]}, "phrase 'zebra' does not occur in the caption"),
        ({"phrases": [(0, 99)]}, "0 <= start < end <= 13"),
        ({"features": features()[:2]}, r"features of shape \(2, 16\), expected \(4, D\)"),
        ({"features": features().repeat(2, 0)[:, :8]}, r"features of shape \(8, 8\), expected \(4, D\)"),
        ({"features": features()[:, :7]}, "features have 7 values, but the model was trained with 16"),
        ({"features": None}, "the model needs features"),
        ({"boxes": None}, "features given without boxes"),
        ({"boxes": None, "features": None}, "no boxes: give boxes or regions, or a detector to the pipeline"),
        ({"image_size": None}, "boxes are in pixels: give the image or image_size"),
        ({"boxes": [[0, 0, 90, 9]] * 4}, "box 0: found .* expected x1 <= x2 <= 80"),
        ({"boxes": [[0, 0, 0.9, 0.9]] * 4}, "look divided by the size of the image"),
        ({"boxes": [[1, 2, 3]] * 4}, "expected \\(n, 4\\)"),
        ({"scores": [1.0]}, "found 1 scores for 4 boxes, expected one per box"),
        ({"image": "nowhere.png", "image_size": None}, "nowhere.png"),
        ({"caption": "a " * 60 + "p", "phrases": ["p"]}, "phrase 'p' has no token within the model's text length"),
    ],
)
def test_mistakes_name_what_is_wrong(files, change, problem):
    pipe = load(files / "model")
    pipe.processor.tokenizer.model_max_length = 40
    with pytest.raises(ValueError, match=problem):
        pipe({**example(), **change})


@pytest.mark.parametrize(
    "name, option, value, problem",
    [
        ("model", "feature_model", "backbone", "features have 12 values, but the model was trained with 16"),
        ("model", "detector", "detector", "the model needs features: give feature_model"),
        ("pixels", "feature_model", "backbone", "the model reads pixels and does not use a feature model"),
        ("pixels", "detector", "backbone", "is not an object detector"),
        ("narrow", "queries", ["a dog"], "give its name as detector too"),
        ("narrow", "feature_model", "nowhere", "feature model .*nowhere"),
        ("narrow", "top_k", 0, "top_k 0: expected 1 or more"),
    ],
)
def test_pipelines_that_cannot_be(files, name, option, value, problem):
    if option in ("detector", "feature_model"):
        value = str(files / value)
    with pytest.raises(ValueError, match=problem):
        load(files / name, **{option: value})


def test_an_image_of_another_size(files):
    with pytest.raises(ValueError, match=r"image_size is \(80, 61\), but the image has the size \(80, 60\)"):
        load(files / "pixels")(files / "dog.png", CAPTION, boxes=BOXES, image_size=(80, 61))


def test_options_of_a_call(pipe):
    with pytest.raises(TypeError, match="unknown: colour; known are layer, head, heads, words, top_k"):
        pipe(example(), colour="red")
    for name in ("layer", "head"):
        with pytest.raises(ValueError, match=f"{name} 2: the model has the {name}s 0 to 1"):
            pipe(example(), **{name: 2})
    with pytest.raises(ValueError, match="a model object needs a processor"):
        VisualGroundingPipeline(tiny_model(), device="cpu")


def test_regions_that_are_no_record_are_refused(pipe):
    with pytest.raises(ValueError, match=r"regions is of type dict, expected a record.*RegionTable"):
        pipe({"caption": CAPTION, "regions": {"boxes": BOXES}})
