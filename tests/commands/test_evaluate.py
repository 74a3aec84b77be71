# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention evaluate`: the figures of training, the files it writes, and the mistakes of users."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from transformers import BertConfig

from grounded_attention.commands.evaluate import main
from grounded_attention.commands.evaluate_work import find_picture
from grounded_attention.dataset_scripts.regions.table import RegionTable, RegionTableWriter
from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VLBertForVGP
from grounded_attention.processing import VLBertProcessor
from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.arguments import training_arguments
from grounded_attention.training.experiments.prepared_data import prepare_data
from grounded_attention.training.loop.data import Collator
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.recipes.recipe import Data, Recipe
from tests.commands.untrained_models import ANSWERS, untrained_models
from tests.helpers.commands import read_error, read_result


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Scenes, an untrained model of each task, and a BERT."""
    folder = tmp_path_factory.mktemp("run")
    tasks = ("vgp", "vqa", "referring_expressions", "pretraining")
    with untrained_models(folder, tasks) as scenes:
        BertConfig(architectures=["BertModel"]).save_pretrained(folder / "bert")
        shutil.copytree(folder / "vgp", folder / "damaged")
        (folder / "damaged" / "checkpoint_manifest.json").write_text('{"model.safetensors": {"size": 1}}')
        table = RegionTable.open(scenes / "regions")
        with RegionTableWriter(folder / "few", {}) as writer:
            writer.write(table[table.ids[0]])
        yield folder


def run(files, checkpoint, *arguments, task=None):
    first = [] if checkpoint is None else [files / checkpoint]
    given = [*first, "--task", task or checkpoint, "--data-dir", files / "scenes", *arguments]
    return main([*map(str, given)])


@pytest.fixture
def measure(files, tmp_path, capsys):
    """Runs the command; gives the printed figures of the split for validation. Files are in `tmp_path / folder`."""

    def figures(checkpoint, *arguments, folder="out", task=None):
        assert run(files, checkpoint, *arguments, "--output", tmp_path / folder, "--json", task=task) == 0
        return read_result(capsys)["validation"]

    return figures


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def assert_figures(found, expected, *named):
    """Those that both have are the same, the named ones among them."""
    shared = found.keys() & expected.keys()
    assert {*named} <= shared
    assert {name: found[name] for name in shared} == pytest.approx({name: expected[name] for name in shared})


def test_figures_are_those_of_the_trainer(files, tmp_path, measure):
    table = str(files / "scenes" / "regions")
    printed = measure("pretraining", "--regions", table, "--limit", 8, "--seed", 3, "--batch-size", 3)
    options = {"regions": True, "relationship": True}
    data = Data(data_dir=str(files / "scenes"), regions=table, limit={"validation": 8})
    recipe = Recipe("pretraining", options, seed=3, data=data, training={"use_cpu": True})
    prepared = prepare_data(recipe)
    task = TASKS["pretraining"]
    processor = VLBertProcessor.from_pretrained(files / "pretraining")
    trainer = GroundingTrainer(
        FAMILIES["vl_bert"].heads[task.head].from_pretrained(files / "pretraining"),
        training_arguments(recipe, tmp_path / "trainer"),
        data_collator=Collator(task, processor, prepared.regions, 3, options=prepared.options),
        processing_class=processor,
        task=task,
        method=get_method("none"),
        metrics=task.metrics,
    )
    assert printed == pytest.approx(trainer.measure(prepared.splits["validation"]))
    assert read(tmp_path / "out" / "metrics.json")["splits"] == {"validation": printed}


def test_vgp_writes_figures_predictions_and_a_page(files, tmp_path, capsys):
    scenes = files / "scenes"
    options = ("--regions", scenes / "regions", "--images", scenes / "flickr30k-images", "--limit", 12)
    assert run(files, "vgp", *options, "--output", tmp_path / "out") == 0
    assert "identification_accuracy" in capsys.readouterr().out
    figures = read(tmp_path / "out" / "metrics.json")["splits"]["validation"]
    lines = (tmp_path / "out" / "predictions_validation.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    for group in ("identification", "vgp"):
        scores = [row["score"] for row in found if row["group"] == group]
        assert len(scores) == figures[f"{group}_count"]
        assert np.mean(scores) == pytest.approx(figures[f"{group}_accuracy"])
    for row in found:
        assert row["group"] == "vgp" or row["gold"] in ("both", "first", "second")
    assert "data:image/webp" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert not list(tmp_path.rglob("*.partial"))


def test_a_file_of_answers_scores_as_the_model_that_wrote_it(files, tmp_path, measure):
    by_model = measure("vqa", "--regions", files / "scenes" / "regions", folder="a")
    written = tmp_path / "a" / "predictions_validation.json"
    for row in read(written):
        assert row.keys() == {"question_id", "answer"}
        assert row["answer"] in ANSWERS
    by_file = measure(None, "--predictions", written, folder="b", task="vqa")
    assert_figures(by_file, by_model, "vqa_accuracy", "vqa_count", "vqa_number_accuracy")
    assert "By question type" in (tmp_path / "b" / "report.html").read_text(encoding="utf-8")


def test_an_official_file_of_gqa_scores_as_the_model_that_wrote_it(files, tmp_path, measure):
    """All questions of the model's file; also those of the balanced split, which are fewer."""
    every = ("--set", "data.options.config_name=all")
    by_model = measure("vqa", "--regions", files / "scenes" / "regions", *every, folder="a", task="gqa")
    written = tmp_path / "a" / "predictions_validation.json"
    assert read(written)[0].keys() == {"questionId", "prediction"}
    for options in (every, ()):
        by_file = measure(None, "--predictions", written, *options, folder="b", task="gqa")
        assert {"gqa_accuracy", "gqa_open", "gqa_validity", "gqa_distribution"} <= by_file.keys()
        assert (by_file.pop("gqa_count") == by_model["gqa_count"]) == bool(options)
        assert_figures(by_file, by_model, *by_file)


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda rows: rows[1:], "has no answer for 1 of"),
        (lambda rows: [*rows, rows[0]], "has two answers"),
        (lambda rows: [*rows, {"question_id": 1, "answer": "no"}], "nobody asked for 1 of"),
        (lambda rows: [], "no predictions"),
    ],
)
def test_wrong_files_of_answers_are_refused(files, tmp_path, capsys, change, problem):
    questions = read(files / "scenes" / "vqa" / "v2_OpenEnded_mscoco_val2014_questions.json")["questions"]
    rows = [{"question_id": question["question_id"], "answer": "yes"} for question in questions]
    (tmp_path / "answers.json").write_text(json.dumps(change(rows)))
    arguments = ["--predictions", tmp_path / "answers.json", "--output", tmp_path / "out"]
    assert run(files, None, *arguments, task="vqa") == 2
    line = read_error(capsys)
    assert problem in line
    assert "answers.json" in line
    assert not (tmp_path / "out").exists()


TABLE = "--regions scenes/regions "


@pytest.mark.parametrize(
    "checkpoint, task, arguments, problem",
    [
        ("bert", "vgp", TABLE, "a checkpoint of the family 'bert', expected 'vl_bert'"),
        ("vqa", "vgp", TABLE, "VLBertForVGP lacks weights"),
        ("nowhere", "vgp", TABLE, "nowhere: no such file or folder, and not a name on the Hub"),
        ("vgp", "vpg", TABLE, f"--task vpg: unknown task, expected one of {', '.join(sorted(TASKS))}"),
        ("vgp", "vgp", "", "no region table"),
        ("vgp", "vgp", "--regions nowhere", "nowhere"),
        ("vgp", "vgp", TABLE + "--split dev", "no such split: found 'dev'"),
        ("vgp", "vgp", TABLE + "--text-only", "--text-only cannot be combined"),
        ("vgp", "vgp", TABLE + "--images nowhere", "--images nowhere: no such folder"),
        ("vgp", "vgp", TABLE + "--set data.options.negative=random", "did you mean 'data.options.negatives'"),
        ("vgp", "vgp", TABLE + "--set seed=1", "--set seed=1: expected data.builder"),
        ("vgp", "vgp", "--predictions x.json", "either a CHECKPOINT or --predictions"),
        (None, "vgp", "--predictions x.json", "the task vgp has no official file of predictions"),
        ("damaged", "vgp", TABLE, "incomplete"),
        ("vqa", "vqa", "--regions few", "no regions for this image"),
    ],
)
def test_user_errors_are_one_line_and_status_2(
    files, tmp_path, monkeypatch, capsys, checkpoint, task, arguments, problem
):
    monkeypatch.chdir(files)
    assert run(files, checkpoint, *arguments.split(), "--output", tmp_path / "out", task=task) == 2
    assert problem in read_error(capsys)
    assert not (tmp_path / "out").exists()


def test_missing_weights_are_refused_before_anything_is_scored(files, tmp_path, capsys):
    model = VLBertForVGP.from_pretrained(files / "vgp")
    kept = {name: value.contiguous() for name, value in model.state_dict().items() if "identification" not in name}
    shutil.copytree(files / "vgp", tmp_path / "cut")
    model.save_pretrained(tmp_path / "cut", state_dict=kept)
    assert run(files, tmp_path / "cut", "--regions", files / "scenes" / "regions", task="vgp") == 2
    assert "lacks weights, such as identification" in read_error(capsys)


def test_images_are_found_by_file_name_id_or_as_coco_names_them(tmp_path):
    for name, side in (("a.png", 1), ("7.jpg", 2), ("COCO_val2014_000000000009.jpg", 3)):
        Image.new("RGB", (side * 10, 10)).save(tmp_path / name)
    assert find_picture(tmp_path, "x", "a.png").height == 420
    assert find_picture(tmp_path, "7", None).height == 210
    assert find_picture(tmp_path, "9", None).height == 140
    assert find_picture(tmp_path, "8", None) is None
    assert find_picture(None, "7", None) is None
