# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention ground`: phrases of a caption, what they attend to, and the mistakes of users."""

import json
import shutil
from itertools import groupby

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BertConfig

from grounded_attention.commands.ground import main
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.modeling import FastRCNNConfig, VLBertModel, caption_phrases
from grounded_attention.modeling.attention_calls import one_stream_calls
from grounded_attention.modeling.caption_phrases import content_words, find_phrases
from grounded_attention.modeling.pipeline_visual_grounding import choose_layers
from grounded_attention.processing import FastRCNNImageProcessor, VLBertProcessor
from grounded_attention.processing.phrase import Phrase
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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a b, c"], ["a b", "c"]),
        (['dog,"a b, and c"'], ["a b, and c", "dog"]),
        (["a b, and c", "c"], ["a b, and c", "c"]),
    ],
)
def test_phrases_may_contain_commas(files, capsys, given, expected):
    options = [part for text in given for part in ("--phrases", text)]
    caption = "a b, and c beside a dog"
    assert run(files, "--regions", files / "table", *options, "--json", caption=caption) == 0
    found = json.loads(capsys.readouterr().out)["grounding"]
    assert [text for text, _ in groupby(one["text"] for one in found)] == expected


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


def test_phrases_and_shares_are_those_of_the_models_attention_maps(files, capsys):
    assert run(files, "--regions", files / "table", "--phrases", "c,a b", "--heads", "1-0", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["text"], one["start"], one["end"]) for one in found["grounding"]] == [("a b", 0, 3), ("c", 12, 13)]
    words = attention_by_hand(files)[1, 0]
    for one, tokens in zip(found["grounding"], ([1, 2], [5]), strict=True):
        share, region = words[tokens].mean(0).max(0)
        assert one["region"] == int(region)
        assert one["score"] == pytest.approx(float(share), abs=1e-4)
        pixels = np.array(BOXES[int(region)]) * [80, 60, 80, 60]
        assert list(one["box"].values()) == pytest.approx(pixels.tolist(), abs=0.06)
        assert one["label"] == ("cat", "dog", "dog")[int(region)]


@pytest.mark.parametrize(("word", "tokens"), [("last", [2]), ("first", [1]), ("mean", [1, 2])])
def test_the_heads_of_a_file_ground(files, tmp_path, capsys, word, tokens):
    layers = [str(layer) for layer in range(tiny_model().config.num_hidden_layers)]
    content = {"format": 2, "layers": layers, "heads": 2, "about": {"word": word}}
    content["chosen"] = [{"layer": 0, "head": 1}, {"layer": 1, "head": 0}]
    (tmp_path / "heads.json").write_text(json.dumps(content))
    assert run(files, "--regions", files / "table", "--phrases", "a b", "--json", "--heads", tmp_path) == 0
    found = json.loads(capsys.readouterr().out)
    attention = attention_by_hand(files)
    assert found["heads"] == [[0, 1], [1, 0]]
    share = ((attention[0, 1] + attention[1, 0]) / 2)[tokens].mean(0).max()
    assert found["grounding"][0]["score"] == pytest.approx(float(share), abs=1e-4)
    if word == "mean":
        assert run(files, "--regions", files / "table", "--phrases", "a b", "--json", "--heads", "0-1,1-0") == 0
        assert json.loads(capsys.readouterr().out)["grounding"] == found["grounding"]


def test_a_detector_and_a_backbone_ground_and_draw(files, tmp_path, capsys):
    output = tmp_path / "new" / "dog.png"
    arguments = ("--detector", files / "detector", "--features", files / "backbone", "--output", output)
    assert run(files, *arguments, model="narrow") == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "regions; phrases: " in head
    assert "mean over layers 1" not in head
    assert "layer 1, mean over heads" in head
    assert len(lines) >= 2
    assert all(" box " in line and line.endswith("%") for line in lines)
    assert Image.open(output).size[0] > 100


def test_boxes_ground(files, capsys):
    assert run(files, "--boxes", files / "boxes.json", "--features", files / "backbone", "--json", model="narrow") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["regions"] == 3
    assert found["layers"] == [1]
    assert found["head"] is None
    assert not any("box" in line for line in found["warnings"])
    assert {tuple(one["box"].values()) for one in found["grounding"]} <= {(0, 0, 40, 30), (20, 15, 80, 60)}


def test_a_model_that_reads_pixels_takes_boxes_alone_from_a_table(files, tmp_path, capsys):
    """Whatever the width of the table's features; the same as with the boxes in a file."""
    vision = FastRCNNConfig(embedding_size=4, hidden_sizes=[4, 4, 4, 8], depths=[1, 1, 1, 1], roi_size=2)
    tiny_model(region_feature_size=8, vision_config=vision).save_pretrained(tmp_path / "pixels")
    processor = VLBertProcessor(
        tiny_processor().tokenizer, FastRCNNImageProcessor({"shortest_edge": 32, "longest_edge": 48})
    )
    processor.save_pretrained(tmp_path / "pixels")
    pixels = [[x1 * 80, y1 * 60, x2 * 80, y2 * 60] for x1, y1, x2, y2 in BOXES]
    (tmp_path / "boxes.json").write_text(json.dumps({"dog": pixels}))
    found = []
    for source in (("--regions", files / "table"), ("--boxes", tmp_path / "boxes.json")):
        assert run(files, *source, "--json", model=tmp_path / "pixels") == 0
        grounding = json.loads(capsys.readouterr().out)["grounding"]
        found.append([(one["region"], one["score"]) for one in grounding])
    assert found[0] == [(region, pytest.approx(share, abs=1e-5)) for region, share in found[1]]


def test_regions_of_a_table_fit_a_larger_copy_of_the_image(files, capsys):
    found = []
    for image in ("dog.png", "large/dog.png"):
        assert run(files, "--regions", files / "table", "--json", image=image) == 0
        found.append(json.loads(capsys.readouterr().out)["grounding"])
    for small, large in zip(*found, strict=True):
        sides = [(small["box"][side], large["box"][side]) for side in ("xmin", "ymin", "xmax", "ymax")]
        width = [b / a for a, b in sides[::2] if a]
        height = [b / a for a, b in sides[1::2] if a]
        close = {"rel": 1e-2}  # of rounded pixels
        assert width == pytest.approx([321 / 80] * len(width), **close)
        assert height == pytest.approx([4.0] * len(height), **close)
        assert small["score"] == pytest.approx(large["score"])


@pytest.mark.parametrize(
    "change, arguments, problem",
    [
        ({"image": "none.png"}, ["--regions", "table"], "none.png): no such file"),
        ({"image": "boxes.json"}, ["--regions", "table"], "boxes.json): not an image file"),
        ({"image": "cat.png"}, ["--regions", "table"], "no regions for this image"),
        ({"image": "cat.png"}, ["--boxes", "boxes.json", "--features", "backbone"], "no boxes for image 'cat'"),
        ({"caption": ""}, ["--regions", "table"], "the caption is empty"),
        ({"caption": "a red \udcff ball"}, ["--regions", "table"], r"caption is not UTF-8: found 'a red \udcff ball'"),
        ({}, ["--regions", "table", "--phrases", ""], "has no phrases (given)"),
        ({"model": "weights"}, ["--regions", "table"], "weights"),
        ({"model": "words"}, ["--regions", "table"], "words"),
        ({"model": "narrow"}, ["--detector", "nowhere", "--features", "backbone"], "nowhere"),
        ({}, ["--detector", "detector", "--features", "nowhere"], "nowhere"),
        ({}, ["--detector", "scenes", "--features", "scenes"], "features have 2048 values, but the model was trained"),
        ({"model": "bert"}, ["--regions", "table"], "model type bert: its image tokens are not known"),
        ({"model": "nowhere"}, ["--regions", "table"], "nowhere"),
        ({"caption": "it is on the"}, ["--regions", "table"], "has no phrases"),
        ({}, ["--regions", "table", "--heads", "2"], "layer 2: the model has the layers 0 to 1"),
        ({}, ["--boxes", "boxes.json"], "the model needs features"),
        ({}, ["--boxes", "boxes.json", "--regions", "table"], "--boxes"),
        ({"model": "narrow"}, ["--detector", "backbone", "--features", "backbone"], "is not an object detector"),
        ({}, ["--regions", "table", "--output", "dog.gif"], "gif"),
        ({}, ["--regions", "table", "--output", "dog.png"], "--output dog.png: found the same file as IMAGE"),
        ({}, ["--regions", "table", "--phrases", "c,c"], "phrase 'c' does not occur 2 times in the caption"),
        ({"image": "dog/dog.png"}, ["--regions", "table"], "the regions are of an image of 80 x 60"),
    ],
)
def test_user_errors_are_one_line_and_status_2(files, monkeypatch, capsys, change, arguments, problem):
    monkeypatch.chdir(files)
    assert run(files, *arguments, **change) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert problem in printed.err


# Phrases and layers


def test_given_phrases_are_found_in_any_case():
    found, way = find_phrases("A dog and a dog. The Dogs", ["the dogs", " a dog", "a dog", ""])
    assert found == [Phrase("A dog", 0, 5), Phrase("a dog", 10, 15), Phrase("The Dogs", 17, 25)]
    assert way == "given"
    with pytest.raises(ValueError, match="phrase 'dog s' does not occur"):
        find_phrases("two dogs", ["dog s"])
    with pytest.raises(ValueError, match="phrase 'dog' does not occur"):
        find_phrases("two dogs", ["dog"])
    assert find_phrases("a b c", "a b")[0] == [Phrase("a b", 0, 3)]  # one phrase, and not three letters


def test_phrases_may_be_spans():
    found, way = find_phrases("A dog runs", [(6, 10), "dog", [0, 5]])
    assert found == [Phrase("A dog", 0, 5), Phrase("dog", 2, 5), Phrase("runs", 6, 10)]
    assert way == "given"
    for span in ((5, 5), (-1, 3), (0, 11), (1, 2, 3)):
        with pytest.raises(ValueError, match="start and end of a span with 0 <= start < end <= 10"):
            find_phrases("A dog runs", [span])


def test_without_spacy_each_content_word_is_a_phrase(monkeypatch):
    monkeypatch.setattr(caption_phrases, "_has_spacy", lambda: False)
    found, way = find_phrases("The man's red-haired dog is on a mat.")
    assert [phrase.text for phrase in found] == ["man's", "red-haired", "dog", "mat"]
    assert way == "each content word"
    assert content_words("it is") == []


def test_the_upper_half_of_the_layers_is_the_default():
    assert choose_layers(one_stream_calls(12, 12), None, None) == [6, 7, 8, 9, 10, 11]
    assert choose_layers(one_stream_calls(3, 4), None, 3) == [1, 2]
    assert choose_layers(one_stream_calls(3, 4), 0, None) == [0]
