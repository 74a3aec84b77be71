# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Recipes that read rows as people have them: rows of each task, splits, and regions that are made on first use."""

import json

import datasets
import numpy as np
import pytest
from PIL import Image

from grounded_attention.commands import evaluate, extract_regions, heads, pseudo_ground
from grounded_attention.commands.heads_run import OwnRows, Run, load_examples
from grounded_attention.commands.main import main
from grounded_attention.dataset_scripts.builders.row_forms import FORMS, OWN
from grounded_attention.dataset_scripts.builders.rows import Rows
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.families import FAMILIES
from grounded_attention.heads.table import HeadTable
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.checks import check
from grounded_attention.training.experiments.made_regions import _reached
from grounded_attention.training.experiments.prepared_data import built_rows, hold_out, prepare_data
from grounded_attention.training.recipes.recipe import Data, MadeRegions, Recipe, RecipeError
from tests.helpers.own_rows import BALL, CUBE, draw, write_rows
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_backbone import save_backbone
from tests.helpers.tiny_detectors import save_detector
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from tests.helpers.tiny_vlm_recipes import vlm_recipe


def built(source, form, cache, **options):
    builder = Rows(data_dir=str(source), form=form, cache_dir=str(cache), **options)
    builder.download_and_prepare()
    return builder, builder.as_dataset()


def heads_of(run, capsys):
    """What `heads --run` prints."""
    capsys.readouterr()
    assert heads.main(["--run", str(run), "--device", "cpu", "--json", "--explore", "1"]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_of_each_form_have_the_boxes_of_the_source(tmp_path):
    source = write_rows(tmp_path, answer="two")
    said = {"boxes": "xyxy pixels", "columns": {}}
    _, expressions = built(source, "refcoco", tmp_path / "cache", **said)
    rows = expressions["train"]
    assert len(rows) == 24
    assert rows[3]["text"] == "blue cube"
    sides = np.array([120 + 5, 90] * 2)
    assert np.allclose(np.array(rows[10]["phrases"][0]["boxes"][0]) * sides, [side + 5 for side in BALL], atol=1e-3)
    assert "/" + rows[10]["file_name"] == str(tmp_path / "5.png")
    assert rows[10]["image_id"] == "5"
    captions = built(source, "flickr30k_entities", tmp_path / "cache", **said)[1]["train"][5]
    assert [each["text"] for each in captions["phrases"]] == ["red ball", "blue cube"]
    assert np.allclose(np.array(captions["phrases"][1]["boxes"][0]) * sides, CUBE, atol=1e-3)
    asked = built(source, "vqa_v2", tmp_path / "cache", **said)[1]["train"][0]
    assert asked["text"] == "a red ball and a blue cube"
    assert asked["answers"] == ["two"] * 10


def test_conversations_keep_their_phrases_where_marks_of_pictures_go(tmp_path):
    draw(0).save(tmp_path / "a.png")
    turns = [("human", "<image>\nWhere is the red ball?"), ("gpt", "[0.1, 0.2, 0.4, 0.6]")]
    rows = [{"id": 1, "image": "a.png", "conversations": [{"from": who, "value": text} for who, text in turns]}]
    rows.append({"id": 2, "image": "a.png", "conversations": [{"from": "gpt", "value": "Hello."}]})
    (tmp_path / "talk.json").write_text(json.dumps(rows))
    builder, found = built(tmp_path / "talk.json", "llava_instruct", tmp_path / "cache", boxes="xyxy 0..1")
    (row,) = found["train"]
    (phrase,) = row["phrases"]
    text = row["messages"][phrase["sentence"]]["content"]
    assert [each["role"] for each in row["messages"]] == ["user", "assistant"]
    assert "<image>" not in str(row)
    assert text[phrase["start"] : phrase["end"]] == phrase["text"]
    assert "red ball" in phrase["text"]
    assert builder.report["train"]["rows that are no turns of user and assistant"] == 1


def test_pictures_inside_of_rows_are_written_once_and_read_again(tmp_path):
    picture = draw(0)
    picture.save(tmp_path / "a.png")
    inside = {"bytes": (tmp_path / "a.png").read_bytes(), "path": None}
    rows = [{"image": inside, "text": text, "bbox": [0.1, 0.2, 0.5, 0.6]} for text in ("a ball", "a red ball")]
    parquet = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(rows).to_parquet(parquet)
    _, found = built(parquet, "refcoco", tmp_path / "cache", boxes="xyxy 0..1")
    names = found["train"]["file_name"]
    assert len({*names}) == 1
    assert len({*found["train"]["image_id"]}) == 1
    assert np.array_equal(np.asarray(Image.open("/" + names[0]).convert("RGB")), np.asarray(picture))


def test_splits_are_those_of_the_source_or_drawn_by_images(tmp_path):
    for name in ("train", "testA"):
        write_rows(tmp_path / "in").rename(tmp_path / "in" / f"{name}.jsonl")
    options = {"boxes": "xyxy pixels"}
    _, found = built(tmp_path / "in" / "*.jsonl", "refcoco", tmp_path / "cache", **options)
    assert sorted(found) == ["testA", "train"]
    _, named = built(
        tmp_path / "in" / "*.jsonl", "refcoco", tmp_path / "cache", named_splits={"train": "testA"}, **options
    )
    assert [*named] == ["train"]
    splits = dict(found)
    said = hold_out(splits, seed=3)
    sides = [set(splits[name]["image_id"]) for name in ("train", "validation")]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 12
    assert sides[1] == {*said["validation"]}
    assert len(splits["train"]) + len(splits["validation"]) == 24
    again = dict(found)
    assert hold_out(again, seed=3) == said
    assert hold_out(dict(found), seed=4) != said


@pytest.mark.parametrize("detector", ["grid", "rows", "conditional_detr"])
def test_one_command_from_rows_to_a_trained_region_model(tmp_path, monkeypatch, capsys, detector):
    source = write_rows(tmp_path / "own")
    features = str(save_backbone(tmp_path / "features"))
    known = detector in ("grid", "rows")
    recipe = tiny_recipe(tiny_scenes(tmp_path / "scenes"), tmp_path / "run", methods=["none"])
    recipe |= {"task": "referring_expressions"}
    recipe["data"] = {"source": str(source), "boxes": "xyxy pixels"}
    recipe["data"]["regions"] = {
        "detector": detector if known else str(save_detector(detector, tmp_path / "detector")),
        "features": features,
        "folder": str(tmp_path / "table"),
    }
    recipe["model"]["family"] = "visualbert"
    del recipe["model"]["config"]["region_classes"]
    assert run_train(monkeypatch, tmp_path, recipe) == 0, capsys.readouterr()
    table = RegionTable.open(tmp_path / "table")
    assert len(table.ids) == 12
    if known:
        assert {len(table[each].boxes) for each in table.ids} == {45 if detector == "grid" else 2}
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert len(split["validation"]) == 1
    results = json.loads((tmp_path / "run" / "results.json").read_text())["methods"]["none"]
    if detector == "rows":
        found = heads_of(tmp_path / "run", capsys)
        assert (found["heads_chosen_on"], found["split"]) == ("train", "validation")
        counts = HeadTable.load(tmp_path / "run" / "heads" / "none").counts
        assert [*counts.image_ids] == split["validation"]
        assert counts.accuracy.max() <= 1
        figures = results["figures"]["validation"]
        assert (figures["expressions_upper_bound"], figures["expressions_chance"]) == (1, 0.5)
        evaluated = [str(tmp_path / "run" / "none"), "--json"]
        assert evaluate.main([*evaluated, "--output", str(tmp_path / "again")]) == 0
        again = json.loads(capsys.readouterr().out)["validation"]
        shared = {name: figures[name] for name in again if name in figures}
        assert len(shared) > 3
        assert {name: again[name] for name in shared} == pytest.approx(shared)
        assert "data:image" in (tmp_path / "again" / "report.html").read_text()
        given = ["--task", "referring_expressions", "--data", str(source), "--boxes", "xyxy pixels"]
        given += ["--regions", str(tmp_path / "table"), "--output", str(tmp_path / "train")]
        assert evaluate.main([*evaluated, *given, "--split", "train"]) == 0
        assert json.loads(capsys.readouterr().out)["train"]["expressions_upper_bound"] == 1
        assert evaluate.main([*evaluated, "--split", "train", "--limit", "2", "--output", str(tmp_path / "two")]) == 0
        assert json.loads(capsys.readouterr().out)["train"]["expressions_count"] == 2
        given.append("--split")
        for wrong in (
            [*given, "val"],
            [*given, "train", "--columns", "text=nothing"],
            ["--data", str(source)],
            ["--split", "test"],
            ["--text-only"],
        ):
            assert evaluate.main([*evaluated, *wrong]) == 2
            assert capsys.readouterr().err.startswith("error: ")
    if detector == "grid":  # again: nothing is extracted a second time
        monkeypatch.setattr("grounded_attention.processing.region_extraction.RegionExtractor.extract", None)
        assert run_train(monkeypatch, tmp_path, {**recipe, "output_dir": str(tmp_path / "again")}) == 0


def test_vision_language_models_read_the_pictures_of_rows(tmp_path, monkeypatch, capsys):
    source = write_rows(tmp_path / "own")
    scenes = tiny_scenes(tmp_path / "scenes")
    recipe = vlm_recipe(scenes, tmp_path / "run", methods=["direct"])
    recipe["data"] = {"source": str(source), "boxes": "xyxy pixels", "builder": "flickr30k_entities"}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    found = heads_of(tmp_path / "run", capsys)
    assert 0 <= found["methods"]["direct"]["best"][0]["accuracy"] <= 1
    source.write_text("".join(source.read_text().splitlines(keepends=True)[:-1]))
    assert heads.main(["--run", str(tmp_path / "run"), "--device", "cpu"]) == 2
    assert "other rows" in capsys.readouterr().err


def test_regions_and_labels_of_the_commands_join_a_recipe_of_the_same_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = write_rows(tmp_path / "own")
    given = ["--data", str(source), "--boxes", "xyxy pixels", "--json"]
    table = str(tmp_path / "regions")
    labels = str(tmp_path / "labels")
    assert extract_regions.main([*given, "--detector", "rows", "--features", "scenes", "--output", table]) == 0
    assert "xyxy pixels" in (printed := capsys.readouterr()).err and json.loads(printed.out)["images"] == 12
    label = [*given, "--grounder", "scenes", "--phrases", "given", "--output"]
    assert pseudo_ground.main([*label, labels]) == 0 == pseudo_ground.main([*label, f"{labels}_3", "--limit", "3"])
    assert [json.loads(line)["captions"] for line in capsys.readouterr().out.splitlines()] == [12, 3]
    builder = "flickr30k_entities"
    data = Data(source=str(source), boxes="xyxy pixels", builder=builder, regions=table, pseudo_labels=labels)
    prepared = prepare_data(Recipe(task="pretraining", methods=["direct"], data=data))
    row = prepared.splits["train"][0]
    sides = np.array([120 + int(row["image_id"]), 90] * 2)
    assert np.allclose(prepared.regions[row["image_id"]].boxes[1] * sides, CUBE, atol=1e-2)
    assert [each["text"] for each in row["phrases"]] == ["red ball", "blue cube"]
    capsys.readouterr()  # bars of the rows, unless an earlier test has hidden them
    for command, wrong in [
        (extract_regions, ["--features", "scenes"]),
        (extract_regions, ["--features", "scenes", "--detector", "grid", "--split", "val"]),
        (pseudo_ground, ["--grounder", "scenes", "--captions", "flickr30k_entities"]),
        (pseudo_ground, ["--grounder", "scenes", "--split", "val"]),
    ]:
        assert command.main([*given, *wrong, "--output", str(tmp_path / "none")]) == 2
        assert capsys.readouterr().err.startswith("error: ")
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("form", ["flickr30k_entities", "refcoco", "vqa_v2", "llava_instruct"])
def test_heads_of_a_run_are_measured_on_rows_of_each_form(tmp_path, form, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = write_rows(tmp_path / "own", answer="two")
    if form == "llava_instruct":
        rows = [json.loads(line) for line in source.read_text().splitlines()]
        for row in rows:
            turns = [("user", "Describe."), ("assistant", row.pop("text"))]
            row["messages"] = [{"role": who, "content": text} for who, text in turns]
            row["phrases"] = [{**phrase, "sentence": 1} for phrase in row["phrases"]]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = Data(source=str(source), boxes="xyxy pixels", builder=form)
    recipe = Recipe(task="grounded_generation", output_dir=str(tmp_path / "run"), data=data)
    prepared = prepare_data(recipe)
    own = OwnRows(prepared.regions, built_rows(recipe, prepared), {})
    found = load_examples(Run(tmp_path, recipe.task, [], data, 0, None, own), 3)
    held_out = prepared.split["validation"]
    assert {each.image_id for each in found["validation"]} == {*held_out}
    assert len({each.image_id for each in found["train"]} - {*held_out}) == 3
    for example in (*found["train"], *found["validation"]):
        for phrase in example.phrases:
            sides = np.array([120 + int(example.image_id), 90] * 2)
            wanted = CUBE if "cube" in phrase.text else [side + int(example.image_id) for side in BALL]
            assert example.caption[phrase.start : phrase.end] == phrase.text
            assert np.allclose(np.array(phrase.boxes[0]) * sides, wanted, atol=1e-2)
    assert sum(len(each.phrases) for each in found["train"]) == 6


@pytest.mark.parametrize("detector", ["grid"])
def test_phrases_and_questions(tmp_path, detector, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = write_rows(tmp_path / "own", answer="two")
    features = str(save_backbone(tmp_path / "features"))
    for task in ("phrase_grounding", "vqa"):
        data = Data(source=str(source), boxes="xyxy pixels", regions=MadeRegions(features, detector))
        options = {"answers": {"fewest": 1}} if task == "vqa" else {}
        prepared = prepare_data(Recipe(task=task, data=data, options=options, training={"use_cpu": True}))
        assert len(prepared.splits["train"]) == 11
        assert len(prepared.splits["validation"]) == 1
        assert set(prepared.splits["train"]["image_id"]) < set(prepared.regions.ids)


def test_boxes_that_regions_reach_are_counted(tmp_path):
    """Two regions reach the first box, none the second; the picture is not square."""
    boxes = np.array([[0, 0, 0.25, 0.5], [0, 0, 0.25, 0.45], [0.5, 0.5, 1, 1]], np.float32)
    with RegionTableWriter(tmp_path, {"source": "test"}) as writer:
        writer.write(Regions("p", 80, 40, boxes, np.ones((3, 2), np.float16)))
    assert _reached(str(tmp_path), {"p": {"boxes": [[0, 0, 20, 20], [60, 0, 80, 20]]}}).startswith("1 of 2 boxes")


def test_what_has_no_effect_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = write_rows(tmp_path / "own")
    features = str(save_backbone(tmp_path / "features"))
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    for row in rows:
        row["phrases"] = [{"text": "red ball", "boxes": [[3, 3, 6, 5]], "mask": [[3, 3, 6, 3, 6, 5, 3, 5]]}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def prepare(recipe=(), **regions):
        data = {"source": str(source), "boxes": "xyxy pixels", "regions": MadeRegions(features, **regions)}
        data = Data(**{**data, **dict(recipe)})
        recipe = Recipe("referring_expressions", output_dir="run", data=data, training={"use_cpu": True})
        check(recipe)
        return prepare_data(recipe)

    prepare()
    said = capsys.readouterr().out
    assert "0 of 12 boxes" in said
    assert "another detector" in said
    assert "12 masks" in said
    prepare(detector="rows")
    said = capsys.readouterr().out
    assert "12 of 12 boxes" in said
    assert "another detector" not in said
    with pytest.raises(RecipeError, match=r"data\.regions\.min_regions"):
        prepare(min_regions=5)
    with pytest.raises(RecipeError, match=r"data\.options"):
        prepare({"options": {"negatives": "nearest"}})


def test_pictures_that_change_or_come_later_are_read_again(tmp_path):
    source = write_rows(tmp_path)
    (tmp_path / "3.png").unlink()
    builder, found = built(source, "refcoco", tmp_path / "cache", boxes="xyxy pixels")
    assert len(found["train"]) == 22
    assert "left out: the picture is missing" in builder.report["train"]
    draw(3).save(tmp_path / "3.png")
    draw(40).save(tmp_path / "5.png")
    rows = built(source, "refcoco", tmp_path / "cache", boxes="xyxy pixels")[1]["train"]
    assert len(rows) == 24
    assert {row["width"] for row in rows if row["image_id"] == "5"} == {160}


def test_a_kept_table_is_not_that_of_other_pictures_or_boxes(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = write_rows(tmp_path / "own")
    features = str(save_backbone(tmp_path / "features"))

    def regions(detector, **where):
        data = Data(source=str(source), boxes="xyxy pixels", regions=MadeRegions(features, detector, **where))
        return prepare_data(Recipe(task="referring_expressions", data=data, training={"use_cpu": True})).regions

    before = regions("rows")["5"].boxes
    grid = regions("grid")["5"].features
    regions("grid", folder=str(tmp_path / "table"))
    Image.new("RGB", (125, 90), (1, 200, 3)).save(tmp_path / "own" / "5.png")
    assert not np.allclose(regions("grid")["5"].features, grid)
    with pytest.raises(ValueError, match="another source"):
        regions("grid", folder=str(tmp_path / "table"))
    source.write_text(source.read_text().replace(str([*CUBE]), "[1, 2, 30, 40]"))
    after = regions("rows")["5"].boxes
    assert before.shape == after.shape
    assert not np.allclose(before, after)


def test_questions_train_and_their_run_does_not_go_on_with_other_rows(tmp_path, monkeypatch, capsys):
    source = write_rows(tmp_path / "own", answer="Two")
    recipe = tiny_recipe(tiny_scenes(tmp_path / "scenes"), tmp_path / "run", methods=["none"], resume=True)
    recipe |= {"task": "vqa", "options": {"answers": {"fewest": 1}}, "data": {"source": str(source)}}
    recipe["data"]["boxes"] = "xyxy pixels"
    recipe["data"]["regions"] = {"detector": "grid", "features": save_backbone(tmp_path / "features")}
    del recipe["model"]["config"]["region_classes"]
    assert run_train(monkeypatch, tmp_path, recipe) == 0, capsys.readouterr()
    (answered,) = json.loads((tmp_path / "run" / "none" / "predictions_validation.json").read_text())
    assert answered["question_id"].startswith("train-")
    assert answered["answer"] == "2"
    figures = json.loads((tmp_path / "run" / "results.json").read_text())["methods"]["none"]["figures"]["validation"]
    assert figures["vqa_soft_upper_bound"] == figures["vqa_accuracy"] == 1  # "Two" is the answer "2" of the list
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    source.write_text(source.read_text().replace('"Two"', '"three"'))
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    assert "train" in capsys.readouterr().err
    assert run_train(monkeypatch, tmp_path, {**recipe, "overwrite": True}) == 0


def test_what_no_rows_can_be_made_of_is_refused(tmp_path):
    with pytest.raises(MissingFileError):
        built("nothing.jsonl", "refcoco", tmp_path / "cache")
    source = write_rows(tmp_path, answers=[]).rename(tmp_path / "test.jsonl")
    with pytest.raises(DataError, match="12 rows without a question"):
        built(source, "vqa_v2", tmp_path / "cache", boxes="xyxy pixels", named_splits={"train": "test"})
    with pytest.raises(DataError, match="train"):
        built(source, "refcoco", tmp_path / "cache", boxes="xyxy pixels")
    assert len(built(source, OWN, tmp_path / "cache", boxes="xyxy pixels")[1]["test"]) == 12  # for a push


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_supervised_on_a_coco_file_without_a_download(tmp_path, monkeypatch, family):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    images = []
    annotations = []
    for number in range(6):
        draw(number).save(f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 120 + number, "height": 90})
        for kind, (left, top, right, bottom) in ((1, [side + number for side in BALL]), (2, CUBE)):
            box = {"bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top)}
            annotations.append({"id": 2 * number + kind, "image_id": number, "category_id": kind, "iscrowd": 0, **box})
    kinds = [{"id": 1, "name": "red ball"}, {"id": 2, "name": "blue cube"}]
    content = {"images": images, "annotations": annotations, "categories": kinds}
    (tmp_path / "instances.json").write_text(json.dumps(content))
    changes = ["data.source=instances.json", f"model.family={family}", "methods=[direct]", "training.max_steps=2"]
    assert main(["train", "attention_small", *changes, "training.use_cpu=true", "training.logging_steps=1"]) == 0
    state = json.loads(
        (tmp_path / "runs" / "attention_small" / "direct" / "checkpoint-2" / "trainer_state.json").read_text()
    )
    losses = [log["loss_text_to_region"] for log in state["log_history"] if "loss_text_to_region" in log]
    assert len(losses) == 2
    assert all(0 < loss < 10 for loss in losses)


def test_docs_say_what_each_family_can_learn():
    """The table of docs/training_tasks.md is that of the registries."""
    lines = ["| task | " + " | ".join(family.title for family in FAMILIES.values()) + " | own rows |"]
    for name, task in TASKS.items():
        if task.image_tokens:
            continue
        methods = "all methods" if task.can_have_phrases else "`none`"
        cells = [methods if task.head in family.heads else "–" for family in FAMILIES.values()]
        own = "yes" if getattr(task, "builder", None) in FORMS else "–"
        lines.append(f"| `{name}` | {' | '.join(cells)} | {own} |")
    page = (ROOT / "docs" / "training_tasks.md").read_text(encoding="utf-8")
    missing = [line for line in lines if line not in page.splitlines()]
    assert not missing, "\n".join(lines)
