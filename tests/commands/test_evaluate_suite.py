# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention evaluate --suite`: every suite on scenes and on files, for region models and for a decoder."""

import json
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.testing import assert_array_equal
from PIL import Image
from transformers import pipeline, set_seed

from grounded_attention import grounded_rows
from grounded_attention.commands import evaluate, evaluate_suite
from grounded_attention.commands.options import SUITES
from grounded_attention.dataset_scripts.builders.gqa import with_phrases
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.dataset_scripts.scenes.captions import caption_holds
from grounded_attention.dataset_scripts.scenes.probes import evidence, foils, scene_probe
from grounded_attention.dataset_scripts.scenes.records import scene_record
from grounded_attention.dataset_scripts.scenes.shapes import paint
from grounded_attention.training.experiments import suites
from grounded_attention.training.experiments.scoring import draw_others, picture_views, write_regions
from grounded_attention.utils.boxes import box_iou
from tests.commands.untrained_models import untrained_models
from tests.helpers.tiny_vlm_recipes import save_llava

SHIPPED = Path(suites.__file__).parents[2] / "space" / "models" / "vlm" / "direct"
HEADS = {
    "grounding": "referring_expressions",
    "composition": "pretraining",
    "hallucination": "vqa",
    "evidence": "vqa",
}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suites")
    with untrained_models(folder, HEADS.values()) as scenes:
        set_seed(0)
        save_llava(scenes / "vocab.txt", folder / "vlm")
        yield folder


@pytest.fixture
def measure(files, tmp_path, capsys):
    """Runs a suite; gives the figures of each probe. The output is in `tmp_path / "out"`."""

    def run(model, suite, probe, *arguments):
        regions = []
        if model in HEADS.values() and "--text-only" not in arguments:
            regions = ["--regions", files / "scenes" / "regions"]
        output = ["--output", tmp_path / "out", "--json"]
        given = [files / model, "--suite", suite, "--probe", probe, *regions, *output, *arguments]
        assert evaluate.main([*map(str, given)]) == 0
        printed = capsys.readouterr()
        return json.loads(printed.out), printed.err

    return run


@pytest.fixture
def image(tmp_path):
    """The file p.png beside the rows of a test."""
    Image.new("RGB", (8, 6)).save(tmp_path / "p.png")


DRAWN = {"grounding": ["Ref-L4"], "composition": ["What'sUp", "VSR"], "hallucination": ["AMBER"], "evidence": []}


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("kind", ["vlm", "regions"])
def test_scenes_have_a_version_of_each(kind, suite, files, tmp_path, measure):
    model = "vlm" if kind == "vlm" else HEADS[suite]
    figures, warnings = measure(model, suite, files / "scenes", "--limit", 3)
    written = json.loads((tmp_path / "out" / f"suite_{suite}.json").read_text())
    assert written["figures"] == figures
    assert written["suite"] == suite
    assert list(figures) == ["scenes", *(f"scenes, {name}" for name in DRAWN[suite])]
    assert ("Winoground" in warnings) == (suite == "composition")  # two test images have no such pair
    assert ("evidence_score" in figures["scenes"]) == (suite == "evidence")
    assert figures["scenes"]["accuracy"]["count"] == 3
    for name, numbers in figures.items():
        assert 1 <= numbers["accuracy"]["count"] <= 3
        assert ("chair" in numbers) == (kind == "vlm" and name.endswith("AMBER"))
        for number in numbers.values():
            assert number["low"] is None or number["low"] <= number["value"] <= number["high"]
    assert not (tmp_path / "out" / ".eval_results").exists()


def test_boxes_of_heads_are_those_of_ground(files, tmp_path, measure):
    """A decoder beside `heads.json` is also measured by its heads; one that writes no box, by these alone."""
    model = tmp_path / "vlm"
    shutil.copytree(files / "vlm", model)
    pipe = pipeline("visual-grounding", model=str(model), heads=[(0, 1)])
    sizes = pipe.model.config.text_config
    layers = [str(layer) for layer in range(sizes.num_hidden_layers)]
    chosen = {"format": 2, "layers": layers, "heads": sizes.num_attention_heads, "chosen": [{"layer": 0, "head": 1}]}
    (model / "heads.json").write_text(json.dumps({**chosen, "about": {"word": "mean", "instruction": None}}))
    figures = measure(model, "grounding", files / "scenes")[0]["scenes, Ref-L4"]
    assert "answered" in figures
    assert "accuracy" not in figures
    centres = []
    overlaps = []
    for row in grounded_rows(scene_probe(files / "scenes", "reviewed")):
        [found] = pipe({"image": row["image"], "caption": row["text"]})
        [gold] = row["phrases"][0]["boxes"]
        box = np.array([*found["box"].values()]) / np.tile(row["image"].size, 2)
        overlaps.append(box_iou([box], [gold])[0, 0])
        x, y = (box[:2] + box[2:]) / 2
        centres.append(gold[0] <= x <= gold[2] and gold[1] <= y <= gold[3])
    assert figures["iou, heads"]["value"] == pytest.approx(np.mean(overlaps), abs=0.01)
    assert figures["center, heads"]["value"] == pytest.approx(np.mean(centres), abs=0.01)
    blind, _ = measure(model, "grounding", files / "scenes", "--text-only")
    assert "heads" not in str(blind)  # which look at pictures


def test_tables_of_an_output_folder_are_put_into_a_card(files, tmp_path, measure):
    card = tmp_path / "README.md"
    card.write_text(f"# A model\n\n{evaluate_suite.PROBES.place}\n\n## Licence\n")
    for suite in ("evidence", "hallucination", "evidence"):
        figures, _ = measure("vlm", suite, files / "scenes", "--limit", 4, "--card", tmp_path)
    text = card.read_text()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == ["# A model", "## Probes", "### Evidence", "### Hallucination", "## Licence"]
    score = figures["scenes"]["evidence_score"]
    [line] = [line for line in text.splitlines() if "| evidence score" in line]
    assert f"{score['value']:.1%}" in line
    assert str(score["count"]) in line


@pytest.mark.parametrize("model", ["vlm", "vqa"])
def test_texts_alone_depend_on_no_evidence(model, files, measure):
    figures = measure(model, "evidence", files / "scenes", "--text-only")[0]["scenes"]
    assert figures["dependence"]["value"] == figures["dependence"]["high"] == 0.0
    assert figures["accuracy"] == figures["accuracy, masked"]
    assert "evidence_score" not in figures


def test_a_supervised_model_answers_from_what_it_looks_at(tmp_path, measure):
    """The shipped decoder, on scenes that it has not seen; the same one without pictures gets nothing."""
    rows = []
    for number in range(12):
        record = scene_record(77, number, 12)
        paint(record.scene).save(tmp_path / f"{number}.jpg")
        rows += [{"image": f"{number}.jpg", **row} for row in evidence(record, random.Random(number))]
    probe = write_lines(tmp_path / "probe.jsonl", rows)
    seeing = measure(SHIPPED, "evidence", probe)[0]["probe.jsonl"]
    reading = measure(SHIPPED, "evidence", probe, "--text-only")[0]["probe.jsonl"]
    assert seeing["evidence_score"]["low"] > 0.1
    assert seeing["accuracy"]["low"] > 0.4
    assert reading["accuracy"]["value"] < seeing["accuracy"]["low"]
    assert reading["dependence"]["value"] == 0


def test_columns_and_boxes_of_unknown_probes_are_named(image, tmp_path, measure):
    row = {"picture": "p.png", "says": "the star", "where": [1, 1, 3, 4]}
    probe = write_lines(tmp_path / "probe.jsonl", [row])
    options = ("--columns", "image=picture", "text=says", "boxes=where", "--boxes", "xywh pixels")
    figures, _ = measure("vlm", "grounding", probe, *options)
    assert figures["probe.jsonl"]["accuracy"]["count"] == 1


def test_a_model_of_regions_is_right_where_the_only_region_is_the_box(tmp_path, measure):
    """Or the whole image, which overlaps it."""
    Image.new("RGB", (16, 40)).save(tmp_path / "p.png")
    row = {"image": "p.png", "image_id": "p", "caption": "the star", "bbox": [1, 1, 14, 38], "ori_category_id": "1"}
    rows = [{**row, "caption_quality": quality} for quality in (0, 1, 1)]
    probe = write_lines(tmp_path / "probe.jsonl", rows)
    with RegionTableWriter(tmp_path / "table", {"source": "test"}) as writer:
        box = np.array([[1 / 16, 1 / 40, 15 / 16, 39 / 40]], np.float32)
        writer.write(Regions("p", 16, 40, box, np.ones((1, 2048), np.float16)))
    options = ("--regions", tmp_path / "table", "--boxes", "xywh pixels")
    figures = measure("referring_expressions", "grounding", probe, *options)[0]["probe.jsonl"]
    assert figures["accuracy"]["value"] == 1.0
    assert figures["iou"]["value"] > 0.8
    assert figures["iou, reviewed"]["count"] == 2  # quality 0 is a wrong caption


def test_the_test_split_is_measured_unless_another_is_named(image, tmp_path):
    for split in ("train", "test"):
        row = {"image": "p.png", "caption": f"a {split}", "negative_caption": "a foil"}
        write_lines(tmp_path / f"{split}.jsonl", [row])
    for split, expected in ((None, "test"), ("train", "train")):
        probe = suites.open_probe("composition", str(tmp_path), split=split)
        assert probe.rows["captions"][:] == [[f"a {expected}", "a foil"]]
    with pytest.raises(ValueError, match="no split other"):
        suites.open_probe("composition", str(tmp_path), split="other")


def test_files_of_one_name_have_other_keys(image, tmp_path, measure):
    row = {"image": "../p.png", "caption": "the star", "negative_caption": "the ring"}
    for name in "ab":
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name / "probe.jsonl", [row])
    first = tmp_path / "a" / "probe.jsonl"
    second = tmp_path / "b" / "probe.jsonl"
    figures, _ = measure("vlm", "composition", first, "--probe", second)
    assert list(figures) == [str(first), str(second)]


def test_suites_of_the_command_are_those_that_there_are():
    assert set(SUITES) == set(suites._MEASURE)


@pytest.mark.parametrize("match, other, value", [("yes", 0.9, 1.0), ("yes", 0.1, 0.0), ("caption", 0.9, 1.0)])
def test_a_probe_of_a_file_is_scored_by_the_answers(match, other, value, tmp_path, monkeypatch, measure):
    """Winoground through the whole command, with the losses of a constructed model: 0.1 for (yes to) the right
    caption; `other` is that of the other one. A tie is wrong. A limit draws whole pairs."""
    Image.new("RGB", (8, 6), "blue").save(tmp_path / "p.png")
    Image.new("RGB", (8, 6), "red").save(tmp_path / "q.png")
    row = {"image_0": "p.png", "image_1": "q.png", "caption_0": "a p", "caption_1": "a q", "collapsed_tag": "Object"}
    probe = write_lines(tmp_path / "probe.jsonl", [{**row, "id": number} for number in range(4)])

    def losses(settings, probe, task, rows, given):
        found = {}
        for row in rows:
            own = f"a {row['image_id']}" in row["text"] + row["answers"][0]
            loss = 0.1 if own else other
            if row["answers"] == ["no"]:
                loss = 0.5
            found[row["example_id"]] = {"answers_loss": loss}
        return found

    monkeypatch.setattr(suites, "_score", losses)
    figures, _ = measure("vlm", "composition", probe, "--match", match, "--limit", 3)
    assert [*figures["probe.jsonl"]] == ["text", "image", "group"]
    for number in figures["probe.jsonl"].values():
        assert number["value"] == value
        assert number["count"] == 3


COLOURS = {"red": (200, 0, 0), "blue": (0, 0, 200), "green": (0, 160, 0), "white": (240, 240, 240)}


@pytest.mark.parametrize("sees", [True, False])
def test_evidence_is_kept_masked_and_replaced(sees, files, tmp_path, monkeypatch, measure):
    """A constructed model that reads the colour at the evidence of the picture that it is given, or knows answers by
    heart; its attention is on the evidence."""
    rows = []
    for name, colour in COLOURS.items():
        picture = Image.new("RGB", (20, 10), (90, 90, 90))
        picture.paste(colour, (4, 2, 12, 8))
        picture.save(tmp_path / f"{name}.png")
        phrase = {"text": "the square", "boxes": [[0.2, 0.2, 0.6, 0.8]]}
        row = {"text": "What color is the square?", "answer": name, "phrases": [phrase]}
        rows.append({"image": f"{name}.png", **row})
    probe = write_lines(tmp_path / "probe.jsonl", rows)
    names = {colour: name for name, colour in COLOURS.items()}

    def answer(settings, probe, task, asked, given, heads):
        found = {}
        for row in asked:
            colour = Image.open(f"{probe.images}/{row['file_name']}").convert("RGB").getpixel((8, 5))
            text = names.get(colour, "nothing") if sees else row["answers"][0]
            measured = {"generated": text, "heads_on_gold": [0.0, 1.0], "heads_chance": 0.25}
            found[row["example_id"]] = {**row, **measured}
        return found

    monkeypatch.setattr(suites, "_score", answer)
    card = tmp_path / "README.md"
    card.write_text(evaluate_suite.PROBES.place)
    more = () if sees else ("--before", files / "vlm", "--card", tmp_path)
    figures, _ = measure("vlm", "evidence", probe, *more)
    values = {name: number["value"] for name, number in figures["probe.jsonl"].items()}
    if not sees:  # it is compared with itself
        assert values["accuracy (before)"] == 1
        assert values["accuracy (change)"] == 0
        assert "| 100.0% | +0.0% (+0.0% to +0.0%) |" in card.read_text()
    assert values["accuracy"] == values["accuracy, kept"] == 1.0
    assert values["accuracy, masked"] == values["accuracy, replaced"] == 1.0 - sees
    assert values["evidence_score"] == sees


def test_evidence_of_gqa():
    """Words of the question are phrases; evidence is also what the full answer means, in a box."""
    text = "Is the red car, or the bus, large?"
    question = {"example_id": "07", "image_id": "n5", "text": text, "answer": "car"}
    left = [0, 0, 0.5, 0.5]
    right = [0.5, 0, 1, 1]
    marks = [("question", "2:4", left), ("question", "6", right), ("fullAnswer", "1", left)]
    marks += [("answer", "0", [0, 0, 1, 1]), ("question", "1", [])]
    annotations = [{"part": part, "tokens": tokens, "object": "1", "box": box} for part, tokens, box in marks]
    [row] = suites.gqa_evidence(with_phrases({**question, "annotations": annotations}))
    phrases = [text[phrase["start"] : phrase["end"]] for phrase in row["phrases"]]
    assert phrases == ["red car", "bus"]
    assert row["boxes"] == [left, right, left]
    assert not list(suites.gqa_evidence(with_phrases({**question, "annotations": []})))


def test_options_of_a_choice_are_asked(image, tmp_path):
    row = {"image": "p.png", "text": "Which is it?", "answer": "B", "multi-choice options": "A. a dog B. a cat"}
    row["phrases"] = [{"text": "it", "start": 9, "end": 11, "boxes": [[0.1, 0.1, 0.5, 0.5]]}]
    probe = suites.open_probe("evidence", str(write_lines(tmp_path / "probe.jsonl", [row])))
    assert probe.rows["text"][:] == ["Which is it?\nA. a dog B. a cat"]


def test_pictures_of_evidence():
    pixels = np.random.default_rng(0).integers(0, 256, (10, 20, 3), dtype=np.uint8)
    views = picture_views(Image.fromarray(pixels), [[0.2, 0.3, 0.62, 0.8]], Image.new("RGB", (7, 5), (9, 9, 9)))
    inside = np.zeros((10, 20, 1), dtype=bool)
    inside[3:8, 4:13] = True
    mean = pixels.mean((0, 1)).round()
    assert_array_equal(views["kept"], np.where(inside, pixels, mean))
    assert_array_equal(views["masked"], np.where(inside, mean, pixels))
    assert_array_equal(views["replaced"], np.where(inside, 9, pixels))


def test_regions_of_evidence(tmp_path):
    boxes = np.array([[0, 0, 0.5, 0.5], [0.1, 0.1, 0.3, 0.3], [0.6, 0.6, 1, 1]], dtype=np.float32)
    ones = np.ones((3, 2), dtype=np.float16)
    table = {"a": Regions("a", 10, 10, boxes, ones), "b": Regions("b", 10, 10, boxes, 2 * ones)}
    rows = [{"image_id": name, "boxes": [[0, 0, 0.4, 0.4], [0.9, 0, 1, 0.1]]} for name in table]
    write_regions(rows, str(tmp_path), table, 0)
    written = RegionTable.open(tmp_path)
    # Of the first region 16 of 25 parts are evidence.
    expected = {"whole": [1, 1, 1], "kept": [1, 1, 0], "masked": [0, 0, 1], "replaced": [2, 2, 1]}
    for view, features in expected.items():
        assert written[f"0_{view}"].features[:, 0].tolist() == features


def test_another_picture_is_drawn_for_each():
    with pytest.raises(ValueError, match="several pictures"):
        draw_others(["a", "a"], 0)
    names = "aabbc"
    for own, other in zip(names, draw_others([*names], 0), strict=True):
        assert names[other] != own


@pytest.mark.parametrize(
    "text, answer, alike",
    [("A", "A", True), ("(A) a dog", "A", True), ("a dog", "A", False), ("Apple", "A", False), ("Red.", "red", True)],
)
def test_answers(text, answer, alike):
    assert suites.answers_alike(text, answer) is alike


def write_amber(folder, questions, annotations):
    (folder / "query").mkdir()
    asked = [{"id": number, "image": "p.png", "query": text} for number, text in questions.items()]
    (folder / "query" / "query_all.json").write_text(json.dumps(asked))
    (folder / "annotations.json").write_text(json.dumps(annotations))


def test_amber_counts_inventions(image, tmp_path, measure):
    yes = {"id": 5, "type": "relation", "truth": "yes", "hallu": []}
    no = {"id": 6, "type": "discriminative-attribute-state", "truth": "no", "hallu": []}
    write_amber(tmp_path, {5: "Is there a x in the image?", 6: "Is there a y in the image?"}, [yes, no])
    [figures] = measure("vlm", "hallucination", tmp_path)[0].values()
    values = {name: number["value"] for name, number in figures.items()}
    # Random weights say no word that is a no, so they find no invention.
    assert values["accuracy"] == 0.5
    assert values["recall"] == 0
    assert values["yes_share"] == 1
    assert values["accuracy, relation"] == 1.0
    assert values["accuracy, attribute-state"] == 0.0
    assert figures["f1, attribute-state"]["count"] == 1


def test_amber_reads_descriptions(tmp_path, monkeypatch, measure):
    """Through the whole command; nouns and vectors are stubs. Without its authors' tools a line says so."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    Image.new("RGB", (8, 6)).save(pictures / "p.png")
    about = [{"id": number, "type": "generative", "truth": ["dog"], "hallu": ["cat"]} for number in (1, 2)]
    about.append({"id": 5, "type": "relation", "truth": "yes", "hallu": []})
    describe = "Describe this image."
    write_amber(tmp_path, {1: describe, 2: describe, 5: "Is there a dog in the image?"}, about)
    relation = tmp_path / "relation.json"
    relation.write_text('{"dog": ["puppy"], "cat": []}')
    (tmp_path / "safe_words.txt").write_text("sign\nlight")
    monkeypatch.setitem(sys.modules, "nltk", None)
    given = ("vlm", "hallucination", tmp_path, "--images", pictures)
    figures, warnings = measure(*given)
    assert "2 free descriptions are left out" in warnings
    assert "chair" not in str(figures)

    monkeypatch.setattr(suites, "load_word_tools", lambda: (lambda text: ["puppy", "cat", "cat"], str.__eq__))
    [figures] = measure(*given)[0].values()
    expected = {"chair": 2 / 3, "cover": 1, "hal": 1, "cog": 1}
    for name, value in expected.items():
        assert figures[name]["value"] == pytest.approx(value)
        assert figures[name]["count"] == 2
    [figures] = measure(*given, "--limit", 1)[0].values()
    assert figures["chair"]["count"] == 1

    for spoil in (lambda: relation.write_text("[]"), relation.unlink):
        spoil()  # known before anything is described, and other numbers are not lost
        figures, warnings = measure(*given)
        assert "left out" in warnings
        assert "relation.json" in warnings
        assert "accuracy" in str(figures)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--suite grounding", "--probe"),
        ("--task vqa --data-dir SCENES --before nothing", "--before"),
        ("--suite evidence --probe absent.jsonl --before nothing", "error: model.source nothing"),
        ("--suite grounding --probe SCENES --task vqa", "--task"),
        ("--suite grounding --probe SCENES --data-dir SCENES", "--data-dir"),
        ("--suite grounding --probe nothing.jsonl", "nothing.jsonl"),
        ("--suite composition --probe SCENES --split other", "other"),
        ("--suite composition --probe STATEMENTS --match caption", "--match"),
    ],
)
def test_mistakes(arguments, message, files, image, tmp_path, capsys):
    row = {"image": "p.png", "caption": "it is so", "label": 0, "relation": "under"}
    statements = write_lines(tmp_path / "vsr.jsonl", [row])
    named = {"SCENES": str(files / "scenes"), "STATEMENTS": str(statements)}
    given = [named.get(word, word) for word in arguments.split()]
    assert evaluate.main([str(files / "vlm"), *given]) == 2
    assert message in capsys.readouterr().err


def test_a_card_has_all_groups_and_no_numbers_of_another_model(tmp_path, capsys):
    """Models of two runs have one name, and one output folder by default; a probe may have a group `before`."""
    half = {"value": 0.5, "low": 0.25, "high": 0.75, "count": 8}
    figures = {"p": {"accuracy": half, "accuracy, before": half, "accuracy, after": half}}
    evaluate_suite.write(figures, suites.Settings("one/direct", "composition"), ["p.jsonl"], tmp_path)
    evaluate_suite.write(figures, suites.Settings("other/direct", "evidence"), ["p.jsonl"], tmp_path)
    text = evaluate_suite.section(tmp_path, "./one/direct/")
    assert "### Composition" in text
    assert "### Evidence" not in text
    assert "| accuracy, before |" in text
    assert "change" not in text
    warning = "suite_evidence.json: left out of the card, since its numbers are of other/direct"
    assert warning in capsys.readouterr().err


def test_the_hub_form_of_probes_on_the_hub(tmp_path):
    half = {"value": 0.5, "low": 0.25, "high": 0.75, "count": 8}
    figures = {"org/probe": {"accuracy, left of": half}, "own": {"accuracy": half}}
    settings = suites.Settings("model", "composition")
    evaluate_suite.write(figures, settings, ["org/probe", "own.jsonl"], tmp_path)
    [entry] = yaml.safe_load((tmp_path / ".eval_results" / "composition.yaml").read_text())
    assert entry["dataset"] == {"id": "org/probe", "task_id": "composition_accuracy_left_of"}
    assert entry["value"] == 0.5
    assert "25.0% to 75.0%" in entry["notes"]


def content_words(text):
    return sorted(word for word in text.lower().split() if word not in ("a", "an"))


def test_foils_of_scenes_are_false_and_differ_by_an_exchange(files):
    rows = list(grounded_rows(scene_probe(files / "scenes", "composition")))
    assert {row["group"] for row in rows} == {"colours", "relations"}
    for row in rows:
        true, foil = row["captions"]
        assert true != foil
        if row["group"] == "colours":
            assert content_words(true) == content_words(foil)
    settings = json.loads((files / "scenes" / "scenes.json").read_text())
    record = scene_record(settings["seed"], 0, settings["images"])
    for caption in record.related_captions:
        assert caption_holds(record.scene, caption)
    assert list(foils(record, random.Random(0)))


def test_evidence_of_scenes_is_the_box_of_the_named_object(files):
    rows = list(grounded_rows(scene_probe(files / "scenes", "evidence")))
    assert rows
    for row in rows:
        assert row["phrases"][0]["text"] in row["text"]
        assert row["answer"]
