# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs a study: repeats recipes over rows and seeds, each cell in a folder of its own, and writes one table."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from accelerate import PartialState

from grounded_attention.dataset_scripts.hub.tables import is_on_hub
from grounded_attention.training.experiments.checks import check
from grounded_attention.training.experiments.experiment import model_named, run, say
from grounded_attention.training.experiments.output import delete_run, identity, read_json
from grounded_attention.training.loop.checkpoint import is_complete
from grounded_attention.training.loop.side_by_side import join_processes, only_process, run_jobs
from grounded_attention.training.recipes.recipe import Preserve, Recipe, RecipeError, is_quiet
from grounded_attention.utils.safe_paths import refuse_links
from grounded_attention.utils.whole_files import write_json, write_text

from .study_recipe import FINE_TUNING, ORIGINAL, START, STARTS, Study
from .study_table import check_scores, study_results, study_table

RECORD = "cell.json"
FINISHED = "finished"
STARTED = "started"
MISSING = "missing"
OTHER = "of another recipe"

Experiment = Callable[[Recipe], Any]


@dataclass(frozen=True)
class Cell:
    """One run of one recipe. A start that all rows share has no row, and one that all seeds share no seed."""

    name: str
    stage: str
    recipe: Recipe
    parent: "Cell | None" = None
    row: str | None = None
    seed: int | None = None

    @property
    def directory(self) -> Path:
        """The folder of its files."""
        return Path(self.recipe.output_dir)

    @property
    def checkpoint(self) -> Path:
        """The folder of its trained model."""
        return self.directory / self.recipe.methods[0]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of its recipe and of the recipes of all cells before it."""
        above = self.parent.fingerprint if self.parent else ""
        content = json.dumps([identity(self.recipe), above], sort_keys=True, default=str)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def state(self) -> str:
        """The state of its folder: finished, started, missing, or of another recipe."""
        record = read_json(self.directory / RECORD)
        if record is None:
            return MISSING
        if record != {"fingerprint": self.fingerprint}:
            return OTHER
        finished = (self.checkpoint / "results.json").is_file() and is_complete(self.checkpoint)
        if finished:
            return FINISHED
        return STARTED


def plan_cells(study: Study) -> list[Cell]:
    """All cells in the order of their runs: the starts, all rows with the first seed, then with the next seed; each
    seed begins with its own starts if the study has `start_each_seed`."""
    cells: list[Cell] = []
    starts: dict[str, Cell] = {}
    for seed in study.sections.seeds:
        if not starts or study.sections.start_each_seed:
            starts = _starts(study, seed if study.sections.start_each_seed else None)
            cells += starts.values()
        for row in study.sections.rows:
            parent = starts.get(study.start_of(row))
            tuning = study.tunings[row]
            if tuning is not None:
                parent = _cell(study, FINE_TUNING, tuning, parent, row, seed)
                cells.append(parent)
            cells += [_cell(study, task, recipe, parent, row, seed) for task, recipe in study.downstream.items()]
    return cells


def _starts(study: Study, seed: int | None) -> dict[str, Cell]:
    """Name -> the cell of a start that a row needs; an original from elsewhere has none."""
    names = dict.fromkeys(study.start_of(row) for row in study.sections.rows)
    cells = {}
    for name in sorted(names, key=lambda name: name != ORIGINAL):
        recipe = study.starts[name]
        folder = START if name == ORIGINAL else f"{STARTS}/{name}"
        if seed is not None:
            folder = f"{folder}/seed{seed}"
            recipe = replace(recipe, seed=seed)
        if name != ORIGINAL or not study.checkpoint:
            cells[name] = Cell(folder, START, _placed(study, recipe, folder), seed=seed)
    return cells


def _cell(study: Study, stage: str, recipe: Recipe, parent: Cell | None, row: str, seed: int) -> Cell:
    name = f"{row}/seed{seed}/{stage}"
    model = recipe.model
    if model.source is not None or model.bert is not None:
        parent = None
    elif parent is not None:
        model = replace(model, source=str(parent.checkpoint))
    else:  # a checkpoint from elsewhere may have no processor
        original = study.starts[ORIGINAL].model
        processor = {**original.processor, **model.processor}
        tokenizer = model.tokenizer or original.tokenizer
        model = replace(model, source=study.checkpoint, tokenizer=tokenizer, processor=processor)
    return Cell(name, stage, _placed(study, replace(recipe, model=model, seed=seed), name), parent, row, seed)


def _placed(study: Study, recipe: Recipe, folder: str) -> Recipe:
    return replace(recipe, output_dir=str(study.output / folder), workers=study.sections.workers, resume=True)


def run_study(study: Study, experiment: Experiment = run) -> None:
    """Trains and measures every unfinished cell, then writes `results.json` and `<study>.md`."""
    cells = plan_cells(study)
    join_processes(cells[0].recipe.training)
    check_cells(study, cells, places=not study.sections.plan)
    states = {cell.name: cell.state for cell in cells}

    def progress() -> str:
        finished = [*states.values()].count(FINISHED)
        return f"{study.output}: {finished} of {len(states)} cells finished"

    say("\n".join([progress(), *(f"  {name}  {state}" for name, state in states.items())]))
    if study.sections.plan:
        return
    with only_process(study.output):
        _clear(study, cells, states)
        try:
            missing = [cell for cell in cells if states[cell.name] != FINISHED]
            quiet = all(is_quiet(cell.recipe) for cell in missing)
            for cell in run_jobs(missing, study.sections.workers, partial(_run_cell, experiment=experiment), quiet):
                check_scores(study, cell)
                states[cell.name] = FINISHED
                say(f"{cell.name}: finished; {progress()}")
        finally:
            write_report(study, [cell for cell in cells if states[cell.name] == FINISHED], len(cells))


def _run_cell(cell: Cell, experiment: Experiment) -> None:
    say(f"cell {cell.name}")
    main = PartialState().is_main_process
    if main:
        write_json(cell.directory / RECORD, {"fingerprint": cell.fingerprint})
    try:
        with model_named(cell.name):
            experiment(cell.recipe)
    except BaseException:
        if main and not (cell.directory / "recipe.json").is_file():
            (cell.directory / RECORD).unlink()  # refused before training, so a corrected recipe may use the folder
        raise
    PartialState().wait_for_everyone()


def check_cells(study: Study, cells: Sequence[Cell], places: bool = True) -> None:
    """Checks the recipes of the cells before any training; cells of other seeds differ only in the seed."""
    for cell in cells:
        if cell.seed not in (None, study.sections.seeds[0]):
            continue
        data = cell.recipe.data
        absent = data.scenes is None and not is_on_hub(data.data_dir) and not Path(data.data_dir).exists()
        try:
            if places and absent:
                raise RecipeError(f"data.data_dir {data.data_dir}: no such folder; docs/data.md lists its files")
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


def _clear(study: Study, cells: Sequence[Cell], states: dict[str, str]) -> None:
    """Deletes cells of another recipe with `overwrite`; raises an error without it."""
    others = [cell for cell in cells if states[cell.name] == OTHER]
    if others and not study.sections.overwrite:
        raise RecipeError(
            f"{others[0].directory} contains a cell of another recipe (and {len(others) - 1} more of {len(cells)} "
            "cells): give another output_dir, or overwrite=true to train these cells again"
        )
    refuse_links(study.output)
    state = PartialState()
    state.wait_for_everyone()
    for cell in others:
        if state.is_main_process:
            delete_run(cell.directory)
        states[cell.name] = MISSING
    state.wait_for_everyone()


def write_report(study: Study, finished: Sequence[Cell], count: int) -> None:
    """Writes the table of the finished cells, from the main process only, once a row's cell has finished."""
    of_rows = [cell for cell in finished if cell.row is not None]
    if of_rows and PartialState().is_main_process:
        results = study_results(study, of_rows, {"finished": len(finished), "all": count})
        table = study_table(results)
        write_json(study.output / "results.json", results)
        write_text(study.output / f"{study.sections.study}.md", table)
        say(f"written: {study.output}/ (results.json, {study.sections.study}.md)\n\n{table}")
