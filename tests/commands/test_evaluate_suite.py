# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention evaluate --suite`: every suite on scenes and on files, for region models and for a decoder."""

import json
import random
import shutil
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import yaml
from PIL import Image
from transformers import pipeline, set_seed

from grounded_attention import grounded_rows
from grounded_attention.commands import evaluate, evaluate_suite
from grounded_attention.commands.evaluate_options import SUITES
from grounded_attention.dataset_scripts.builders.gqa import with_phrases
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.dataset_scripts.scenes.captions import caption_holds
from grounded_attention.dataset_scripts.scenes.probes import evidence, foils, scene_probe
from grounded_attention.dataset_scripts.scenes.records import scene_record
from grounded_attention.dataset_scripts.scenes.shapes import paint
from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VLBertConfig
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments import suites
from grounded_attention.training.experiments.evidence import draw_others, picture_views, write_regions
from grounded_attention.training.experiments.models import make_processor
from grounded_attention.training.recipes.recipe import Model
from grounded_attention.utils.boxes import box_iou
from tests.helpers.tiny_scenes import tiny_scenes
from tests.helpers.tiny_vlm_recipes import save_llava

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"max_position_embeddings": 128, "region_classes": 80}
SHIPPED = Path(suites.__file__).parents[2] / "space" / "models" / "vlm" / "direct"
HEADS = {
    "grounding": "referring_expressions",
    "composition": "pretraining",
    "hallucination": "vqa",
    "evidence": "vqa",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suites")
    cache, datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE, folder / "cache"
    scenes = tiny_scenes(folder / "scenes")
    set_seed(0)
    save_llava(scenes / "vocab.txt", folder / "vlm")
    processor = make_processor(Model(tokenizer=str(scenes / "vocab.txt")))
    more = {"vqa": {"answers": ["yes", "no", "red"]}, "pretraining": {"relationship_head": True}}
    for name in HEADS.values():
        set_seed(0)
        config = VLBertConfig(vocab_size=len(processor.tokenizer), **SIZES, **more.get(name, {}))
        FAMILIES["vl_bert"].heads[TASKS[name].head](config).save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
    yield folder
    datasets.config.HF_DATASETS_CACHE = cache


def run(files, model, suite, *arguments):
    regions = [] if model == "vlm" else ["--regions", str(files / "scenes" / "regions")]
    arguments = ["--suite", suite, *regions, *map(str, arguments)]
    return evaluate.main([str(files / model), *arguments])


DRAWN = {"grounding": ["Ref-L4"], "composition": ["What'sUp", "VSR"], "hallucination": ["AMBER"], "evidence": []}


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("kind", ["vlm", "regions"])
def test_scenes_have_a_version_of_each(kind, suite, files, tmp_path, capsys):
    model = "vlm" if kind == "vlm" else HEADS[suite]
    assert run(files, model, suite, "--probe", files / "scenes", "--limit", 3, "--output", tmp_path, "--json") == 0
    seen = capsys.readouterr()
    found = json.loads((tmp_path / f"suite_{suite}.json").read_text())
    figures = json.loads(seen.out)
    assert found["figures"] == figures
    assert found["suite"] == suite
    assert list(figures) == ["scenes", *(f"scenes, {name}" for name in DRAWN[suite])]
    assert ("Winoground" in seen.err) == (suite == "composition")  # two test images have no such pair
    assert ("evidence_score" in figures["scenes"]) == (suite == "evidence")
    for name, numbers in figures.items():
        assert 1 <= numbers["accuracy"]["count"] <= 3
        assert name != "scenes" or numbers["accuracy"]["count"] == 3
        assert ("chair" in numbers) == (kind == "vlm" and name.endswith("AMBER"))
        assert all(each["low"] is None or each["low"] <= each["value"] <= each["high"] for each in numbers.values())
    assert not (tmp_path / ".eval_results").exists()


def test_boxes_of_heads_are_those_of_ground(files, tmp_path, capsys):
    """A decoder beside `heads.json` is also measured by its heads; one that writes no box, by these alone."""
    shutil.copytree(files / "vlm", tmp_path / "vlm")
    pipe = pipeline("visual-grounding", model=str(tmp_path / "vlm"), heads=[(0, 1)])
    sizes = pipe.model.config.text_config
    chosen = {"format": 2, "chosen": [{"layer": 0, "head": 1}], "heads": sizes.num_attention_heads}
    chosen |= {"layers": [*map(str, range(sizes.num_hidden_layers))], "about": {"word": "mean", "instruction": None}}
    (tmp_path / "vlm" / "heads.json").write_text(json.dumps(chosen))
    given = ("--probe", files / "scenes", "--output", tmp_path / "out", "--json", "--suite", "grounding")
    assert evaluate.main([str(tmp_path / "vlm"), *map(str, given)]) == 0
    figures = json.loads(capsys.readouterr().out)["scenes, Ref-L4"]
    assert "answered" in figures
    assert "accuracy" not in figures
    centres = []
    overlaps = []
    for row in grounded_rows(scene_probe(files / "scenes", "reviewed")):
        [found] = pipe({"image": row["image"], "caption": row["text"]})
        sides = np.tile(row["image"].size, 2)
        gold = np.array(row["phrases"][0]["boxes"][0])
        box = np.array([*found["box"].values()]) / sides
        overlaps.append(float(box_iou([box], [gold])[0, 0]))
        x, y = (box[:2] + box[2:]) / 2
        centres.append(gold[0] <= x <= gold[2] and gold[1] <= y <= gold[3])
    assert figures["iou, heads"]["value"] == pytest.approx(np.mean(overlaps), abs=0.01)
    assert figures["center, heads"]["value"] == pytest.approx(np.mean(centres), abs=0.01)
    assert evaluate.main([str(tmp_path / "vlm"), *map(str, given), "--text-only"]) == 0
    assert "heads" not in capsys.readouterr().out  # which look at pictures


def test_tables_of_an_output_folder_are_put_into_a_card(files, tmp_path):
    card = tmp_path / "README.md"
    card.write_text(f"# A model\n\n{evaluate_suite.PROBES.place}\n\n## Licence\n")
    for suite in ("evidence", "hallucination", "evidence"):
        given = ("--probe", files / "scenes", "--limit", 4, "--output", tmp_path / "out", "--card", tmp_path)
        assert run(files, "vlm", suite, *given) == 0
    text = card.read_text()
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# A model", "## Probes", "### Evidence", "### Hallucination", "## Licence",
    ]  # fmt: skip
    value = json.loads((tmp_path / "out" / "suite_evidence.json").read_text())["figures"]["scenes"]["evidence_score"]
    [line] = [each for each in text.splitlines() if "| evidence score" in each]
    assert f"{value['value']:.1%}" in line
    assert str(value["count"]) in line


@pytest.mark.parametrize("model", ["vlm", "vqa"])
def test_texts_alone_depend_on_no_evidence(model, files, tmp_path, capsys):
    given = (
        "--suite",
        "evidence",
        "--probe",
        files / "scenes",
        "--output",
        tmp_path,
        "--text-only",
        "--json",
    )
    assert evaluate.main([*map(str, (files / model, *given))]) == 0
    figures = json.loads(capsys.readouterr().out)["scenes"]
    assert figures["dependence"]["value"] == figures["dependence"]["high"] == 0.0
    assert figures["accuracy"] == figures["accuracy, masked"]
    assert "evidence_score" not in figures


def test_a_supervised_model_answers_from_what_it_looks_at(tmp_path, capsys):
    """The shipped decoder, on scenes that it has not seen; the same one without pictures gets nothing."""
    rows = []
    for number in range(12):
        record = scene_record(77, number, 12)
        paint(record.scene).save(tmp_path / f"{number}.jpg")
        rows += [{"image": f"{number}.jpg", **row} for row in evidence(record, random.Random(number))]
    (tmp_path / "probe.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [str(SHIPPED), "--suite", "evidence", "--probe", str(tmp_path / "probe.jsonl"), "--json"]
    found = []
    for more in ((), ("--text-only",)):
        assert evaluate.main([*given, "--output", str(tmp_path / "out"), *more]) == 0
        found.append(json.loads(capsys.readouterr().out)["probe.jsonl"])
    seeing, reading = found
    assert seeing["evidence_score"]["low"] > 0.1
    assert seeing["accuracy"]["low"] > 0.4
    assert reading["accuracy"]["value"] < seeing["accuracy"]["low"]
    assert reading["dependence"]["value"] == 0


def test_columns_and_boxes_of_unknown_probes_are_told(files, tmp_path, capsys):
    Image.new("RGB", (8, 6)).save(tmp_path / "p.png")
    row = {"picture": "p.png", "says": "the star", "where": [1, 1, 3, 4]}
    (tmp_path / "probe.jsonl").write_text(json.dumps(row) + "\n")
    told = ("--columns", "image=picture", "text=says", "boxes=where", "--boxes", "xywh pixels", "--json")
    given = ("--probe", tmp_path / "probe.jsonl", "--output", tmp_path / "out")
    assert run(files, "vlm", "grounding", *given, *told) == 0
    assert json.loads(capsys.readouterr().out)["probe.jsonl"]["accuracy"]["count"] == 1


def test_a_model_of_regions_is_right_where_the_only_region_is_the_box(files, tmp_path, capsys):
    """Or the whole image, which overlaps it."""
    Image.new("RGB", (16, 40)).save(tmp_path / "p.png")
    row = {"image": "p.png", "image_id": "p", "caption": "the star", "bbox": [1, 1, 14, 38], "ori_category_id": "1"}
    lines = [json.dumps({**row, "caption_quality": quality}) + "\n" for quality in (0, 1, 1)]
    (tmp_path / "probe.jsonl").write_text("".join(lines))
    with RegionTableWriter(tmp_path / "table", {"source": "test"}) as writer:
        box = np.array([[1 / 16, 1 / 40, 15 / 16, 39 / 40]], np.float32)
        features = np.ones((1, 2048), np.float16)
        writer.write(Regions("p", 16, 40, box, features))
    given = ("--regions", tmp_path / "table", "--boxes", "xywh pixels", "--json", "--output", tmp_path / "out")
    assert run(files, "referring_expressions", "grounding", "--probe", tmp_path / "probe.jsonl", *given) == 0
    figures = json.loads(capsys.readouterr().out)["probe.jsonl"]
    assert figures["accuracy"]["value"] == 1.0
    assert figures["iou"]["value"] > 0.8
    assert figures["iou, reviewed"]["count"] == 2  # quality 0 is a wrong caption


def test_the_test_split_is_measured_unless_another_is_named(files, tmp_path):
    Image.new("RGB", (8, 6)).save(tmp_path / "p.png")
    for split in ("train", "test"):
        row = {"image": "p.png", "caption": f"a {split}", "negative_caption": "a foil"}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
    for split, expected in ((None, "test"), ("train", "train")):
        probe = suites.open_probe("composition", str(tmp_path), split=split)
        assert probe.rows["captions"][:] == [[f"a {expected}", "a foil"]]
    with pytest.raises(ValueError, match="no split other"):
        suites.open_probe("composition", str(tmp_path), split="other")


def test_files_of_one_name_are_told_apart(files, tmp_path, capsys):
    Image.new("RGB", (8, 6)).save(tmp_path / "p.png")
    sources = [tmp_path / name / "probe.jsonl" for name in "ab"]
    for source in sources:
        source.parent.mkdir()
        row = {"image": "../p.png", "caption": "the star", "negative_caption": "the ring"}
        source.write_text(json.dumps(row) + "\n")
    given = [each for source in sources for each in ("--probe", source)]
    assert run(files, "vlm", "composition", *given, "--json", "--output", tmp_path / "out") == 0
    assert list(json.loads(capsys.readouterr().out)) == [*map(str, sources)]


def test_suites_of_the_command_are_those_that_there_are():
    assert set(SUITES) == set(suites._MEASURE)


@pytest.mark.parametrize(("match", "other", "value"), [("yes", 0.9, 1.0), ("yes", 0.1, 0.0), ("caption", 0.9, 1.0)])
def test_a_probe_of_a_file_is_scored_by_the_answers(match, other, value, files, tmp_path, monkeypatch, capsys):
    """Winoground through the whole command, with the losses of a constructed model: 0.1 for (yes to) the right
    caption; `other` is that of the other one. A tie is wrong. A limit draws whole pairs."""
    for name, colour in (("p", "blue"), ("q", "red")):
        Image.new("RGB", (8, 6), colour).save(tmp_path / f"{name}.png")
    row = {"image_0": "p.png", "image_1": "q.png", "caption_0": "a p", "caption_1": "a q", "collapsed_tag": "Object"}
    (tmp_path / "probe.jsonl").write_text("".join(json.dumps({**row, "id": n}) + "\n" for n in range(4)))

    def losses(settings, probe, task, rows, given):
        right = {row["example_id"]: f"a {row['image_id']}" in row["text"] + row["answers"][0] for row in rows}
        yes = {key: 0.1 if own else other for key, own in right.items()}
        return {
            row["example_id"]: {"answers_loss": 0.5 if row["answers"] == ["no"] else yes[row["example_id"]]}
            for row in rows
        }

    monkeypatch.setattr(suites, "_score", losses)
    given = ("--probe", tmp_path / "probe.jsonl", "--match", match, "--json", "--limit", 3)
    assert run(files, "vlm", "composition", *given, "--output", tmp_path / "out") == 0
    figures = json.loads(capsys.readouterr().out)["probe.jsonl"]
    found = {name: (each["value"], each["count"]) for name, each in figures.items()}
    assert found == dict.fromkeys(("text", "image", "group"), (value, 3))


COLOURS = {"red": (200, 0, 0), "blue": (0, 0, 200), "green": (0, 160, 0), "white": (240, 240, 240)}


@pytest.mark.parametrize("sees", [True, False])
def test_evidence_is_kept_masked_and_replaced(sees, files, tmp_path, monkeypatch, capsys):
    """A constructed model that reads the colour at the evidence of the picture that it is given, or knows answers by
    heart; its attention is on the evidence."""
    rows = []
    for number, (name, colour) in enumerate(COLOURS.items()):
        picture = Image.new("RGB", (20, 10), (90, 90, 90))
        picture.paste(colour, (4, 2, 12, 8))
        picture.save(tmp_path / f"{number}.png")
        phrase = {"text": "the square", "boxes": [[0.2, 0.2, 0.6, 0.8]]}
        rows.append(
            {"image": f"{number}.png", "text": "What color is the square?", "answer": name, "phrases": [phrase]}
        )
    (tmp_path / "probe.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def answer(settings, probe, task, asked, given, heads):
        found = {}
        for row in asked:
            at = Image.open(f"{probe.images}/{row['file_name']}").convert("RGB").getpixel((8, 5))
            read = next((name for name, colour in COLOURS.items() if colour == at), "nothing")
            known = {**row, "generated": read if sees else row["answers"][0]}
            found[row["example_id"]] = {**known, "heads_on_gold": [0.0, 1.0], "heads_chance": 0.25}
        return found

    monkeypatch.setattr(suites, "_score", answer)
    (tmp_path / "README.md").write_text(evaluate_suite.PROBES.place)
    more = ("--before", files / "vlm", "--card", tmp_path)
    given = ("--probe", tmp_path / "probe.jsonl", "--json", "--output", tmp_path, *(() if sees else more))
    assert run(files, "vlm", "evidence", *given) == 0
    figures = {name: each["value"] for name, each in json.loads(capsys.readouterr().out)["probe.jsonl"].items()}
    if not sees:  # it is compared with itself
        assert figures["accuracy (before)"] == 1
        assert figures["accuracy (change)"] == 0
        assert "| 100.0% | +0.0% (+0.0% to +0.0%) |" in (tmp_path / "README.md").read_text()
    views = [figures[name] for name in ("accuracy", "accuracy, kept", "accuracy, masked", "accuracy, replaced")]
    assert views == ([1.0, 1.0, 0.0, 0.0] if sees else [1.0] * 4)
    assert figures["evidence_score"] == float(sees)


def test_evidence_of_gqa():
    """Words of the question are phrases; evidence is also what the full answer means, in a box."""
    question = {
        "example_id": "07",
        "image_id": "n5",
        "text": "Is the red car, or the bus, large?",
        "answer": "car",
    }
    marks = [
        ("question", "2:4", [0, 0, 0.5, 0.5]),
        ("question", "6", [0.5, 0, 1, 1]),
        ("fullAnswer", "1", [0, 0, 0.5, 0.5]),
    ]
    marks += [("answer", "0", [0, 0, 1, 1]), ("question", "1", [])]
    annotations = [{"part": part, "tokens": tokens, "object": "1", "box": box} for part, tokens, box in marks]
    [row] = suites.gqa_evidence(with_phrases({**question, "annotations": annotations}))
    assert [question["text"][each["start"] : each["end"]] for each in row["phrases"]] == ["red car", "bus"]
    assert row["boxes"] == [box for _, _, box in marks[:3]]
    assert not list(suites.gqa_evidence(with_phrases({**question, "annotations": []})))


def test_options_of_a_choice_are_asked(tmp_path):
    Image.new("RGB", (8, 6)).save(tmp_path / "p.png")
    row = {"image": "p.png", "text": "Which is it?", "answer": "B", "multi-choice options": "A. a dog B. a cat"}
    row["phrases"] = [{"text": "it", "start": 9, "end": 11, "boxes": [[0.1, 0.1, 0.5, 0.5]]}]
    (tmp_path / "probe.jsonl").write_text(json.dumps(row))
    assert suites.open_probe("evidence", str(tmp_path / "probe.jsonl")).rows["text"][:] == [
        "Which is it?\nA. a dog B. a cat"
    ]


def test_pictures_of_evidence():
    pixels = np.random.default_rng(0).integers(0, 256, (10, 20, 3), dtype=np.uint8)
    made = picture_views(Image.fromarray(pixels), [[0.2, 0.3, 0.62, 0.8]], Image.new("RGB", (7, 5), (9, 9, 9)))
    inside = np.zeros((10, 20, 1), dtype=bool)
    mean = pixels.reshape(-1, 3).mean(0).round()
    inside[3:8, 4:13] = True
    np.testing.assert_array_equal(made["kept"], np.where(inside, pixels, mean))
    np.testing.assert_array_equal(made["masked"], np.where(inside, mean, pixels))
    np.testing.assert_array_equal(made["replaced"], np.where(inside, 9, pixels))


def test_regions_of_evidence(tmp_path):
    boxes = np.array([[0, 0, 0.5, 0.5], [0.1, 0.1, 0.3, 0.3], [0.6, 0.6, 1, 1]], dtype=np.float32)
    table = {
        name: Regions(name, 10, 10, boxes, np.full((3, 2), n, dtype=np.float16)) for n, name in ((1, "a"), (2, "b"))
    }
    rows = [{"image_id": name, "boxes": [[0, 0, 0.4, 0.4], [0.9, 0, 1, 0.1]]} for name in table]
    write_regions(rows, str(tmp_path), table, 0)
    made = RegionTable.open(tmp_path)
    # Of the first region 16 of 25 parts are evidence.
    expected = {"whole": [1, 1, 1], "kept": [1, 1, 0], "masked": [0, 0, 1], "replaced": [2, 2, 1]}
    assert {view: made[f"0_{view}"].features[:, 0].tolist() for view in expected} == expected
    with pytest.raises(ValueError, match="several pictures"):
        draw_others(["a", "a"], 0)
    assert all(names[k] != names[i] for names in [list("aabbc")] for i, k in enumerate(draw_others(names, 0)))


@pytest.mark.parametrize(
    ("said", "answer", "alike"),
    [("A", "A", True), ("(A) a dog", "A", True), ("a dog", "A", False), ("Apple", "A", False), ("Red.", "red", True)],
)
def test_answers(said, answer, alike):
    assert suites.answers_alike(said, answer) is alike


def test_amber_counts_inventions(files, tmp_path, capsys):
    Image.new("RGB", (8, 6)).save(tmp_path / "p.png")
    (tmp_path / "query").mkdir()
    asked = [
        {"id": n, "image": "p.png", "query": f"Is there a {word} in the image?"} for n, word in ((5, "x"), (6, "y"))
    ]
    (tmp_path / "query" / "query_all.json").write_text(json.dumps(asked))
    kinds = ((5, "relation", "yes"), (6, "discriminative-attribute-state", "no"))
    about = [{"id": n, "type": kind, "truth": truth, "hallu": []} for n, kind, truth in kinds]
    (tmp_path / "annotations.json").write_text(json.dumps(about))
    assert run(files, "vlm", "hallucination", "--probe", tmp_path, "--json", "--output", tmp_path / "out") == 0
    [figures] = json.loads(capsys.readouterr().out).values()
    # Random weights say no word that is a no, so they find no invention.
    assert (figures["accuracy"]["value"], figures["recall"]["value"], figures["yes_share"]["value"]) == (0.5, 0, 1)
    assert (figures["accuracy, relation"]["value"], figures["f1, attribute-state"]["count"]) == (1.0, 1)
    assert figures["accuracy, attribute-state"]["value"] == 0.0


def test_amber_reads_descriptions(files, tmp_path, monkeypatch, capsys):
    """Through the whole command; nouns and vectors are stubs. Without its authors' tools a line says so."""
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (8, 6)).save(tmp_path / "pictures" / "p.png")
    (tmp_path / "query").mkdir()
    asked = [{"id": n, "image": "p.png", "query": "Describe this image."} for n in (1, 2)]
    asked.append({"id": 5, "image": "p.png", "query": "Is there a dog in the image?"})
    (tmp_path / "query" / "query_all.json").write_text(json.dumps(asked))
    about = [{"id": n, "type": "generative", "truth": ["dog"], "hallu": ["cat"]} for n in (1, 2)]
    about.append({"id": 5, "type": "relation", "truth": "yes", "hallu": []})
    (tmp_path / "annotations.json").write_text(json.dumps(about))
    (tmp_path / "relation.json").write_text(json.dumps({"dog": ["puppy"], "cat": []}))
    (tmp_path / "safe_words.txt").write_text("sign\nlight")
    told = ("--images", tmp_path / "pictures", "--json", "--output", tmp_path / "out")
    given = ("--probe", tmp_path, *told)
    monkeypatch.setitem(sys.modules, "nltk", None)
    assert run(files, "vlm", "hallucination", *given) == 0
    seen = capsys.readouterr()
    assert "2 free descriptions are left out" in seen.err
    assert "chair" not in seen.out
    monkeypatch.setattr(suites, "load_word_tools", lambda: (lambda text: ["puppy", "cat", "cat"], str.__eq__))
    assert run(files, "vlm", "hallucination", *given) == 0
    [figures] = json.loads(capsys.readouterr().out).values()
    found = {name: (figures[name]["value"], figures[name]["count"]) for name in ("chair", "cover", "hal", "cog")}
    assert found == {"chair": (pytest.approx(2 / 3), 2), "cover": (1, 2), "hal": (1, 2), "cog": (1, 2)}
    assert run(files, "vlm", "hallucination", *given, "--limit", 1) == 0
    assert [each["chair"]["count"] for each in json.loads(capsys.readouterr().out).values()] == [1]
    for content in ("[]", None):  # known before anything is described, and other numbers are not lost
        (tmp_path / "relation.json").unlink() if content is None else (tmp_path / "relation.json").write_text(content)
        assert run(files, "vlm", "hallucination", *given) == 0
        seen = capsys.readouterr()
        assert "left out" in seen.err
        assert "relation.json" in seen.err
        assert "accuracy" in seen.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--suite", "grounding"), "--probe"),
        (("--task", "vqa", "--data-dir", "SCENES", "--before", "nothing"), "--before"),
        (("--suite", "evidence", "--probe", "absent.jsonl", "--before", "nothing"), "error: model.source nothing"),
        (("--suite", "grounding", "--probe", "SCENES", "--task", "vqa"), "--task"),
        (("--suite", "grounding", "--probe", "SCENES", "--data-dir", "SCENES"), "--data-dir"),
        (("--suite", "grounding", "--probe", "nothing.jsonl"), "nothing.jsonl"),
        (("--suite", "composition", "--probe", "SCENES", "--split", "other"), "other"),
        (("--suite", "composition", "--probe", "STATEMENTS", "--match", "caption"), "--match"),
    ],
)
def test_mistakes(arguments, said, files, tmp_path, capsys):
    Image.new("RGB", (8, 6)).save(tmp_path / "p.png")
    statement = {"image": "p.png", "caption": "it is so", "label": 0, "relation": "under"}
    (tmp_path / "vsr.jsonl").write_text(json.dumps(statement))
    named = {"SCENES": files / "scenes", "STATEMENTS": tmp_path / "vsr.jsonl"}
    given = [str(named.get(each, each)) for each in arguments]
    assert evaluate.main([str(files / "vlm"), *given]) == 2
    assert said in capsys.readouterr().err


def test_a_card_has_all_groups_and_no_numbers_of_another_model(tmp_path, capsys):
    """Models of two runs have one name, and one output folder by default; a probe may have a group `before`."""
    half = {"value": 0.5, "low": 0.25, "high": 0.75, "count": 8}
    numbers = {f"accuracy{group}": half for group in ("", ", before", ", after")}
    for run_name, suite in (("one", "composition"), ("other", "evidence")):
        evaluate_suite.write({"p": numbers}, suites.Settings(f"{run_name}/direct", suite), ["p.jsonl"], tmp_path)
    text = evaluate_suite.section(tmp_path, "./one/direct/")
    assert "### Composition" in text
    assert "### Evidence" not in text
    assert "| accuracy, before |" in text
    assert "change" not in text
    assert (
        "suite_evidence.json: left out of the card, since its numbers are of other/direct" in capsys.readouterr().err
    )


def test_the_hub_form_of_probes_on_the_hub(tmp_path):
    found = {
        "org/probe": {"accuracy, left of": {"value": 0.5, "low": 0.25, "high": 0.75, "count": 8}},
        "own": {"accuracy": {"value": 1, "low": 1, "high": 1, "count": 2}},
    }
    settings = suites.Settings("model", "composition")
    evaluate_suite.write(found, settings, ["org/probe", "own.jsonl"], tmp_path)
    [entry] = yaml.safe_load((tmp_path / ".eval_results" / "composition.yaml").read_text())
    assert entry["dataset"] == {"id": "org/probe", "task_id": "composition_accuracy_left_of"}
    assert entry["value"] == 0.5
    assert "25.0% to 75.0%" in entry["notes"]


def test_foils_of_scenes_are_false_and_differ_by_an_exchange(files):
    told = json.loads((files / "scenes" / "scenes.json").read_text())
    rows = list(grounded_rows(scene_probe(files / "scenes", "composition")))
    assert {row["group"] for row in rows} == {"colours", "relations"}
    for row in rows:
        true, foil = (sorted(each.lower().split()) for each in row["captions"])
        if row["group"] == "colours":  # the same words, but for articles
            assert [w for w in true if w not in ("a", "an")] == [w for w in foil if w not in ("a", "an")]
        assert row["captions"][0] != row["captions"][1]
    record = scene_record(told["seed"], 0, told["images"])
    assert all(caption_holds(record.scene, each) for each in record.related_captions)
    assert list(foils(record, random.Random(0)))


def test_evidence_of_scenes_is_the_box_of_the_named_object(files):
    rows = list(grounded_rows(scene_probe(files / "scenes", "evidence")))
    assert rows
    assert all(row["phrases"][0]["text"] in row["text"] and row["answer"] for row in rows)
