# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention evaluate --perturb` on untrained models of scenes: what it writes, and the mistakes of users."""

import json

import datasets
import pytest
from transformers import set_seed

from grounded_attention.commands.evaluate import main
from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VLBertConfig
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.models import make_processor
from grounded_attention.training.recipes.recipe import Model
from tests.helpers.tiny_scenes import tiny_scenes

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"max_position_embeddings": 128, "region_classes": 80, "initializer_range": 0.3}
FIGURES = {"vgp": "identification_accuracy", "vqa": "vqa_accuracy", "referring_expressions": "expressions_accuracy"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Scenes, and an untrained model of each task."""
    folder = tmp_path_factory.mktemp("perturbation")
    cache = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = folder / "cache"
    scenes = tiny_scenes(folder / "scenes")
    processor = make_processor(Model(tokenizer=str(scenes / "vocab.txt")))
    for name in FIGURES:
        set_seed(0)
        more = {"answers": ["yes", "no", "1", "2"]} if name == "vqa" else {}
        config = VLBertConfig(vocab_size=len(processor.tokenizer), **SIZES, **more)
        FAMILIES["vl_bert"].heads[TASKS[name].head](config).save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
    yield folder
    datasets.config.HF_DATASETS_CACHE = cache


def arguments(files, task, *more):
    scenes = files / "scenes"
    given = [files / task, "--task", task, "--data-dir", scenes, "--regions", scenes / "regions", *more]
    return list(map(str, given))


@pytest.mark.parametrize("task", FIGURES)
def test_each_task_starts_at_the_accuracy_that_evaluation_finds(files, task, tmp_path, capsys):
    common = ("--limit", 8, "--seed", 3, "--json", "--output", tmp_path)
    more = ("--set", "data.options.config_name=refcoco+") if task == "referring_expressions" else ()
    assert main(arguments(files, task, *common, *more)) == 0
    expected = json.loads(capsys.readouterr().out)["validation"][FIGURES[task]]
    assert main(arguments(files, task, *common, *more, "--perturb", "all", "--batch-size", 5, "--split", "val")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["accuracy"] == pytest.approx(expected)
    written = json.loads((tmp_path / "perturbation.json").read_text())
    assert written["areas"] == printed["areas"]
    assert written["examples"] == 8
    assert {curve["map"] for curve in written["curves"]} == {"raw_last", "raw_mean", "rollout", "relevancy", "random"}
    starts, ends = ({curve["accuracy"][place] for curve in written["curves"]} for place in (0, -1))
    assert len(starts) == len(ends) == 1, "all curves begin with all regions and end with none"
    assert (tmp_path / "perturbation.png").stat().st_size > 5000


def test_chosen_maps_and_a_table(files, tmp_path, capsys):
    given = ("--perturb", "rollout", "--limit", 6, "--output", tmp_path)
    assert main(arguments(files, "vgp", *given)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("accuracy with all regions 0.") or lines[0].endswith("1.0000")
    assert [line.strip("| ").split()[0] for line in lines[3:]] == ["rollout", "random", "written:"]


@pytest.mark.parametrize(
    ("task", "more", "problem"),
    [
        ("vgp", ("--task", "vcr"), "--task vcr: expected one of gqa, referring_expressions, vgp, vqa"),
        ("vgp", ("--task", "vqa"), "VLBertForVisualQuestionAnswering lacks weights"),
        ("vgp", ("--split", "minival"), "minival"),
        ("vgp", ("--set", "training.seed=1"), "--set training.seed=1: expected data.builder=NAME"),
        ("vgp", ("--regions", "nowhere"), "nowhere"),
    ],
)
def test_user_errors_are_one_line_and_status_2(files, task, more, problem, capsys):
    assert main(arguments(files, task, "--perturb", "all", *more)) == 2
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert printed.out == ""
    assert len(errors) == 1
    assert printed.err.endswith(errors[0] + "\n")
    assert problem in errors[0]
