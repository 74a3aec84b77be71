# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention evaluate --perturb` on untrained models of scenes: what it writes, and the mistakes of users."""

import json

import numpy as np
import pytest

from grounded_attention.commands.evaluate import main
from tests.commands.untrained_models import untrained_models
from tests.helpers.commands import read_error, read_result

FIGURES = {"vgp": "identification_accuracy", "vqa": "vqa_accuracy", "referring_expressions": "expressions_accuracy"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Scenes, and an untrained model of each task."""
    folder = tmp_path_factory.mktemp("perturbation")
    with untrained_models(folder, FIGURES, initializer_range=0.3):
        yield folder


def arguments(files, task, *more):
    scenes = files / "scenes"
    given = [files / task, "--task", task, "--data-dir", scenes, "--regions", scenes / "regions", *more]
    return list(map(str, given))


@pytest.mark.parametrize("task", FIGURES)
def test_each_task_starts_at_the_accuracy_that_evaluation_finds(files, task, tmp_path, capsys):
    common = ("--limit", 8, "--seed", 3, "--json", "--output", tmp_path)
    if task == "referring_expressions":
        common += ("--set", "data.options.config_name=refcoco+")
    assert main(arguments(files, task, *common)) == 0
    expected = read_result(capsys)["validation"][FIGURES[task]]
    assert main(arguments(files, task, *common, "--perturb", "all", "--batch-size", 5, "--split", "val")) == 0
    printed = read_result(capsys)
    assert printed["accuracy"] == pytest.approx(expected)
    written = json.loads((tmp_path / "perturbation.json").read_text())
    assert written["areas"] == printed["areas"]
    assert written["examples"] == 8
    assert {curve["map"] for curve in written["curves"]} == {"raw_last", "raw_mean", "rollout", "relevancy", "random"}
    curves = np.array([curve["accuracy"] for curve in written["curves"]])
    for ends in (curves[:, 0], curves[:, -1]):
        assert np.ptp(ends) == 0, "all curves begin with all regions and end with none"
    assert (tmp_path / "perturbation.png").stat().st_size > 5000


def test_chosen_maps_and_a_table(files, tmp_path, capsys):
    given = ("--perturb", "rollout", "--limit", 6, "--output", tmp_path)
    assert main(arguments(files, "vgp", *given)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("accuracy with all regions 0.") or lines[0].endswith("1.0000")
    assert [line.strip("| ").split()[0] for line in lines[3:]] == ["rollout", "random", "written:"]


@pytest.mark.parametrize(
    "task, more, problem",
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
    assert problem in read_error(capsys)
