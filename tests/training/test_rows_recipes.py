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
from grounded_attention.training.recipes.recipe import Data, MadeRegions, Model, Recipe, RecipeError
from tests.helpers.built import built
from tests.helpers.own_rows import BALL, CUBE, draw, write_rows
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_backbone import save_backbone
from tests.helpers.tiny_detectors import save_detector
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from tests.helpers.tiny_vlm_recipes import vlm_recipe
from tests.training.runs import assert_words, read_json, results, train_in

PIXELS = "xyxy pixels"
TURNS = """
[{"id": 1, "image": "a.png", "conversations": [
    {"from": "human", "value": "<image>\\nWhere is the red ball?"}, {"from": "gpt", "value": "[0.1, 0.2, 0.4, 0.6]"}]},
 {"id": 2, "image": "a.png", "conversations": [{"from": "gpt", "value": "Hello."}]}]
"""


@pytest.fixture
def build(tmp_path):
    """The builder of rows in a file, and the rows of its splits."""

    def build(source, form, boxes=PIXELS, **options):
        cache = str(tmp_path / "cache")
        builder = built(Rows, source, cache, form=form, boxes=boxes, **options)
        return builder, builder.as_dataset()

    return build


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """The data of a recipe, after its checks, whose rows are the source and whose regions are made."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = str(save_backbone(tmp_path / "features"))

    def prepare(source, detector="grid", task="referring_expressions", options=(), of_builder=(), **regions):
        made = MadeRegions(features, detector, **regions)
        data = Data(source=str(source), boxes=PIXELS, regions=made, options=dict(of_builder))
        model = Model(family="visualbert")
        recipe = Recipe(task, output_dir="run", data=data, model=model, options=dict(options))
        recipe.training["use_cpu"] = True
        check(recipe)
        return prepare_data(recipe)

    return prepare


def region_recipe(folder, source, detector, task="referring_expressions", **sections):
    """A recipe that trains VisualBERT on rows with regions that are made."""
    recipe = tiny_recipe(tiny_scenes(folder / "scenes"), folder / "run", methods=["none"], task=task, **sections)
    recipe["data"] = {"source": str(source), "boxes": PIXELS}
    features = save_backbone(folder / "features")
    recipe["data"]["regions"] = {"detector": detector, "features": features, "folder": f"{folder}/table"}
    recipe["model"]["family"] = "visualbert"
    del recipe["model"]["config"]["region_classes"]
    return recipe


def heads_of(run, capsys):
    """What `heads --run` prints."""
    capsys.readouterr()
    assert heads.main(["--run", str(run), "--device", "cpu", "--json", "--explore", "1"]) == 0
    return json.loads(capsys.readouterr().out)


def sides_of(image):
    """Width and height of a picture of `write_rows`, as of two corners."""
    return np.array([120 + int(image), 90] * 2)


def test_rows_of_each_form_have_the_boxes_of_the_source(tmp_path, build):
    source = write_rows(tmp_path, answer="two")
    _, expressions = build(source, "refcoco", columns={})
    rows = expressions["train"]
    assert len(rows) == 24
    assert rows[3]["text"] == "blue cube"
    (ball,) = rows[10]["phrases"][0]["boxes"]
    assert np.allclose(ball * sides_of(5), [side + 5 for side in BALL], atol=1e-3)
    assert "/" + rows[10]["file_name"] == str(tmp_path / "5.png")
    assert rows[10]["image_id"] == "5"
    _, captions = build(source, "flickr30k_entities", columns={})
    first, second = captions["train"][5]["phrases"]
    assert (first["text"], second["text"]) == ("red ball", "blue cube")
    assert np.allclose(second["boxes"][0] * sides_of(5), CUBE, atol=1e-3)
    _, questions = build(source, "vqa_v2", columns={})
    assert questions["train"][0]["text"] == "a red ball and a blue cube"
    assert questions["train"][0]["answers"] == ["two"] * 10


def test_conversations_keep_their_phrases_where_marks_of_pictures_go(tmp_path, build):
    draw(0).save(tmp_path / "a.png")
    (tmp_path / "talk.json").write_text(TURNS)
    builder, found = build(tmp_path / "talk.json", "llava_instruct", boxes="xyxy 0..1")
    (row,) = found["train"]
    (phrase,) = row["phrases"]
    question, answer = row["messages"]
    text = row["messages"][phrase["sentence"]]["content"]
    assert (question["role"], answer["role"]) == ("user", "assistant")
    assert "<image>" not in str(row)
    assert text[phrase["start"] : phrase["end"]] == phrase["text"]
    assert "red ball" in phrase["text"]
    assert builder.report["train"]["rows that are no turns of user and assistant"] == 1


def test_pictures_inside_of_rows_are_written_once_and_read_again(tmp_path, build):
    picture = draw(0)
    picture.save(tmp_path / "a.png")
    row = {"image": {"bytes": (tmp_path / "a.png").read_bytes(), "path": None}, "bbox": [0.1, 0.2, 0.5, 0.6]}
    rows = datasets.Dataset.from_list([{**row, "text": "a ball"}, {**row, "text": "a red ball"}])
    rows.to_parquet(tmp_path / "rows.parquet")
    _, found = build(tmp_path / "rows.parquet", "refcoco", boxes="xyxy 0..1")
    names = found["train"]["file_name"]
    assert len({*names}) == 1
    assert len({*found["train"]["image_id"]}) == 1
    assert np.array_equal(np.asarray(Image.open("/" + names[0]).convert("RGB")), np.asarray(picture))


def test_splits_are_those_of_the_source_or_drawn_by_images(tmp_path, build):
    for name in ("train", "testA"):
        write_rows(tmp_path / "in").rename(tmp_path / f"in/{name}.jsonl")
    _, found = build(tmp_path / "in/*.jsonl", "refcoco")
    assert sorted(found) == ["testA", "train"]
    _, named = build(tmp_path / "in/*.jsonl", "refcoco", named_splits={"train": "testA"})
    assert [*named] == ["train"]
    splits = dict(found)
    drawn = hold_out(splits, seed=3)
    train = set(splits["train"]["image_id"])
    validation = set(splits["validation"]["image_id"])
    assert not train & validation
    assert len(train | validation) == 12
    assert validation == {*drawn["validation"]}
    assert len(splits["train"]) + len(splits["validation"]) == 24
    assert hold_out(dict(found), seed=3) == drawn
    assert hold_out(dict(found), seed=4) != drawn


@pytest.mark.parametrize("detector", ["grid", "conditional_detr"])
def test_one_command_from_rows_to_a_trained_region_model(tmp_path, monkeypatch, detector, run_recipe):
    if detector != "grid":
        detector = str(save_detector(detector, tmp_path / "detector"))
    recipe = region_recipe(tmp_path, write_rows(tmp_path / "own"), detector)
    run_recipe(recipe)
    table = RegionTable.open(tmp_path / "table")
    assert len(table.ids) == 12
    assert len(read_json(tmp_path / "run/split.json")["validation"]) == 1
    if detector == "grid":  # again: nothing is extracted a second time
        assert {len(table[image].boxes) for image in table.ids} == {45}
        monkeypatch.setattr("grounded_attention.processing.region_extraction.RegionExtractor.extract", None)
        run_recipe(recipe, f"output_dir={tmp_path}/again")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run on own rows, whose boxes are its regions."""
    folder = tmp_path_factory.mktemp("trained")
    train_in(folder, region_recipe(folder, write_rows(folder / "own"), "rows"))
    return folder


def test_heads_of_a_run_are_chosen_on_training_rows(trained, capsys):
    found = heads_of(trained / "run", capsys)
    assert (found["heads_chosen_on"], found["split"]) == ("train", "validation")
    counts = HeadTable.load(trained / "run/heads/none").counts
    assert [*counts.image_ids] == read_json(trained / "run/split.json")["validation"]
    assert counts.accuracy.max() <= 1


@pytest.fixture
def evaluate_run(trained, tmp_path, capsys):
    """The figures that `evaluate` prints for the run."""

    def run(*arguments):
        model = str(trained / "run/none")
        assert evaluate.main([model, "--json", "--output", str(tmp_path / "scored"), *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def rows_of(folder):
    given = ["--task", "referring_expressions", "--data", f"{folder}/own/rows.jsonl", "--boxes", PIXELS]
    return [*given, "--regions", f"{folder}/table"]


def test_a_run_is_evaluated_on_its_rows_and_on_others(trained, tmp_path, evaluate_run):
    figures = results(trained / "run")["methods"]["none"]["figures"]["validation"]
    assert (figures["expressions_upper_bound"], figures["expressions_chance"]) == (1, 0.5)
    again = evaluate_run()["validation"]
    shared = {name: figures[name] for name in again if name in figures}
    assert len(shared) > 3
    assert {name: again[name] for name in shared} == pytest.approx(shared)
    assert "data:image" in (tmp_path / "scored/report.html").read_text()
    assert evaluate_run(*rows_of(trained), "--split", "train")["train"]["expressions_upper_bound"] == 1
    assert evaluate_run("--split", "train", "--limit", "2")["train"]["expressions_count"] == 2


def test_what_a_run_cannot_be_evaluated_on_is_refused(trained, capsys):
    rows = rows_of(trained)
    for wrong in (
        [*rows, "--split", "val"],
        [*rows, "--split", "train", "--columns", "text=nothing"],
        ["--data", f"{trained}/own/rows.jsonl"],
        ["--split", "test"],
        ["--text-only"],
    ):
        assert evaluate.main([f"{trained}/run/none", "--json", *wrong]) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_vision_language_models_read_the_pictures_of_rows(tmp_path, capsys, run_recipe):
    source = write_rows(tmp_path / "own")
    recipe = vlm_recipe(tiny_scenes(tmp_path / "scenes"), tmp_path / "run")
    recipe["data"] = {"source": str(source), "boxes": PIXELS, "builder": "flickr30k_entities"}
    run_recipe(recipe)
    found = heads_of(tmp_path / "run", capsys)
    assert 0 <= found["methods"]["direct"]["best"][0]["accuracy"] <= 1
    source.write_text("".join(source.read_text().splitlines(keepends=True)[:-1]))
    assert heads.main(["--run", str(tmp_path / "run"), "--device", "cpu"]) == 2
    assert "other rows" in capsys.readouterr().err


def test_regions_and_labels_of_the_commands_join_a_recipe_of_the_same_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = write_rows(tmp_path / "own")
    given = ["--data", str(source), "--boxes", PIXELS, "--json"]
    table = str(tmp_path / "regions")
    labels = str(tmp_path / "labels")
    assert extract_regions.main([*given, "--detector", "rows", "--features", "scenes", "--output", table]) == 0
    printed = capsys.readouterr()
    assert PIXELS in printed.err
    assert json.loads(printed.out)["images"] == 12
    label = [*given, "--grounder", "scenes", "--phrases", "given", "--output"]
    assert pseudo_ground.main([*label, f"{labels}_3", "--limit", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["captions"] == 3
    assert pseudo_ground.main([*label, labels]) == 0
    data = Data(source=str(source), boxes=PIXELS, builder="flickr30k_entities", regions=table, pseudo_labels=labels)
    prepared = prepare_data(Recipe(task="pretraining", methods=["direct"], data=data))
    row = prepared.splits["train"][0]
    image = row["image_id"]
    assert np.allclose(prepared.regions[image].boxes[1] * sides_of(image), CUBE, atol=1e-2)
    assert [phrase["text"] for phrase in row["phrases"]] == ["red ball", "blue cube"]


@pytest.mark.parametrize(
    "command, options",
    [
        (extract_regions, "--features scenes"),
        (extract_regions, "--features scenes --detector grid --split val"),
        (pseudo_ground, "--grounder scenes --captions flickr30k_entities"),
        (pseudo_ground, "--grounder scenes --split val"),
    ],
)
def test_options_that_do_not_fit_rows_are_refused(tmp_path, monkeypatch, capsys, command, options):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = ["--data", str(write_rows(tmp_path / "own")), "--boxes", PIXELS, "--output", str(tmp_path / "none")]
    assert command.main([*rows, *options.split()]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("form", ["flickr30k_entities", "refcoco", "vqa_v2", "llava_instruct"])
def test_heads_of_a_run_are_measured_on_rows_of_each_form(tmp_path, form, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = write_rows(tmp_path / "own", answer="two")
    if form == "llava_instruct":
        answer = {"role": "assistant", "content": "a red ball and a blue cube"}
        source = write_rows(tmp_path / "own", text=None, messages=[{"role": "user", "content": "Describe."}, answer])
    data = Data(source=str(source), boxes=PIXELS, builder=form)
    recipe = Recipe(task="grounded_generation", output_dir=str(tmp_path / "run"), data=data)
    prepared = prepare_data(recipe)
    own = OwnRows(prepared.regions, built_rows(recipe, prepared), {})
    found = load_examples(Run(tmp_path, recipe.task, [], data, 0, None, own), 3)
    held_out = {*prepared.split["validation"]}
    assert {example.image_id for example in found["validation"]} == held_out
    assert len({example.image_id for example in found["train"]} - held_out) == 3
    for example in (*found["train"], *found["validation"]):
        for phrase in example.phrases:
            ball = [side + int(example.image_id) for side in BALL]
            assert example.caption[phrase.start : phrase.end] == phrase.text
            expected = {"red ball": ball, "blue cube": CUBE}[phrase.text]
            assert np.allclose(phrase.boxes[0] * sides_of(example.image_id), expected, atol=1e-2)
    assert sum(len(example.phrases) for example in found["train"]) == 6


@pytest.mark.parametrize(
    "task, options", [("phrase_grounding", {}), ("vqa", {"answers": {"fewest": 1}})], ids=["phrases", "questions"]
)
def test_regions_are_made_for_other_tasks(tmp_path, prepare, task, options):
    prepared = prepare(write_rows(tmp_path / "own", answer="two"), task=task, options=options)
    assert len(prepared.splits["train"]) == 11
    assert len(prepared.splits["validation"]) == 1
    assert set(prepared.splits["train"]["image_id"]) < set(prepared.regions.ids)


def test_boxes_that_regions_reach_are_counted(tmp_path):
    """Two regions reach the first box, none the second; the picture is not square."""
    boxes = np.array([[0, 0, 0.25, 0.5], [0, 0, 0.25, 0.45], [0.5, 0.5, 1, 1]], np.float32)
    with RegionTableWriter(tmp_path, {"source": "test"}) as writer:
        writer.write(Regions("p", 80, 40, boxes, np.ones((3, 2), np.float16)))
    assert _reached(str(tmp_path), {"p": {"boxes": [[0, 0, 20, 20], [60, 0, 80, 20]]}}).startswith("1 of 2 boxes")


def test_what_has_no_effect_is_named(tmp_path, capsys, prepare):
    phrase = {"text": "red ball", "boxes": [[3, 3, 6, 5]], "mask": [[3, 3, 6, 3, 6, 5, 3, 5]]}
    source = write_rows(tmp_path / "own", phrases=[phrase])
    prepare(source)
    assert_words(capsys.readouterr().out, "0 of 12 boxes ... another detector ... 12 masks")
    prepare(source, "rows")
    printed = capsys.readouterr().out
    assert "12 of 12 boxes" in printed
    assert "another detector" not in printed
    with pytest.raises(RecipeError, match=r"data\.regions\.min_regions"):
        prepare(source, min_regions=5)
    with pytest.raises(RecipeError, match=r"data\.options"):
        prepare(source, of_builder={"negatives": "nearest"})


def test_pictures_that_change_or_come_later_are_read_again(tmp_path, build):
    source = write_rows(tmp_path)
    (tmp_path / "3.png").unlink()
    builder, found = build(source, "refcoco")
    assert len(found["train"]) == 22
    assert "left out: the picture is missing" in builder.report["train"]
    draw(3).save(tmp_path / "3.png")
    draw(40).save(tmp_path / "5.png")
    _, found = build(source, "refcoco")
    assert len(found["train"]) == 24
    assert {row["width"] for row in found["train"] if row["image_id"] == "5"} == {160}


def test_a_kept_table_is_not_that_of_other_pictures_or_boxes(tmp_path, prepare):
    source = write_rows(tmp_path / "own")
    before = prepare(source, "rows").regions["5"].boxes
    grid = prepare(source).regions["5"].features
    prepare(source, folder=str(tmp_path / "table"))
    Image.new("RGB", (125, 90), (1, 200, 3)).save(tmp_path / "own/5.png")
    assert not np.allclose(prepare(source).regions["5"].features, grid)
    with pytest.raises(ValueError, match="another source"):
        prepare(source, folder=str(tmp_path / "table"))
    source.write_text(source.read_text().replace(str([*CUBE]), "[1, 2, 30, 40]"))
    after = prepare(source, "rows").regions["5"].boxes
    assert before.shape == after.shape
    assert not np.allclose(before, after)


def test_questions_train_and_their_run_does_not_go_on_with_other_rows(tmp_path, monkeypatch, capsys, run_recipe):
    source = write_rows(tmp_path / "own", answer="Two")
    options = {"answers": {"fewest": 1}}
    recipe = region_recipe(tmp_path, source, "grid", "vqa", options=options, resume=True)
    run_recipe(recipe)
    (answered,) = read_json(tmp_path / "run/none/predictions_validation.json")
    assert answered["question_id"].startswith("train-")
    assert answered["answer"] == "2"
    figures = results(tmp_path / "run")["methods"]["none"]["figures"]["validation"]
    assert figures["vqa_soft_upper_bound"] == figures["vqa_accuracy"] == 1  # "Two" is the answer "2" of the list
    run_recipe(recipe)
    source.write_text(source.read_text().replace('"Two"', '"three"'))
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    assert "train" in capsys.readouterr().err
    run_recipe(recipe, "overwrite=true")


def test_what_no_rows_can_be_made_of_is_refused(tmp_path, build):
    with pytest.raises(MissingFileError):
        build("nothing.jsonl", "refcoco")
    source = write_rows(tmp_path, answers=[]).rename(tmp_path / "test.jsonl")
    with pytest.raises(DataError, match="12 rows without a question"):
        build(source, "vqa_v2", named_splits={"train": "test"})
    with pytest.raises(DataError, match="train"):
        build(source, "refcoco")
    assert len(build(source, OWN)[1]["test"]) == 12  # for a push


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_supervised_on_a_coco_file_without_a_download(tmp_path, monkeypatch, family):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    images = []
    annotations = []
    for number in range(6):
        draw(number).save(f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 120 + number, "height": 90})
        ball = {"category_id": 1, "bbox": [10 + number, 20 + number, 40, 40], "area": 1600}
        cube = {"category_id": 2, "bbox": [60, 30, 30, 30], "area": 900}
        for box in (ball, cube):
            annotations.append({"id": len(annotations), "image_id": number, "iscrowd": 0, **box})
    categories = [{"id": 1, "name": "red ball"}, {"id": 2, "name": "blue cube"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "instances.json").write_text(json.dumps(content))
    changes = ["data.source=instances.json", f"model.family={family}", "methods=[direct]", "training.max_steps=2"]
    assert main(["train", "attention_small", *changes, "training.use_cpu=true", "training.logging_steps=1"]) == 0
    state = read_json(tmp_path / "runs/attention_small/direct/checkpoint-2/trainer_state.json")
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
    page = (ROOT / "docs/training_tasks.md").read_text(encoding="utf-8")
    missing = [line for line in lines if line not in page.splitlines()]
    assert not missing, "\n".join(lines)
