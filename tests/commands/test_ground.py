# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention ground`: phrases of a caption, what they attend to, and the mistakes of users."""

import json
import shutil

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from transformers import BertConfig

from grounded_attention.commands.ground import main
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.modeling import FastRCNNConfig, VLBertModel, grounding_items
from grounded_attention.modeling.attention_calls import one_stream_calls
from grounded_attention.modeling.grounding_items import content_words, find_phrases
from grounded_attention.modeling.pipeline_visual_grounding import choose_layers
from grounded_attention.processing import FastRCNNImageProcessor, VLBertProcessor
from grounded_attention.processing.phrase import Phrase
from tests.helpers.commands import read_error, read_result
from tests.helpers.tiny_backbone import save_backbone
from tests.helpers.tiny_detectors import save_detector
from tests.helpers.tiny_vgp import FEATURE_SIZE, tiny_model, tiny_processor

CAPTION = "a b sits on c"
BOXES = [[0, 0, 0.5, 0.5], [0.25, 0.25, 1, 1], [0.5, 0, 1, 0.5]]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, one whose width is the tiny backbone's, an image of 80 x 60, a table, boxes, and a detector."""
    folder = tmp_path_factory.mktemp("ground")
    for name, size in {"model": FEATURE_SIZE, "narrow": 12}.items():
        tiny_model(region_feature_size=size).save_pretrained(folder / name)
        processor = tiny_processor()
        processor.region_feature_size = size
        processor.save_pretrained(folder / name)
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "dog.png")
    features = np.random.default_rng(1).random((3, FEATURE_SIZE)).astype(np.float16)
    with RegionTableWriter(folder / "table", {"detector": {"label_names": ["cat", "dog"]}}) as writer:
        classes = np.array([0, 1, 1], np.int32)
        writer.write(Regions("dog", 80, 60, np.array(BOXES, np.float32), features, classes=classes))
    # The last box has no area, and keeps its number.
    (folder / "boxes.json").write_text(json.dumps({"dog": [[0, 0, 40, 30], [20, 15, 80, 60], [10, 10, 10, 40]]}))
    (folder / "others.json").write_text('{"cat": [[0, 0, 40, 30]]}')
    save_detector("yolos", folder / "detector")
    (folder / "backbone").mkdir()
    save_backbone(folder / "backbone")
    BertConfig().save_pretrained(folder / "bert")
    Image.fromarray(pixels).save(folder / "cat.png")  # which neither the table nor the boxes know
    (folder / "dog").mkdir()
    Image.fromarray(pixels).rotate(90, expand=True).save(folder / "dog" / "dog.png")
    (folder / "large").mkdir()
    Image.fromarray(pixels).resize((321, 240)).save(folder / "large" / "dog.png")
    shutil.copytree(folder / "model", folder / "weights", ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copytree(folder / "model", folder / "words", ignore=shutil.ignore_patterns("processor*", "tokenizer*"))
    return folder


def run(files, *arguments, image="dog.png", caption=CAPTION, model="model"):
    return main([str(files / image), caption, "--model", str(files / model), *map(str, arguments)])


@pytest.fixture
def grounded(files, capsys):
    """Runs the command; gives what it prints as JSON."""

    def result(*arguments, **options):
        assert run(files, *arguments, "--json", **options) == 0
        return read_result(capsys)

    return result


def box_of(row):
    return list(row["box"].values())


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--phrases", "a b, c"], ["a b", "c"]),
        (["--phrases", 'dog,"a b, and c"'], ["a b, and c", "dog"]),
        (["--phrases", "a b, and c", "--phrases", "c"], ["a b, and c", "c"]),
    ],
)
def test_phrases_may_contain_commas(files, grounded, options, expected):
    found = grounded("--regions", files / "table", *options, caption="a b, and c beside a dog")
    assert list(dict.fromkeys(row["text"] for row in found["grounding"])) == expected


@torch.no_grad()
def attention_by_hand(files):
    """(L, H, N, R): the share of each region in the attention of each token, from eager maps."""
    model = VLBertModel.from_pretrained(files / "model", attn_implementation="eager").eval()
    regions = RegionTable.open(files / "table")["dog"]
    inputs = tiny_processor()(CAPTION, region_features=regions.features, region_boxes=regions.boxes)
    maps = torch.stack(model(**inputs, output_attentions=True).attentions)[:, 0]
    text = inputs["input_ids"].shape[1]
    found = maps[..., text + 1 : text + 4]  # after the whole image
    return found / found.sum(-1, keepdim=True)


def test_phrases_and_shares_are_those_of_the_models_attention_maps(files, grounded):
    words = attention_by_hand(files)[1, 0]
    found = grounded("--regions", files / "table", "--phrases", "c,a b", "--heads", "1-0")["grounding"]
    assert [(row["text"], row["start"], row["end"]) for row in found] == [("a b", 0, 3), ("c", 12, 13)]
    for row, tokens in zip(found, ([1, 2], [5]), strict=True):
        shares = words[tokens].mean(0).numpy()
        region = shares.argmax()
        assert row["region"] == region
        assert row["score"] == pytest.approx(shares[region], abs=1e-4)
        assert_allclose(box_of(row), np.array(BOXES[region]) * [80, 60, 80, 60], atol=0.06)
        assert row["label"] == ("cat", "dog", "dog")[region]


@pytest.mark.parametrize("word, tokens", [("last", [2]), ("first", [1]), ("mean", [1, 2])])
def test_the_heads_of_a_file_ground(files, tmp_path, grounded, word, tokens):
    layers = [str(layer) for layer in range(tiny_model().config.num_hidden_layers)]
    content = {"format": 2, "layers": layers, "heads": 2, "about": {"word": word}}
    content["chosen"] = [{"layer": 0, "head": 1}, {"layer": 1, "head": 0}]
    (tmp_path / "heads.json").write_text(json.dumps(content))
    options = ("--regions", files / "table", "--phrases", "a b")
    found = grounded(*options, "--heads", tmp_path)
    assert found["heads"] == [[0, 1], [1, 0]]
    attention = attention_by_hand(files)
    mean = (attention[0, 1] + attention[1, 0]) / 2
    assert found["grounding"][0]["score"] == pytest.approx(mean[tokens].mean(0).max().item(), abs=1e-4)
    if word == "mean":
        assert grounded(*options, "--heads", "0-1,1-0")["grounding"] == found["grounding"]


def test_a_detector_and_a_backbone_ground_and_draw(files, tmp_path, capsys):
    output = tmp_path / "new" / "dog.png"
    arguments = ("--detector", files / "detector", "--features", files / "backbone", "--output", output)
    assert run(files, *arguments, model="narrow") == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "regions; phrases: " in head
    assert "mean over layers 1" not in head
    assert "layer 1, mean over heads" in head
    assert len(lines) >= 2
    for line in lines:
        assert " box " in line
        assert line.endswith("%")
    assert Image.open(output).size[0] > 100


def test_boxes_ground(files, grounded):
    found = grounded("--boxes", files / "boxes.json", "--features", files / "backbone", model="narrow")
    assert found["regions"] == 3
    assert found["layers"] == [1]
    assert found["head"] is None
    assert "box" not in str(found["warnings"])
    for row in found["grounding"]:
        assert box_of(row) in ([0, 0, 40, 30], [20, 15, 80, 60])


def test_a_model_that_reads_pixels_takes_boxes_alone_from_a_table(files, tmp_path, grounded):
    """Whatever the width of the table's features; the same as with the boxes in a file."""
    vision = FastRCNNConfig(embedding_size=4, hidden_sizes=[4, 4, 4, 8], depths=[1, 1, 1, 1], roi_size=2)
    tiny_model(region_feature_size=8, vision_config=vision).save_pretrained(tmp_path / "pixels")
    images = FastRCNNImageProcessor({"shortest_edge": 32, "longest_edge": 48})
    VLBertProcessor(tiny_processor().tokenizer, images).save_pretrained(tmp_path / "pixels")
    pixels = np.array(BOXES) * [80, 60, 80, 60]
    (tmp_path / "boxes.json").write_text(json.dumps({"dog": pixels.tolist()}))
    of_table = grounded("--regions", files / "table", model=tmp_path / "pixels")["grounding"]
    of_file = grounded("--boxes", tmp_path / "boxes.json", model=tmp_path / "pixels")["grounding"]
    for one, other in zip(of_table, of_file, strict=True):
        assert one["region"] == other["region"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)


def test_regions_of_a_table_fit_a_larger_copy_of_the_image(files, grounded):
    small = grounded("--regions", files / "table")["grounding"]
    large = grounded("--regions", files / "table", image="large/dog.png")["grounding"]
    for one, other in zip(small, large, strict=True):
        expected = np.array(box_of(one)) * [321 / 80, 4, 321 / 80, 4]
        assert_allclose(box_of(other), expected, rtol=1e-2)  # of rounded pixels
        assert one["score"] == pytest.approx(other["score"])


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"image": "none.png"}, "none.png): no such file"),
        ({"image": "boxes.json"}, "boxes.json): not an image file"),
        ({"image": "cat.png"}, "no regions for this image"),
        ({"caption": ""}, "the caption is empty"),
        ({"caption": "a red \udcff ball"}, r"caption is not UTF-8: found 'a red \udcff ball'"),
        ({"caption": "it is on the"}, "has no phrases"),
        ({"model": "weights"}, "weights"),
        ({"model": "words"}, "words"),
        ({"model": "bert"}, "model type bert: its image tokens are not known"),
        ({"model": "nowhere"}, "nowhere"),
        ({"image": "dog/dog.png"}, "the regions are of an image of 80 x 60"),
    ],
)
def test_what_cannot_be_grounded_is_one_line(files, monkeypatch, capsys, change, problem):
    assert_refused(files, monkeypatch, capsys, "--regions table", problem, **change)


@pytest.mark.parametrize(
    "model, arguments, problem",
    [
        ("model", "--regions table --phrases ,", "has no phrases (given)"),
        ("model", "--regions table --phrases c,c", "phrase 'c' does not occur 2 times in the caption"),
        ("model", "--regions table --heads 2", "layer 2: the model has the layers 0 to 1"),
        ("model", "--regions table --output dog.gif", "gif"),
        ("model", "--regions table --output dog.png", "--output dog.png: found the same file as IMAGE"),
        ("model", "--boxes boxes.json --regions table", "--boxes"),
        ("model", "--boxes boxes.json", "the model needs features"),
        ("model", "--boxes others.json --features backbone", "no boxes for image 'dog'"),
        ("model", "--detector detector --features nowhere", "nowhere"),
        ("model", "--detector scenes --features scenes", "features have 2048 values, but the model was trained"),
        ("narrow", "--detector nowhere --features backbone", "nowhere"),
        ("narrow", "--detector backbone --features backbone", "is not an object detector"),
    ],
)
def test_user_errors_are_one_line_and_status_2(files, monkeypatch, capsys, model, arguments, problem):
    assert_refused(files, monkeypatch, capsys, arguments, problem, model=model)


def assert_refused(files, monkeypatch, capsys, arguments, problem, **change):
    monkeypatch.chdir(files)
    assert run(files, *arguments.split(), **change) == 2
    assert problem in read_error(capsys)


# Phrases and layers


def test_given_phrases_are_found_in_any_case():
    found, way = find_phrases("A dog and a dog. The Dogs", ["the dogs", " a dog", "a dog", ""])
    assert found == [Phrase("A dog", 0, 5), Phrase("a dog", 10, 15), Phrase("The Dogs", 17, 25)]
    assert way == "given"
    for phrase in ("dog s", "dog"):
        with pytest.raises(ValueError, match=f"phrase '{phrase}' does not occur"):
            find_phrases("two dogs", [phrase])
    assert find_phrases("a b c", "a b")[0] == [Phrase("a b", 0, 3)]  # one phrase, and not three letters


def test_phrases_may_be_spans():
    found, way = find_phrases("A dog runs", [(6, 10), "dog", [0, 5]])
    assert found == [Phrase("A dog", 0, 5), Phrase("dog", 2, 5), Phrase("runs", 6, 10)]
    assert way == "given"
    for span in ((5, 5), (-1, 3), (0, 11), (1, 2, 3)):
        with pytest.raises(ValueError, match="start and end of a span with 0 <= start < end <= 10"):
            find_phrases("A dog runs", [span])


def test_without_spacy_each_content_word_is_a_phrase(monkeypatch):
    monkeypatch.setattr(grounding_items, "_has_spacy", lambda: False)
    found, way = find_phrases("The man's red-haired dog is on a mat.")
    assert [phrase.text for phrase in found] == ["man's", "red-haired", "dog", "mat"]
    assert way == "each content word"
    assert content_words("it is") == []


def test_the_upper_half_of_the_layers_is_the_default():
    assert choose_layers(one_stream_calls(12, 12), None, None) == [6, 7, 8, 9, 10, 11]
    assert choose_layers(one_stream_calls(3, 4), None, 3) == [1, 2]
    assert choose_layers(one_stream_calls(3, 4), 0, None) == [0]
