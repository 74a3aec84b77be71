# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Studies: starts that rows share, columns of the rows' own training, tasks on several numbers of rows."""

import pytest
import yaml

from grounded_attention.training.recipes.recipe import RecipeError
from tests.training.runs import assert_words, results

SHARED = """
rows: all
starts:
  lxmert: {model: {family: lxmert}, data: {limit: {train: 50}}}
  masked: {options: {word_probability: 0.3}}
known_rows:
  original: null
  none: {methods: [none], start: lxmert}
  direct: {methods: [direct], start: lxmert, against: [none]}
  plain: {start: masked, fine_tuning: false}
"""
QUESTIONS = "{name: VQA, task: vqa, split: validation, score: vqa_accuracy}"
ACCURACY = "{name: vgp_accuracy, task: fine_tuning, split: test, score: vgp_accuracy}"
BEST_LAYER = "{name: layer, task: fine_tuning, split: test, score: text_to_region_best_layer}"
BEST_HEAD = "{name: head, task: fine_tuning, split: test, score: text_to_region_best_head}"


@pytest.fixture
def sections():
    return yaml.safe_load(SHARED)


def test_a_shared_start_is_trained_once_with_the_originals_other_keys(sections, tmp_path, run_cells):
    by_name = run_cells(**sections).by_name
    assert [*by_name][:3] == ["start", "starts/lxmert", "starts/masked"]
    assert len(by_name) == 3 + 2 * (2 + 3 + 3 + 2)
    start = by_name["starts/lxmert"]
    assert start.model.family == "lxmert"
    assert start.data.limit == {"train": 50}
    assert start.task == "pretraining"
    assert start.training == by_name["start"].training
    for name in ("none/seed1", "none/seed2", "direct/seed1", "direct/seed2"):
        assert by_name[f"{name}/fine_tuning"].model.source == f"{tmp_path}/run/starts/lxmert/none"
    assert by_name["starts/masked"].options == {"relationship": False, "word_probability": 0.3}
    source = by_name["plain/seed2/vqa"].model.source
    assert source == f"{tmp_path}/run/starts/masked/none", "no training between the start and the task"


def test_a_change_of_a_shared_start_refuses_the_cells_of_its_rows(sections, run_cells):
    run_cells(**sections)
    again = run_cells("starts.lxmert.training.max_steps=9", "overwrite=true", **sections)
    assert again.names[0] == "starts/lxmert"
    assert len(again.names) == 1 + 2 * (3 + 3)


def test_a_row_is_compared_with_its_own_rows(sections, tmp_path, run_cells):
    run_cells(**sections)
    found = results(tmp_path / "run")
    compared = {"original": [], "none": ["original"], "direct": ["none"], "plain": ["original"]}
    for row, others in compared.items():
        assert [*found["figures"][row]["VQA"]["differences"]] == others
    gain = found["figures"]["direct"]["VQA"]["differences"]["none"]
    assert gain["mean"] == pytest.approx(0.2)
    assert "| direct − none |" in (tmp_path / "run/table.md").read_text()


def test_columns_of_the_rows_own_training(tmp_path, run_cells):
    columns = f"columns=[{QUESTIONS}, {ACCURACY}, {BEST_LAYER}, {BEST_HEAD}]"
    run_cells("rows=[original,none,direct,continued]", columns)
    found = results(tmp_path / "run")
    figures = found["figures"]
    assert list(figures["original"]) == list(figures["continued"]) == ["VQA"], "they have no such training"
    assert figures["none"]["vgp_accuracy"]["seeds"] == pytest.approx({"1": 0.51, "2": 0.52})
    # Layer 0 and head (0, 1) are the best of validation.
    assert figures["direct"]["layer"]["mean"] == pytest.approx((0.2 + 0.45) / 2)
    assert figures["direct"]["head"]["mean"] == pytest.approx(0.45)
    by_name = {column["name"]: column for column in found["columns"]}
    assert by_name["vgp_accuracy"]["baselines"] == {"majority": 0.25}
    assert by_name["vgp_accuracy"]["items"] is None
    assert by_name["head"]["baselines"] == {"chance": 0.125}


def test_a_figure_without_items_is_compared_by_seeds(tmp_path, run_cells):
    run_cells("rows=[none,direct]", "against=[none]", f"columns=[{QUESTIONS}, {ACCURACY}]")
    gain = results(tmp_path / "run")["figures"]["direct"]["vgp_accuracy"]["differences"]["none"]
    assert gain["interval"] is False
    assert gain["claimed"] is False
    assert [gain["mean"], gain["low"], gain["high"]] == pytest.approx([0.2] * 3)
    assert "+20.0 (+20.0 to +20.0)" in (tmp_path / "run/table.md").read_text()


def test_a_task_on_several_numbers_of_rows(tmp_path, run_cells):
    few = "{name: few, task: vqa@500, split: validation, score: vqa_accuracy}"
    sizes = "downstream={vqa: {task: vqa, sizes: [500, 2000, null], training: {use_cpu: true}}}"
    experiment = run_cells(sizes, f"columns=[{QUESTIONS}, {few}]")
    by_name = experiment.by_name
    limits = [by_name[f"direct/seed2/vqa@{size}"].data.limit for size in ("500", "2000", "all")]
    assert limits == [{"train": 500}, {"train": 2000}, {}]
    assert {recipe.data.limit_seed for recipe in experiment.recipes} == {0}, "every seed has the same rows"
    found = results(tmp_path / "run")
    names = ["VQA @500", "VQA @2000", "VQA @all"]
    assert [column["name"] for column in found["columns"]] == [*names, "few"]
    assert all(name in found["figures"]["direct"] for name in names)


@pytest.mark.parametrize(
    "override, words",
    [
        ("starts.lxmert.modell={}", "'starts.lxmert.modell' ... 'starts.lxmert.model'"),
        ("known_rows.none.start=lxmrt", "known_rows.none.start ... lxmrt ... lxmert"),
        ("known_rows.none.against=[dirct]", "'known_rows.none.against.dirct' ... 'known_rows.none.against.direct'"),
        ("known_rows.a@b={}", "known_rows ... a@b"),
        ("known_rows={'..': {methods: [none]}, direct: {}}", "known_rows ... '..'"),
        ("seeds=20000000", "seeds ... 1000 ... 20000000"),
        ("rows=[[1]]", "rows.0 ... [1]"),
        ("original.checkpoint=5", "original.checkpoint ... 5"),
        ("known_rows.direct.data=5", "known_rows.direct.data: "),
        ("downstream.vqa.sizes=[0]", "downstream.vqa.sizes.0 ... found 0"),
    ],
)
def test_a_wrong_section(sections, tmp_path, override, words, study):
    with pytest.raises(RecipeError) as error:
        study(override, **sections)
    assert_words(str(error.value), f"{tmp_path}/study.yaml ... {words}")
