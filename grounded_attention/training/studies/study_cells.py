# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The cells of a study: each is one run of one recipe in its own folder, with a state."""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from grounded_attention.training.experiments.output import identity, read_json
from grounded_attention.training.loop.checkpoint import is_complete
from grounded_attention.training.recipes.recipe import Recipe, RecipeError
from grounded_attention.utils.bounded_files import FileError

from .study_recipe import FINE_TUNING, Study

RECORD = "cell.json"
NUMBERS = ("runs", "spent", "seconds", "parameters", "train_rows")
START, STARTS = "start", "starts"
FINISHED, STARTED, MISSING, OTHER = "finished", "started", "missing", "of another recipe"


@dataclass(frozen=True)
class Cell:
    """One run. A cell that does not depend on the row or the seed has none."""

    name: str
    stage: str
    recipe: Recipe
    parent: "Cell | None" = None
    row: str | None = None
    seed: int | None = None
    zero_visual_scales: bool = False

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
        content = json.dumps([identity(self.recipe), self.zero_visual_scales, above], sort_keys=True, default=str)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def record(self) -> dict[str, Any] | None:
        """The content of its record file: `fingerprint`, `runs` (how often it was started) and `spent` (seconds of
        runs that ended before it had finished); if it has finished `seconds` (of all runs), `parameters` and
        `train_rows`.
        """
        remedy = f"the file is damaged: delete {self.directory}, and this cell is trained again"
        try:
            content = read_json(self.directory / RECORD)
        except FileError as error:
            raise RecipeError(f"{error}; {remedy}") from error
        if content is not None and not _is_record(content):
            expected = "expected the fingerprint of a cell and numbers"
            raise RecipeError(f"{self.directory / RECORD}: found {str(content)[:100]!r}, {expected}; {remedy}")
        return content

    @property
    def state(self) -> str:
        """The state of its folder: finished, started, missing, or of another recipe."""
        record = self.record
        if record is None:
            return MISSING
        if record["fingerprint"] != self.fingerprint:
            return OTHER
        done = "seconds" in record and (self.checkpoint / "results.json").is_file() and is_complete(self.checkpoint)
        return FINISHED if done else STARTED


def _is_record(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("fingerprint"), str):
        return False
    numbers = {name: content[name] for name in NUMBERS if name in content}
    if numbers.get("train_rows", 0) is None:  # a cell whose model was complete before has not counted them
        del numbers["train_rows"]
    return all(isinstance(value, int | float) and 0 <= value < math.inf for value in numbers.values())


def plan_cells(study: Study) -> list[Cell]:
    """All cells in the order of their runs: the starts, all rows with the first seed, then with the next seed; each
    seed begins with its own starts if the study has `start_each_seed`."""
    cells: list[Cell] = []
    starts: dict[str, Cell | None] = {}
    for seed in study.seeds:
        if not cells or study.start_each_seed:
            starts = _starts(study, seed if study.start_each_seed else None)
            cells += {id(cell): cell for cell in starts.values() if cell is not None}.values()
        for name in study.rows:
            parent, recipe = starts[name], study.known_rows[name].recipe
            if recipe is not None:
                parent = _cell(study, f"{name}/seed{seed}/{FINE_TUNING}", FINE_TUNING, recipe, parent, name, seed)
                cells.append(parent)
            cells += [
                _cell(study, f"{name}/seed{seed}/{task}", task, downstream, parent, name, seed)
                for task, downstream in study.downstream.items()
            ]
    return cells


def _starts(study: Study, seed: int | None) -> dict[str, Cell | None]:
    """The cell of each row's start, the original's first; `None` if it is a checkpoint from elsewhere."""
    original = None
    if study.checkpoint is None and study.uses_original:
        original = _start(study, START, study.original, seed)
    shared = {name: _start(study, f"{STARTS}/{name}", recipe, seed) for name, recipe in study.used_starts.items()}
    rows = {name: study.known_rows[name] for name in study.rows}
    starts = {name: original for name, row in rows.items() if row.start is None}
    starts |= {name: shared[row.start] for name, row in rows.items() if isinstance(row.start, str)}
    for name, row in rows.items():
        if isinstance(row.start, Recipe):
            own = _start(study, f"{name}/{START}", row.start, seed)
            starts[name] = replace(own, row=name, zero_visual_scales=row.zero_visual_scales)
    return starts


def _start(study: Study, name: str, recipe: Recipe, seed: int | None) -> Cell:
    if seed is not None:
        name, recipe = f"{name}/seed{seed}", replace(recipe, seed=seed)
    directory = str(Path(study.output_dir) / name)
    return Cell(name, START, replace(recipe, output_dir=directory, workers=study.workers, resume=True), seed=seed)


def _cell(study: Study, name: str, stage: str, recipe: Recipe, parent: Cell | None, row: str, seed: int) -> Cell:
    model = recipe.model
    if model.source is None and model.bert is None:
        fields: dict[str, Any] = {"source": str(parent.checkpoint) if parent else study.checkpoint}
        if parent is None:  # a checkpoint from elsewhere may have no processor
            original = study.original.model
            fields |= {"tokenizer": model.tokenizer or original.tokenizer}
            fields |= {"processor": {**original.processor, **model.processor}}
        model = replace(model, **fields)
    else:
        parent = None
    directory = str(Path(study.output_dir) / name)
    recipe = replace(recipe, model=model, seed=seed, output_dir=directory, workers=study.workers, resume=True)
    return Cell(name, stage, recipe, parent, row, seed)
