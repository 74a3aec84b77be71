# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Studies: which cells there are, what is shared, how they continue, what is compared, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from grounded_attention.training.loop.side_by_side import run_side_by_side
from grounded_attention.training.recipes.recipe import RecipeError, read_recipe
from grounded_attention.training.studies.study import check_cells, plan_cells, run_study
from grounded_attention.training.studies.study_recipe import load_study
from tests.training.runs import assert_words, read_json, results
from tests.training.studies import Experiment

RECIPES = Path(__file__).parents[2] / "recipes"
STUDIES = [path for path in sorted(RECIPES.glob("*/*.yaml")) if "study" in read_recipe(path)]


@pytest.mark.parametrize(
    "path", [path for path in STUDIES if load_study(path).starts["original"].data.scenes], ids=lambda p: p.name
)
def test_studies_on_scenes_start_in_an_empty_folder(path, tmp_path, monkeypatch):
    study = load_study(path)
    monkeypatch.chdir(tmp_path)
    check_cells(study, plan_cells(study))


CELLS = """
start
original/seed1/vqa original/seed1/refs direct/seed1/fine_tuning direct/seed1/vqa direct/seed1/refs
original/seed2/vqa original/seed2/refs direct/seed2/fine_tuning direct/seed2/vqa direct/seed2/refs
""".split()


def test_cells_are_trained_once_and_feed_each_other(tmp_path, run_cells):
    experiment = run_cells()
    assert experiment.names == CELLS
    by_name = experiment.by_name
    sources = {name: recipe.model.source for name, recipe in by_name.items()}
    assert sources["start"] is None
    assert sources["original/seed2/vqa"] == sources["direct/seed2/fine_tuning"] == f"{tmp_path}/run/start/none"
    tuned = f"{tmp_path}/run/direct/seed2/fine_tuning/direct"
    assert sources["direct/seed2/vqa"] == sources["direct/seed2/refs"] == tuned
    assert {recipe.seed for name, recipe in by_name.items() if "seed2" in name} == {2}
    assert {recipe.data.limit_seed for recipe in experiment.recipes} == {0}, "every seed is judged on the same items"
    assert by_name["direct/seed1/fine_tuning"].supervision.weight == 3.0
    assert by_name["direct/seed1/vqa"].supervision.weight == 1.0


def test_results_pair_seeds_and_items(tmp_path, run_cells):
    run_cells("rows=[direct,continued]", "seeds=5")
    found = results(tmp_path / "run")
    assert found["rows"] == ["original", "direct", "continued"]
    assert found["seeds"] == [1, 2, 3, 4, 5]
    vqa, refs = found["columns"]
    assert (vqa["items"], vqa["images"], refs["items"], refs["images"]) == (11, 4, 12, 4)
    assert refs["name"] == "refs found testA"
    assert vqa["baselines"] == {"majority": 0.25}
    assert refs["baselines"] == {"chance": 0.125}
    expected = [0.2 + np.random.default_rng(seed).random(12)[:11].mean() / 2 for seed in range(1, 6)]
    figure = found["figures"]["direct"]["VQA"]
    assert figure["seeds"]["3"] == pytest.approx(expected[2])
    assert figure["mean"] == pytest.approx(np.mean(expected))
    gain = figure["differences"]["original"]
    assert [gain["mean"], gain["low"], gain["high"]] == pytest.approx([0.2] * 3)
    assert gain["claimed"]
    assert gain["seeds"] == [1, 2, 3, 4, 5]
    assert found["figures"]["original"]["VQA"]["differences"] == {}
    table = (tmp_path / "run/table.md").read_text()
    assert "direct is better than original on VQA" in table


def test_two_seeds_claim_nothing(tmp_path, run_cells):
    run_cells()
    assert not results(tmp_path / "run")["figures"]["direct"]["VQA"]["differences"]["original"]["claimed"]
    assert "No difference is claimed" in (tmp_path / "run/table.md").read_text()


def test_an_interrupted_study_reports_and_continues(study, tmp_path, run_cells):
    with pytest.raises(KeyboardInterrupt):
        run_study(study(), Experiment(fails_at="direct/seed2/vqa"))
    half = results(tmp_path / "run")
    assert half["cells"] == {"finished": 9, "all": 11}
    assert list(half["figures"]["direct"]["VQA"]["seeds"]) == ["1"]
    assert half["figures"]["direct"]["VQA"]["differences"]["original"]["seeds"] == [1]
    assert "2 of 11 cells" in (tmp_path / "run/table.md").read_text()
    torn = tmp_path / "run/original/seed1/vqa/none/items_validation.json"
    torn.write_text(torn.read_text()[:50])
    assert run_cells().names == ["original/seed1/vqa", "direct/seed2/vqa", "direct/seed2/refs"]
    assert run_cells().names == []


def test_cells_side_by_side_write_what_one_after_another_write(study, tmp_path, capfd, run_cells):
    run_cells()
    one_by_one = results(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "first")
    run_cells(workers=2)
    assert results(tmp_path / "run") == one_by_one
    assert "11 of 11 cells finished" in capfd.readouterr().out
    assert all((cell.directory / "log.txt").is_file() for cell in plan_cells(study()))


def test_a_failure_beside_others_leaves_them_whole_and_continues(study, run_cells):
    with pytest.raises(FloatingPointError):  # a KeyboardInterrupt ends the others too
        run_study(study(workers=2), Experiment(fails_at="original/seed1/refs", error=FloatingPointError))
    states = {cell.name: cell.state for cell in plan_cells(study())}
    assert states["original/seed1/refs"] == "started"
    assert states["original/seed1/vqa"] == "finished"
    assert run_cells().names == [name for name, state in states.items() if state != "finished"]


def test_a_cell_waits_for_the_one_that_it_is_trained_from(study):
    cells = plan_cells(study())
    finished = [cell.name for cell in run_side_by_side(cells, 3, _check_parent)]
    assert sorted(finished) == sorted(cell.name for cell in cells)


def _check_parent(cell):
    """Runs in a process of its own, so the folders tell what has finished."""
    assert cell.parent is None or (cell.parent.directory / "ended").is_file(), cell.name
    (cell.directory / "ended").touch()


def test_more_rows_and_seeds_keep_what_is_there(run_cells):
    run_cells()
    names = run_cells("rows=all", "seeds=[2,3]").names
    assert not {*CELLS} & {*names}
    assert {"none/seed2/vqa", "original/seed3/vqa"} < {*names}
    assert len(names) == len({*names}) == (2 + 3) + 2 * (3 + 3)


def test_a_change_refuses_the_cells_below_it_and_overwrite_trains_them_again(run_cells):
    run_cells()
    with pytest.raises(RecipeError, match=r"fine_tuning contains a cell of another recipe .*5 more.*overwrite=true"):
        run_cells("fine_tuning.training.max_steps=6")
    again = run_cells("fine_tuning.training.max_steps=6", "overwrite=true")
    assert again.names == [name for name in CELLS if name.startswith("direct/")]
    below = run_cells("fine_tuning.training.max_steps=6", "original.training.max_steps=9", "overwrite=true")
    assert below.names == CELLS, "every cell is trained from the original"


def test_a_plan_writes_nothing(tmp_path, capsys, run_cells):
    run_cells("plan=true")
    lines = capsys.readouterr().out
    assert "0 of 11 cells finished" in lines
    assert ["direct/seed2/refs", "missing"] in map(str.split, lines.split("\n"))
    assert not (tmp_path / "run").exists()


def test_a_row_of_another_task_has_the_steps_of_the_fine_tuning(study):
    cells = {cell.name: cell.recipe for cell in plan_cells(study("rows=all"))}
    found = cells["continued/seed1/fine_tuning"]
    assert (found.task, found.methods, found.options) == ("pretraining", ["none"], {"relationship": False})
    assert found.training == {"max_steps": 5, "use_cpu": True, "learning_rate": 0.5}
    assert found.data.limit == {"validation": 8}
    assert found.data.builder is None


def test_every_seed_can_train_its_own_starts(tmp_path, run_cells):
    by_name = run_cells("start_each_seed=true").by_name
    assert [name for name in by_name if name.startswith("start")] == ["start/seed1", "start/seed2"]
    for seed in (1, 2):
        assert by_name[f"start/seed{seed}"].seed == seed
        source = by_name[f"direct/seed{seed}/fine_tuning"].model.source
        assert source == f"{tmp_path}/run/start/seed{seed}/none"


def test_an_original_from_elsewhere_is_not_trained(study):
    elsewhere = {"checkpoint": "checkpoints/base", "model": {"tokenizer": "vocab.txt"}}
    cells = {cell.name: cell for cell in plan_cells(study(original=elsewhere))}
    assert "start" not in cells
    model = cells["original/seed1/vqa"].recipe.model
    assert (model.source, model.tokenizer) == ("checkpoints/base", "vocab.txt")
    assert cells["direct/seed1/vqa"].recipe.model.tokenizer is None, "a trained checkpoint has its processor"


@pytest.mark.parametrize(
    "override, words",
    [
        ("seedz=3", "'seedz' ... 'seeds'"),
        ("seeds=[1,a]", "seeds.1 ... 'a'"),
        ("seeds=0", "seeds ... found 0"),
        ("workers=0", "workers ... found 0"),
        ("rows=[dirct]", "'rows.dirct' ... 'rows.direct'"),
        ("known_rows.direct.methodz=[x]", "'known_rows.direct.methodz' ... 'known_rows.direct.methods'"),
        ("known_rows.direct.methods=[none,direct]", "known_rows.direct.methods must contain exactly one method"),
        ("downstream.vqa.task=vqaa", "downstream.vqa.task ... vqaa ... 'vqa'"),
        ("downstream.vqa.trainin={}", "'downstream.vqa.trainin' ... 'downstream.vqa.training'"),
        ("original.extends=other.yaml", "original.extends ... other.yaml"),
        ("output_dir=", "output_dir"),
        ("study=a/b", "study ... a/b"),
    ],
)
def test_a_wrong_study_recipe(study, tmp_path, override, words):
    with pytest.raises(RecipeError) as error:
        study(override)
    assert_words(str(error.value), f"{tmp_path}/study.yaml ... {words}")


def test_a_column_of_something_unknown(study):
    with pytest.raises(RecipeError, match=r"columns\.task=vqaa"):
        study("columns=[{task: vqaa, split: validation, score: vqa_accuracy}]")
    with pytest.raises(RecipeError, match=r"columns\.0\.split"):
        study("columns=[{task: vqa, score: vqa_accuracy}]")


def test_a_score_that_a_task_does_not_write_is_found_with_its_first_cell(study):
    experiment = Experiment()
    column = {"task": "vqa", "split": "validation", "score": "accuracy"}
    with pytest.raises(RecipeError, match=r"no score 'accuracy'.*vqa_accuracy"):
        run_study(study(columns=[column]), experiment)
    assert experiment.names == ["start", "original/seed1/vqa"]


def test_a_recipe_that_cannot_run_is_refused_before_anything_is_trained(study):
    experiment = Experiment()
    with pytest.raises(RecipeError, match=r"cell original/seed1/vqa: unknown key 'training\.max_stepz'"):
        run_study(study("downstream.vqa.training.max_stepz=3"), experiment)
    with pytest.raises(RecipeError, match=r"known_rows\.direct\.methods=directt"):
        run_study(study("known_rows.direct.methods=[directt]"), experiment)
    with pytest.raises(RecipeError, match=r"cell direct/seed1/fine_tuning: .*supervision.options.direct.layers"):
        run_study(study("known_rows.direct.supervision.options.direct.layer=[1]"), experiment)
    assert experiment.names == []


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_shipped_studies_are_sound(path):
    study = load_study(path, ["rows=all", "seeds=5"])
    cells = plan_cells(study)
    assert len(cells) == len({cell.name for cell in cells})
    if study.checkpoint is None:  # what the real one starts from is not here to look into
        check_cells(study, cells, places=False)
    assert len({column.name for column in study.columns}) == len(study.columns) >= 3


# The real thing


# Two rows and two seeds, each cell of two steps.
TINY = """
study: tiny
output_dir: FOLDER/run
seeds: 2
data: {data_dir: SCENES, regions: SCENES/regions, limit: {train: 16, validation: 8, test: 8, testA: 8, testB: 8}}
original:
  options: {relationship: false, background: false}
  training: &training
    {max_steps: 2, per_device_train_batch_size: 4, per_device_eval_batch_size: 16, logging_steps: 1,
     save_strategy: 'no', use_cpu: true, disable_tqdm: true}
  model:
    tokenizer: SCENES/vocab.txt
    config: {hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 16,
             max_position_embeddings: 128, region_classes: 65}
starts:
  text: {options: {regions: false}, data: {regions: null}}
fine_tuning: {task: vgp, training: *training}
known_rows:
  original: null
  direct: {methods: [direct]}
  continued: {task: pretraining, options: {relationship: false, background: false}}
  read: {methods: [none], start: text}
rows: [original, direct]
downstream:
  vqa: {task: vqa, options: {answers: {fewest: 1}}, training: *training}
  refcoco+:
    task: referring_expressions
    data: {regions: [SCENES/regions, SCENES/regions_gt],
           tracks: {detected: SCENES/regions, ground_truth: SCENES/regions_gt}}
    training: *training
columns:
- {task: vqa, split: validation, score: vqa_accuracy}
- {task: refcoco+, track: detected, split: validation, score: expressions_accuracy}
- {task: refcoco+, track: detected, split: testA, score: expressions_accuracy}
- {task: refcoco+, track: ground_truth, split: validation, score: expressions_accuracy}
- {task: refcoco+, track: ground_truth, split: testA, score: expressions_accuracy}
"""


def test_a_study_of_scenes_from_end_to_end(tmp_path, capsys, run_recipe, scenes):
    recipe = yaml.safe_load(TINY.replace("SCENES", str(scenes)).replace("FOLDER", str(tmp_path)))
    run_recipe(recipe)
    assert "11 cells" in capsys.readouterr().out
    found = results(tmp_path / "run")
    assert found["cells"] == {"finished": 11, "all": 11}
    for row in found["rows"]:
        for column in found["columns"]:
            figure = found["figures"][row][column["name"]]
            assert len(figure["seeds"]) == 2
            assert 0 <= figure["mean"] <= 1
            assert column["items"] > 0
    by_name = {column["name"]: column for column in found["columns"]}
    assert by_name["refcoco+ ground_truth validation"]["baselines"]["upper_bound"] == 1.0
    assert 0 < by_name["refcoco+ detected validation"]["baselines"]["chance"] < 0.5
    own = read_json(tmp_path / "run/direct/seed2/refcoco+/none/results.json")
    written = found["figures"]["direct"]["refcoco+ detected validation"]["seeds"]["2"]
    assert written == pytest.approx(own["figures"]["validation"]["detected_expressions_accuracy"])
    before = (tmp_path / "run/results.json").stat().st_mtime_ns
    run_recipe(recipe, "rows=all", "seeds=[1]")
    out = capsys.readouterr().out
    assert "6 of 13 cells finished" in out
    assert "cell starts/text" in out
    assert (tmp_path / "run/results.json").stat().st_mtime_ns > before


def test_a_cell_that_was_refused_before_it_began_is_missing(study):
    def refuse(recipe):
        raise RecipeError("a wrong value that only the data show")

    found = study()
    with pytest.raises(RecipeError, match="a wrong value"):
        run_study(found, refuse)
    assert {cell.state for cell in plan_cells(found)} == {"missing"}


def test_a_study_without_its_data_is_an_error_but_can_be_planned(tmp_path, capsys, run_cells):
    gone = f"data.data_dir={tmp_path / 'gone'}"
    with pytest.raises(RecipeError, match=r"study.yaml: cell start: data.data_dir .*gone: no such folder"):
        run_cells(gone)
    assert not (tmp_path / "run").exists()
    run_cells(gone, "plan=true")
    assert "0 of" in capsys.readouterr().out


@pytest.mark.parametrize("content", ['{"fingerprint": "ab', "[1]", '{"fingerprint": 3}'])
def test_a_damaged_record_of_a_cell_is_not_trained_over(study, content, run_cells):
    run_cells()
    cell = plan_cells(study())[1]
    (cell.directory / "cell.json").write_text(content)
    with pytest.raises(ValueError, match=str(cell.directory)):
        run_cells()
    shutil.rmtree(cell.directory)
    assert run_cells().names == [cell.name]
