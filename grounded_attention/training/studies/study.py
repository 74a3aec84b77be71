# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs a study: trains its unfinished cells, each with its own recipe, and writes the table of the finished cells."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from safetensors.torch import load_file, save_file

from grounded_attention.reports.figures import heads_figure
from grounded_attention.reports.study_curves import learning_curves_figure
from grounded_attention.reports.study_figures import differences_figure, study_table
from grounded_attention.training.experiments.checks import check
from grounded_attention.training.experiments.experiment import model_named, run, say
from grounded_attention.training.experiments.output import delete_run, run_entries
from grounded_attention.training.experiments.processes import join_processes, only_process
from grounded_attention.training.loop.checkpoint import seal
from grounded_attention.training.loop.side_by_side import run_side_by_side
from grounded_attention.training.recipes.places import check_checkpoints, check_data
from grounded_attention.training.recipes.recipe import Data, Model, Preserve, Recipe, RecipeError, is_quiet
from grounded_attention.utils.safe_paths import refuse_links
from grounded_attention.utils.whole_files import whole_file, write_json, write_text

from .study_cells import FINISHED, MISSING, OTHER, RECORD, START, Cell, plan_cells
from .study_recipe import Study
from .study_results import check_scores, count_parameters, study_results

VISUAL_NORMS = ("text_visual.norm.weight", "region_visual.norm.weight")

Experiment = Callable[[Recipe], Any]


def run_study(study: Study, experiment: Experiment = run) -> None:
    """Trains and measures every unfinished cell, then writes `results.json`, `<name>.md` and the figures."""
    cells = plan_cells(study)
    join_processes(cells[0].recipe.training)
    if not study.plan:
        check_study_places(study)
    check_cells(study, cells)
    states = {cell.name: cell.state for cell in cells}
    say(cell_list(study, cells, states))
    if study.plan:
        return
    with only_process(Path(study.output_dir)):
        _clear(study, cells, states)
        _run_cells(study, cells, states, experiment)


def _run_cells(study: Study, cells: Sequence[Cell], states: dict[str, str], experiment: Experiment) -> None:
    """Runs the unfinished cells, and writes the table after each seed and at the end."""
    try:
        for cell in _run_missing(study, cells, states, experiment):
            check_scores(study, cell)
            states[cell.name] = FINISHED
            if cell.stage == START:
                check_cells(study, cells)  # checks that need the new checkpoint
            say(f"{cell.name}: finished; {time_left(cells, states, study.workers)}")
            if _ends_a_seed(cell, cells, states):
                write_report(study, cells, states)
    finally:
        table = write_report(study, cells, states)
        if table:
            say(f"\n{table}")


def _run_missing(
    study: Study, cells: Sequence[Cell], states: Mapping[str, str], experiment: Experiment
) -> Iterator[Cell]:
    """Runs the unfinished cells, one after another or in parallel; yields each cell when it has finished."""
    if study.workers > 1:
        if PartialState().num_processes > 1:
            raise RecipeError(
                f"{study.source}: workers={study.workers} needs a single process: run without the launcher"
            )
        missing = [cell for cell in cells if states[cell.name] != FINISHED]
        quiet = all(is_quiet(cell.recipe) for cell in missing)
        yield from run_side_by_side(missing, study.workers, partial(_run_cell, experiment=experiment), quiet)
        return
    for number, cell in enumerate(cells):
        if states[cell.name] != FINISHED:
            say(f"cell {number + 1} of {len(cells)}: {cell.name}")
            _run_cell(cell, experiment)
            yield cell


def check_study_places(study: Study) -> None:
    """Checks that the data and then the checkpoints of a study exist."""
    rows = {name: study.known_rows[name] for name in study.rows}
    recipes = {"original": study.original} if study.uses_original and not study.checkpoint else {}
    recipes |= {f"starts.{name}": recipe for name, recipe in study.used_starts.items()}
    recipes |= {f"known_rows.{name}.start": row.start for name, row in rows.items() if isinstance(row.start, Recipe)}
    recipes |= {f"known_rows.{name}": row.recipe for name, row in rows.items() if row.recipe}
    recipes |= {f"downstream.{name}": recipe for name, recipe in study.downstream.items()}
    models = {"original": (Model(source=study.checkpoint), Data())} if study.checkpoint else {}
    for key, recipe in recipes.items():
        with _section_errors(f"{study.source}: {key}"):
            check_data(recipe.data, "data.")
    models |= {key: (recipe.model, recipe.data) for key, recipe in recipes.items()}
    for key, (model, data) in models.items():
        with _section_errors(f"{study.source}: {key}"):
            check_checkpoints(model, data)


@contextmanager
def _section_errors(place: str) -> Iterator[None]:
    try:
        yield
    except RecipeError as error:
        raise RecipeError(f"{place}: {error}") from error


def check_cells(study: Study, cells: Sequence[Cell]) -> None:
    """Checks the recipes of the cells before any training."""
    for cell in cells:
        if cell.seed in (None, study.seeds[0]):  # cells of other seeds differ only in the seed
            try:
                check(_checkable(cell))
            except RecipeError as error:
                raise RecipeError(f"{study.source}: cell {cell.name}: {error}") from error


def _checkable(cell: Cell) -> Recipe:
    """The recipe to check. If its start checkpoint does not exist yet, it has the model of the first training instead,
    and no `preserve`, which needs the checkpoint."""
    if cell.parent is None or (cell.parent.checkpoint / "config.json").is_file():
        return cell.recipe
    first = cell.parent
    while first.parent is not None:
        first = first.parent
    model = replace(first.recipe.model, config={**first.recipe.model.config, **cell.recipe.model.config})
    return replace(cell.recipe, model=model, preserve=Preserve())


def cell_list(study: Study, cells: Sequence[Cell], states: Mapping[str, str]) -> str:
    """One line per cell with its state, and the number of finished cells."""
    width = max(len(cell.name) for cell in cells)
    lines = [f"  {cell.name.ljust(width)}  {states[cell.name]}{_seconds_text(cell)}" for cell in cells]
    done = sum(state == FINISHED for state in states.values())
    return "\n".join([f"{study.output_dir}: {done} of {len(cells)} cells finished", *lines])


def _seconds_text(cell: Cell) -> str:
    seconds = (cell.record or {}).get("seconds")
    return "" if seconds is None else f" ({seconds:.0f} s)"


def time_left(cells: Sequence[Cell], states: Mapping[str, str], workers: int = 1) -> str:
    """The number of remaining cells and their estimated time in minutes, from finished cells of the same stage."""
    durations: dict[str, list[float]] = {}
    for cell in cells:
        seconds = (cell.record or {}).get("seconds") if states[cell.name] == FINISHED else None
        if seconds is not None:
            for kind in (cell.stage, "", f"{cell.stage} of {cell.row}"):
                durations.setdefault(kind, []).append(seconds)
    means = {kind: sum(values) / len(values) for kind, values in durations.items()}
    waiting = [cell for cell in cells if states[cell.name] != FINISHED]
    if not waiting:
        return "all cells have finished"
    kinds = [(f"{cell.stage} of {cell.row}", cell.stage, "") for cell in waiting]
    left = sum(next((means[kind] for kind in of_cell if kind in means), 0.0) for of_cell in kinds)
    return f"{len(waiting)} cells left, about {left / 60 / workers:.0f} min"


def _clear(study: Study, cells: Sequence[Cell], states: dict[str, str]) -> None:
    """Deletes cells of another recipe with `overwrite`; raises an error without it."""
    others = [cell for cell in cells if states[cell.name] == OTHER]
    if others and not study.overwrite:
        raise RecipeError(
            f"{others[0].directory} contains a cell of another recipe (and {len(others) - 1} more of {len(cells)} "
            "cells): give another output_dir, or overwrite=true to train these cells again"
        )
    refuse_links(Path(study.output_dir))
    for cell in others:
        run_entries(cell.directory)
    state = PartialState()
    state.wait_for_everyone()
    for cell in others:
        if state.is_main_process:
            delete_run(cell.directory)
        states[cell.name] = MISSING
    state.wait_for_everyone()


def _run_cell(cell: Cell, experiment: Experiment) -> None:
    main = PartialState().is_main_process
    before = cell.record or {}
    spent, runs = before.get("spent", 0.0), before.get("runs", 0) + 1
    record: dict[str, Any] = {"fingerprint": cell.fingerprint, "runs": runs, "spent": spent}
    if main:
        write_json(cell.directory / RECORD, record)
    begun = time.monotonic()
    try:
        with model_named(cell.name):
            outcome = experiment(cell.recipe)
    except BaseException:
        if main and not (cell.directory / "recipe.json").is_file():
            (cell.directory / RECORD).unlink()  # refused before training, so a corrected recipe may use the folder
        elif main:
            write_json(cell.directory / RECORD, {**record, "spent": _seconds_since(begun, spent)})
        raise
    if main:
        if cell.zero_visual_scales:
            zero_visual_scales(cell.checkpoint)
        train_rows = None if outcome is None else len(outcome.data.splits["train"])
        facts = {"parameters": count_parameters(cell.checkpoint), "train_rows": train_rows}
        write_json(cell.directory / RECORD, {**record, "seconds": _seconds_since(begun, spent), **facts})
    PartialState().wait_for_everyone()


def _seconds_since(begun: float, spent: float) -> float:
    return round(spent + time.monotonic() - begun, 1)


def zero_visual_scales(checkpoint: Path) -> None:
    """Sets the scales of the visual normalisation to 0, their initial value in a model made from BERT weights."""
    path = checkpoint / "model.safetensors"
    weights = load_file(path)
    scales = [name for name in weights if name.endswith(VISUAL_NORMS)]
    if not scales:
        raise ValueError(
            f"{path}: found no scale of a visual normalisation, expected a weight such as {VISUAL_NORMS[0]}"
        )
    for name in scales:
        weights[name].zero_()
    with whole_file(path) as draft:
        save_file(weights, draft, metadata={"format": "pt"})
    seal(checkpoint)


def _ends_a_seed(cell: Cell, cells: Sequence[Cell], states: Mapping[str, str]) -> bool:
    """Whether the cell is the last one of its seed, and cells of other seeds remain."""
    own = [states[other.name] for other in cells if other.seed == cell.seed]
    return cell.seed is not None and set(own) == {FINISHED} and set(states.values()) != {FINISHED}


def write_report(study: Study, cells: Sequence[Cell], states: Mapping[str, str]) -> str:
    """Writes the report of the finished cells, from the main process only, once a downstream task has finished."""
    judged = any(cell.stage in study.downstream and states[cell.name] == FINISHED for cell in cells)
    if not PartialState().is_main_process or not judged:
        return ""
    output = Path(study.output_dir)
    results = study_results(study, cells, states)
    write_json(output / "results.json", results)
    table = study_table(results)
    write_text(output / f"{study.name}.md", table)
    differences_figure(results, output / f"{study.name}.png")
    files = ["results.json", f"{study.name}.md", f"{study.name}.png"]
    if results["curves"]:
        files.append(f"{study.name}_curves.png")
        learning_curves_figure(results, output / files[-1])
    for start, heads in results["heads"].items():
        files.append(f"heads_{start}.png")
        heads_figure(heads["accuracy"], heads["chance"], output / files[-1], heads["layers"])
    say(f"written: {output}/ ({', '.join(files)})")
    return table
