# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention evaluate`: the figures of training, the files it writes, and the mistakes of users."""

import json
import shutil

import datasets
import pytest
from PIL import Image
from transformers import BertConfig, set_seed

from grounded_attention.commands.evaluate import main
from grounded_attention.commands.evaluate_work import find_picture
from grounded_attention.dataset_scripts.regions.table import RegionTable, RegionTableWriter
from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VLBertConfig, VLBertForVGP
from grounded_attention.processing import VLBertProcessor
from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.arguments import training_arguments
from grounded_attention.training.experiments.models import make_processor
from grounded_attention.training.experiments.prepared_data import prepare_data
from grounded_attention.training.loop.data import Collator
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.recipes.recipe import Data, Model, Recipe
from tests.helpers.tiny_scenes import tiny_scenes

ANSWERS = ["yes", "no", "1", "2", "red"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"max_position_embeddings": 128, "region_classes": 80}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Scenes, an untrained model of each task, and a BERT."""
    folder = tmp_path_factory.mktemp("run")
    cache = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = folder / "cache"
    scenes = tiny_scenes(folder / "scenes")
    processor = make_processor(Model(tokenizer=str(scenes / "vocab.txt")))
    more = {"vqa": {"answers": ANSWERS}, "pretraining": {"relationship_head": True}}
    for name in ("vgp", "vqa", "referring_expressions", "pretraining"):
        set_seed(0)
        config = VLBertConfig(vocab_size=len(processor.tokenizer), **SIZES, **more.get(name, {}))
        FAMILIES["vl_bert"].heads[TASKS[name].head](config).save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
    BertConfig(architectures=["BertModel"]).save_pretrained(folder / "bert")
    yield folder
    datasets.config.HF_DATASETS_CACHE = cache


def run(files, checkpoint, *arguments, task=None):
    first = [] if checkpoint is None else [str(files / checkpoint)]
    return main([*first, "--task", task or checkpoint, "--data-dir", str(files / "scenes"), *map(str, arguments)])


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_figures_are_those_of_the_trainer(files, tmp_path, capsys):
    table = str(files / "scenes" / "regions")
    arguments = ("--regions", table, "--limit", 8, "--seed", 3, "--batch-size", 3)
    assert run(files, "pretraining", *arguments, "--output", tmp_path, "--json") == 0
    printed = json.loads(capsys.readouterr().out)

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
    expected = trainer.measure(prepared.splits["validation"])
    assert printed["validation"] == pytest.approx(expected)
    assert read(tmp_path / "metrics.json")["splits"] == printed


def test_vgp_writes_figures_predictions_and_a_page(files, tmp_path, capsys):
    scenes = files / "scenes"
    arguments = ("--regions", scenes / "regions", "--images", scenes / "flickr30k-images", "--limit", 12)
    assert run(files, "vgp", *arguments, "--output", tmp_path / "out") == 0
    assert "identification_accuracy" in capsys.readouterr().out
    figures = read(tmp_path / "out" / "metrics.json")["splits"]["validation"]
    found = lines(tmp_path / "out" / "predictions_validation.jsonl")
    for group in ("identification", "vgp"):
        scores = [one["score"] for one in found if one["group"] == group]
        assert len(scores) == figures[f"{group}_count"]
        assert sum(scores) / len(scores) == pytest.approx(figures[f"{group}_accuracy"])
    assert {one["gold"] for one in found if one["group"] == "identification"} <= {"both", "first", "second"}
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/webp") > 0
    assert not list(tmp_path.rglob("*.partial"))


def test_a_file_of_answers_scores_as_the_model_that_wrote_it(files, tmp_path, capsys):
    assert run(files, "vqa", "--regions", files / "scenes" / "regions", "--output", tmp_path / "a", "--json") == 0
    by_model = json.loads(capsys.readouterr().out)["validation"]
    written = tmp_path / "a" / "predictions_validation.json"
    assert set(read(written)[0]) == {"question_id", "answer"}
    assert {one["answer"] for one in read(written)} <= {*ANSWERS}
    assert run(files, None, "--predictions", written, "--output", tmp_path / "b", "--json", task="vqa") == 0
    by_file = json.loads(capsys.readouterr().out)["validation"]
    shared = {name for name in by_file if name in by_model}
    assert {"vqa_accuracy", "vqa_count", "vqa_number_accuracy"} <= shared
    assert {name: by_file[name] for name in shared} == pytest.approx({name: by_model[name] for name in shared})
    assert "By question type" in (tmp_path / "b" / "report.html").read_text(encoding="utf-8")


def test_an_official_file_of_gqa_scores_as_the_model_that_wrote_it(files, tmp_path, capsys):
    """All questions of the model's file; also those of the balanced split, which are fewer."""
    every = ("--set", "data.options.config_name=all")
    table = files / "scenes" / "regions"
    assert run(files, "vqa", "--regions", table, *every, "--output", tmp_path / "a", "--json", task="gqa") == 0
    by_model = json.loads(capsys.readouterr().out)["validation"]
    written = tmp_path / "a" / "predictions_validation.json"
    assert set(read(written)[0]) == {"questionId", "prediction"}
    for options in (every, ()):
        arguments = ("--predictions", written, *options, "--output", tmp_path / "b", "--json")
        assert run(files, None, *arguments, task="gqa") == 0
        by_file = json.loads(capsys.readouterr().out)["validation"]
        assert {"gqa_accuracy", "gqa_open", "gqa_validity", "gqa_distribution"} <= by_file.keys() & by_model.keys()
        assert (by_file.pop("gqa_count") == by_model["gqa_count"]) == bool(options)
        assert by_file == pytest.approx({name: by_model[name] for name in by_file})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows[1:], "has no answer for 1 of"),
        (lambda rows: [*rows, rows[0]], "has two answers"),
        (lambda rows: [*rows, {"question_id": 1, "answer": "no"}], "nobody asked for 1 of"),
        (lambda rows: [], "no predictions"),
    ],
)
def test_wrong_files_of_answers_are_refused(files, tmp_path, capsys, change, problem):
    questions = read(files / "scenes" / "vqa" / "v2_OpenEnded_mscoco_val2014_questions.json")["questions"]
    rows = [{"question_id": one["question_id"], "answer": "yes"} for one in questions]
    (tmp_path / "answers.json").write_text(json.dumps(change(rows)))
    arguments = ["--predictions", tmp_path / "answers.json", "--output", tmp_path / "out"]
    assert run(files, None, *arguments, task="vqa") == 2
    _one_line(capsys, problem, "answers.json")
    assert not (tmp_path / "out").exists()


def _one_line(capsys, *problems):
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert printed.out == ""
    assert len(errors) == 1
    assert printed.err.endswith(errors[0] + "\n")
    for problem in problems:
        assert problem in errors[0]


TABLE = ["--regions", "scenes/regions"]


@pytest.mark.parametrize(
    "checkpoint, task, arguments, problem",
    [
        ("bert", "vgp", TABLE, "a checkpoint of the family 'bert', expected 'vl_bert'"),
        ("vqa", "vgp", TABLE, "VLBertForVGP lacks weights"),
        ("nowhere", "vgp", TABLE, "nowhere: no such folder, and not a name on the Hub"),
        ("vgp", "vpg", TABLE, f"--task vpg: unknown task, expected one of {', '.join(sorted(TASKS))}"),
        ("vgp", "vgp", [], "no region table"),
        ("vgp", "vgp", ["--regions", "nowhere"], "nowhere"),
        ("vgp", "vgp", [*TABLE, "--split", "dev"], "no such split: found 'dev'"),
        ("vgp", "vgp", [*TABLE, "--text-only"], "--text-only cannot be combined"),
        ("vgp", "vgp", [*TABLE, "--images", "nowhere"], "--images nowhere: no such folder"),
        ("vgp", "vgp", [*TABLE, "--set", "data.options.negative=random"], "did you mean 'data.options.negatives'"),
        ("vgp", "vgp", [*TABLE, "--set", "seed=1"], "--set seed=1: expected data.builder"),
        ("vgp", "vgp", ["--predictions", "x.json"], "either a CHECKPOINT or --predictions"),
        (None, "vgp", ["--predictions", "x.json"], "the task vgp has no official file of predictions"),
        ("damaged", "vgp", TABLE, "incomplete"),
        ("vqa", "vqa", ["--regions", "few"], "no regions for this image"),
    ],
)
def test_user_errors_are_one_line_and_status_2(
    files, tmp_path, monkeypatch, capsys, checkpoint, task, arguments, problem
):
    monkeypatch.chdir(files)
    if checkpoint == "damaged" and not (files / "damaged").exists():
        shutil.copytree(files / "vgp", files / "damaged")
        (files / "damaged" / "checkpoint_manifest.json").write_text('{"model.safetensors": {"size": 1}}')
    if "few" in arguments and not (files / "few").exists():
        _first_image_only(files / "scenes" / "regions", files / "few")
    assert run(files, checkpoint, *arguments, "--output", tmp_path / "out", task=task) == 2
    _one_line(capsys, problem)
    assert not (tmp_path / "out").exists()


def _first_image_only(source, target):
    table = RegionTable.open(source)
    with RegionTableWriter(target, {}) as writer:
        writer.write(table[table.ids[0]])


def test_missing_weights_are_refused_before_anything_is_scored(files, tmp_path, capsys):
    model = VLBertForVGP.from_pretrained(files / "vgp")
    kept = {name: value for name, value in model.state_dict().items() if "identification" not in name}
    shutil.copytree(files / "vgp", tmp_path / "cut")
    model.save_pretrained(tmp_path / "cut", state_dict={name: value.contiguous() for name, value in kept.items()})
    assert run(files, tmp_path / "cut", "--regions", files / "scenes" / "regions", task="vgp") == 2
    _one_line(capsys, "lacks weights, such as identification")


def test_images_are_found_by_file_name_id_or_as_coco_names_them(tmp_path):
    for name, side in (("a.png", 1), ("7.jpg", 2), ("COCO_val2014_000000000009.jpg", 3)):
        Image.new("RGB", (side * 10, 10)).save(tmp_path / name)
    asked = (("x", "a.png"), ("7", None), ("9", None), ("8", None))
    found = [find_picture(tmp_path, *arguments) for arguments in asked]
    assert [None if one is None else one.height for one in found] == [420, 210, 140, None]
    assert find_picture(None, "7", None) is None
