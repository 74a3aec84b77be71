# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`evaluate --faithful` on untrained models of scenes: what it writes, and the mistakes of users."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from grounded_attention.analysis import MAPS
from grounded_attention.commands.evaluate import main
from grounded_attention.training.experiments.prepared_data import PreparedData
from grounded_attention.training.experiments.scoring import measure_faithfulness
from grounded_attention.training.recipes.recipe import Recipe
from tests.commands.untrained_models import untrained_models
from tests.helpers.commands import read_error, read_result

FIGURES = {"vgp": "identification_accuracy", "vqa": "vqa_accuracy", "referring_expressions": "expressions_accuracy"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Scenes, and an untrained model of each task."""
    folder = tmp_path_factory.mktemp("faithful")
    with untrained_models(folder, FIGURES, initializer_range=0.3):
        yield folder


def arguments(files, task, *more):
    scenes = files / "scenes"
    given = [files / task, "--task", task, "--data-dir", scenes, "--regions", scenes / "regions", *more]
    return list(map(str, given))


@pytest.mark.parametrize("task", FIGURES)
def test_each_task_starts_at_the_accuracy_that_evaluation_finds(files, task, tmp_path, capsys):
    common = ("--limit", 5, "--seed", 3, "--json", "--output", tmp_path)
    if task == "referring_expressions":
        common += ("--set", "data.options.config_name=refcoco+")
    assert main(arguments(files, task, *common)) == 0
    expected = read_result(capsys)["validation"][FIGURES[task]]
    assert main(arguments(files, task, *common, "--faithful", "all", "--batch-size", 3, "--split", "val")) == 0
    printed = read_result(capsys)
    assert json.loads((tmp_path / "faithful.json").read_text()) == printed
    assert printed["items"] + printed["without_a_score"] == 5
    assert set(printed["curves"]) == {*MAPS, "random"}
    curves = np.array([*printed["curves"].values()])  # (M, 2, F)
    assert_allclose(curves[:, 0, 0], expected)
    for ends in (curves[:, [0, 1], [0, -1]], curves[:, [0, 1], [-1, 0]]):
        assert np.ptp(ends) == 0, "all curves go from all regions to none, or back"
    assert (tmp_path / "faithful.png").stat().st_size > 5000


def test_chosen_maps_and_a_table(files, tmp_path, capsys):
    given = ("--faithful", "rollout", "--limit", 6, "--output", tmp_path)
    assert main(arguments(files, "vgp", *given)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip("| ").split()[0] for line in lines if line.startswith("|")][2:] == ["rollout", "random"]
    assert "items 6" in lines[-2]


@pytest.mark.parametrize(
    "task, more, problem",
    [
        ("vgp", ("--task", "vqa"), "VLBertForVisualQuestionAnswering lacks weights"),
        ("vgp", ("--split", "minival"), "minival"),
        ("vgp", ("--split", "val", "--split", "test"), "one --split"),
        ("vgp", ("--set", "training.seed=1"), "--set training.seed=1: expected data.builder=NAME"),
        ("vgp", ("--regions", "nowhere"), "nowhere"),
    ],
)
def test_user_errors_are_one_line_and_status_2(files, task, more, problem, capsys):
    assert main(arguments(files, task, "--faithful", "all", *more)) == 2
    assert problem in read_error(capsys)


def test_a_task_without_a_decision_is_refused():
    with pytest.raises(ValueError, match="expected one of gqa, referring_expressions, vgp, vqa"):
        measure_faithfulness(Recipe("vcr"), "nowhere", PreparedData({}, None), "test")
