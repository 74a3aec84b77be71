# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Studies: starts that rows share, columns of the rows' own training, tasks on several numbers of rows."""

from functools import partial

import pytest

from grounded_attention.modeling.configuration_lxmert import LXMERTConfig
from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.training.studies.study import run_study
from tests.training.studies import Experiment, content, results, study_of

STARTS = {
    "lxmert": {"model": {"family": "lxmert"}, "data": {"limit": {"train": 50}}},
    "masked": {"options": {"word_probability": 0.3}},
}
ROWS = {
    "original": None,
    "none": {"methods": ["none"], "start": "lxmert"},
    "direct": {"methods": ["direct"], "start": "lxmert", "against": ["none"]},
    "plain": {"start": "masked", "fine_tuning": False},
}
TWO_STREAMS = LXMERTConfig(hidden_size=4, num_attention_heads=2, l_layers=1, r_layers=1, x_layers=2)


@pytest.fixture
def study(tmp_path):
    return partial(study_of, tmp_path)


@pytest.fixture
def shared(study):
    return partial(study, "rows=all", starts=STARTS, known_rows=ROWS)


def test_a_shared_start_is_trained_once_with_the_originals_other_keys(shared, tmp_path):
    experiment = Experiment()
    run_study(shared(), experiment)
    by_name = dict(zip(experiment.names, experiment.recipes, strict=True))
    assert experiment.names[:3] == ["start", "starts/lxmert", "starts/masked"]
    assert len(experiment.names) == len(by_name) == 3 + 2 * (2 + 3 + 3 + 2)
    start = by_name["starts/lxmert"]
    assert start.model.family == "lxmert"
    assert start.data.limit == {"train": 50}
    assert start.task == "pretraining"
    assert start.training == by_name["start"].training
    source = str(tmp_path / "run" / "starts" / "lxmert" / "none")
    names = [f"{row}/seed{seed}/fine_tuning" for row in ("none", "direct") for seed in (1, 2)]
    assert {by_name[name].model.source for name in names} == {source}
    assert by_name["starts/masked"].options == {"relationship": False, "word_probability": 0.3}
    trained = str(tmp_path / "run" / "starts" / "masked" / "none")
    assert by_name["plain/seed2/vqa"].model.source == trained, "no training between the start and the task"


def test_a_change_of_a_shared_start_refuses_the_cells_of_its_rows(shared):
    run_study(shared(), Experiment())
    experiment = Experiment()
    run_study(shared("starts.lxmert.training.max_steps=9", "overwrite=true"), experiment)
    assert experiment.names[0] == "starts/lxmert"
    assert len(experiment.names) == 1 + 2 * (3 + 3)


def test_a_row_is_compared_with_its_own_rows(shared, tmp_path):
    run_study(shared(), Experiment())
    found = results(tmp_path)
    differences = {row: of_row["VQA"]["differences"] for row, of_row in found["figures"].items()}
    compared = {row: [*others] for row, others in differences.items()}
    assert compared == {"original": [], "none": ["original"], "direct": ["none"], "plain": ["original"]}
    gain = differences["direct"]
    assert list(gain) == ["none"]
    assert gain["none"]["mean"] == pytest.approx(0.2)
    assert "| direct − none |" in (tmp_path / "run" / "table.md").read_text()


def tuning_columns(*scores):
    vqa = content("")["columns"][0]
    return [vqa, *({"name": s, "task": "fine_tuning", "split": "test", "score": s} for s in scores)]


def test_columns_of_the_rows_own_training(study, tmp_path):
    columns = tuning_columns("vgp_accuracy", "text_to_region_best_layer", "text_to_region_best_head")
    run_study(study("rows=[original,none,direct,continued]", columns=columns), Experiment(config=TWO_STREAMS))
    found = results(tmp_path)
    figures = found["figures"]
    assert list(figures["original"]) == list(figures["continued"]) == ["VQA"], "they have no such training"
    assert figures["none"]["vgp_accuracy"]["seeds"] == pytest.approx({"1": 0.51, "2": 0.52})
    # Layer 0 and head (0, 1) are the best of validation.
    assert figures["direct"]["text_to_region_best_layer"]["mean"] == pytest.approx((0.2 + 0.45) / 2)
    assert figures["direct"]["text_to_region_best_head"]["mean"] == pytest.approx(0.45)
    by_name = {column["name"]: column for column in found["columns"]}
    assert by_name["vgp_accuracy"]["baselines"] == {"majority": 0.25}
    assert by_name["vgp_accuracy"]["items"] is None
    assert by_name["text_to_region_best_head"]["baselines"] == {"chance": 0.125}


def test_a_figure_without_items_is_compared_by_seeds(study, tmp_path):
    recipe = study("rows=[none,direct]", against=["none"], columns=tuning_columns("vgp_accuracy"))
    run_study(recipe, Experiment(config=TWO_STREAMS))
    gain = results(tmp_path)["figures"]["direct"]["vgp_accuracy"]["differences"]["none"]
    assert gain["interval"] is False
    assert gain["claimed"] is False
    assert [gain["mean"], gain["low"], gain["high"]] == pytest.approx([0.2] * 3)
    assert "+20.0 (+20.0 to +20.0)" in (tmp_path / "run" / "table.md").read_text()


SIZED = {"vqa": {"task": "vqa", "sizes": [500, 2000, None], "training": {"use_cpu": True}}}


def test_a_task_on_several_numbers_of_rows(study, tmp_path):
    column = {"name": "VQA", "task": "vqa", "split": "validation", "score": "vqa_accuracy"}
    experiment = Experiment()
    run_study(study(downstream=SIZED, columns=[column, {**column, "name": "few", "task": "vqa@500"}]), experiment)
    by_name = dict(zip(experiment.names, experiment.recipes, strict=True))
    limits = [by_name[f"direct/seed2/vqa@{size}"].data.limit for size in ("500", "2000", "all")]
    assert limits == [{"train": 500}, {"train": 2000}, {}]
    assert {recipe.data.limit_seed for recipe in experiment.recipes} == {0}, "every seed has the same rows"
    found = results(tmp_path)
    names = ["VQA @500", "VQA @2000", "VQA @all"]
    assert [each["name"] for each in found["columns"]] == [*names, "few"]
    assert all(name in found["figures"]["direct"] for name in names)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("starts.lxmert.modell={}", ["'starts.lxmert.modell'", "'starts.lxmert.model'"]),
        ("known_rows.none.start=lxmrt", ["known_rows.none.start", "lxmrt", "lxmert"]),
        ("known_rows.none.against=[dirct]", ["'known_rows.none.against.dirct'", "'known_rows.none.against.direct'"]),
        ("known_rows.a@b={}", ["known_rows", "a@b"]),
        ("known_rows={'..': {methods: [none]}, direct: {}}", ["known_rows", "'..'"]),
        ("seeds=20000000", ["seeds", "1000", "20000000"]),
        ("rows=[[1]]", ["rows.0", "[1]"]),
        ("original.checkpoint=5", ["original.checkpoint", "5"]),
        ("known_rows.direct.data=5", ["known_rows.direct.data: "]),
        ("downstream.vqa.sizes=[0]", ["downstream.vqa.sizes.0", "found 0"]),
    ],
)
def test_a_wrong_section(shared, tmp_path, override, words):
    with pytest.raises(RecipeError) as error:
        shared(override)
    for word in [str(tmp_path / "study.yaml"), *words]:
        assert word in str(error.value)
