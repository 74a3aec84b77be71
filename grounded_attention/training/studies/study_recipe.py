# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Study recipes: one YAML file with an original model, the trainings of each row, and the downstream tasks."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.tasks import TASKS
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, build, check_names, check_one_method
from grounded_attention.utils.process_group import shares_memory
from grounded_attention.utils.schema import Section

from .study_sections import (
    STAGE_KEYS,
    Sections,
    merge_downstream,
    merge_original,
    merge_row,
    merge_start,
    merge_tuning,
    read_sections,
    stage_name,
)

FINE_TUNING = "fine_tuning"


@dataclass
class Column(Section):
    """One column of the table: the mean of a score on a split of a downstream task, or of the rows' own training."""

    task: str
    split: str
    score: str
    name: str = ""
    track: str | None = None


@dataclass(frozen=True)
class Row:
    """The trainings between the original model and the downstream tasks."""

    recipe: Recipe | None
    start: Recipe | str | None = None
    zero_visual_scales: bool = False
    against: list[str] | None = None


@dataclass
class Study:
    """A study: every row is trained with every seed and evaluated on every downstream task."""

    name: str
    source: str
    output_dir: str
    seeds: list[int]
    start_each_seed: bool
    rows: list[str]
    known_rows: dict[str, Row]
    original: Recipe
    checkpoint: str | None
    starts: dict[str, Recipe]
    downstream: dict[str, Recipe]
    columns: list[Column]
    curves: dict[str, dict[str, int | None]]
    tuned_task: str
    against: list[str]
    groups: dict[str, dict[str, str]]
    notes: list[str]
    overwrite: bool
    workers: int
    plan: bool

    @property
    def used_starts(self) -> dict[str, Recipe]:
        """The shared starts of the rows to run, in order of the rows."""
        named = [self.known_rows[row].start for row in self.rows]
        return {name: self.starts[name] for name in named if isinstance(name, str)}

    @property
    def uses_original(self) -> bool:
        """Whether a row starts from the original."""
        return any(self.known_rows[name].start is None for name in self.rows)

    def against_of(self, row: str) -> list[str]:
        """The rows that a row is compared with, itself excluded."""
        own = self.known_rows[row].against
        return [other for other in (self.against if own is None else own) if other != row]


def load_study(path: str | Path, overrides: Sequence[str] = ()) -> Study:
    """Reads a study recipe and applies overrides.

    Each section with a recipe may extend a recipe file (`extends`, relative to the study recipe). It takes the task,
    options, data, methods, supervision, preserve and training of that file; `original` and starts also take the
    model. The `data` of the study is merged over it, then the keys of the section. A row that extends nothing is
    merged over `fine_tuning`, a start over `original`.
    """
    source = str(path)
    sections = read_sections(path, overrides)
    original = _recipe(merge_original(sections), source, "original.")
    stages = {
        name: {
            stage_name(name, size, "sizes" in section): (size, _recipe(content, source, f"downstream.{name}."))
            for size, content in merge_downstream(name, sections).items()
        }
        for name, section in sections.downstream.items()
    }
    sized = {name: {stage: size for stage, (size, _) in stages[name].items()} for name in stages}
    numbered, curves = _columns(
        sections, {n: s for n, s in sized.items() if "sizes" in sections.downstream[n]}, source
    )
    study = Study(
        name=sections.study,
        source=source,
        output_dir=sections.output_dir,
        seeds=list(range(1, seeds + 1)) if isinstance(seeds := sections.seeds, int) else list(dict.fromkeys(seeds)),
        start_each_seed=sections.start_each_seed,
        rows=_rows(sections, source),
        known_rows={name: _row(name, row, sections, source) for name, row in sections.known_rows.items()},
        original=original,
        checkpoint=sections.original.get("checkpoint"),
        starts={name: _start(start, sections, source, f"starts.{name}.") for name, start in sections.starts.items()},
        downstream={stage: recipe for group in stages.values() for stage, (_, recipe) in group.items()},
        columns=[column for _, column in numbered],
        curves=curves,
        tuned_task=str(merge_tuning(sections).get("task", Recipe.task)),
        against=sections.against,
        groups=sections.groups,
        notes=sections.notes,
        overwrite=sections.overwrite,
        workers=sections.workers if sections.workers == 1 or shares_memory() else 1,
        plan=sections.plan,
    )
    for number, column in numbered:
        _check_column(column, study, f"{source}: columns[{number}]")
    return study


def _rows(sections: Sections, source: str) -> list[str]:
    """The rows to run, in the order of the known rows; always contains the row of the comparison."""
    wanted = list(sections.known_rows) if sections.rows == "all" else sections.rows
    check_names(wanted, sections.known_rows, "rows.", f"{source}: ")
    return [name for name in sections.known_rows if name in (*wanted, sections.against[0])]


# Sections to recipes


def _row(name: str, row: dict[str, Any] | None, sections: Sections, source: str) -> Row:
    if row is None:
        return Row(None)
    prefix = f"known_rows.{name}."
    start = row.get("start")
    if isinstance(start, str):
        check_names([start], sections.starts, f"{prefix}start=", f"{source}: ")
    elif start is not None:
        start = _start(start, sections, source, f"{prefix}start.")
    zeroed = row.get("zero_visual_scales", False)
    if zeroed and not isinstance(start, Recipe):
        raise RecipeError(f"{source}: {prefix}zero_visual_scales needs a start of this row: give {prefix}start")
    against = row.get("against")
    if against is not None:
        check_names(against, sections.known_rows, f"{prefix}against.", f"{source}: ")
    return Row(_tuning(row, sections, source, prefix), start, zeroed, against)


def _tuning(row: Mapping[str, Any], sections: Sections, source: str, prefix: str) -> Recipe | None:
    """The recipe of a row's own training; `None` if the row has `fine_tuning: false`."""
    if row.get("fine_tuning", True):
        return _recipe(merge_row(row, sections), source, prefix)
    unused = [key for key in (*STAGE_KEYS, "objectives", "extends") if key in row]
    if unused:
        raise RecipeError(f"{source}: {prefix}{unused[0]} has no effect with fine_tuning=false: remove one of them")
    return None


def _start(start: Any, sections: Sections, source: str, prefix: str) -> Recipe:
    return _recipe(merge_start(start, sections), source, prefix)


def _recipe(content: dict[str, Any], source: str, prefix: str) -> Recipe:
    """Makes a recipe with one method; a limited split has the same rows for every seed."""
    recipe: Recipe = build(Recipe, content, source, prefix)
    check_one_method(recipe, source, prefix)
    if recipe.training.get("push_to_hub"):
        raise RecipeError(
            f"{source}: {prefix}training.push_to_hub: the models of a study are not pushed; to push one of them, run "
            "its recipe alone"
        )
    seed = 0 if recipe.data.limit_seed is None else recipe.data.limit_seed
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, limit_seed=seed))


# Columns


def _columns(
    sections: Sections, sized: Mapping[str, Mapping[str, int | None]], source: str
) -> tuple[list[tuple[int, Column]], dict[str, dict[str, int | None]]]:
    """The columns with their numbers in the recipe, one for each size of a task with sizes; and the learning curves
    that these make."""
    columns: list[tuple[int, Column]] = []
    curves: dict[str, dict[str, int | None]] = {}
    for number, content in enumerate(sections.columns):
        column: Column = build(Column, content, source, f"columns[{number}].")
        column.name = column.name or " ".join(filter(None, (column.task, column.track, column.split)))
        stages = sized.get(column.task)
        if stages is None:
            columns.append((number, column))
            continue
        each = {f"{column.name} {stage.removeprefix(column.task)}": stage for stage in stages}
        columns += [(number, dataclasses.replace(column, name=name, task=stage)) for name, stage in each.items()]
        curves[column.name] = {name: stages[stage] for name, stage in each.items()}
    numbers: dict[str | None, int] = {}
    for number, column in columns:
        if numbers.setdefault(column.name, number) != number:
            raise RecipeError(
                f"{source}: columns[{numbers[column.name]}] and columns[{number}] have the same name {column.name!r}: "
                "give each its own `name`"
            )
    return columns, curves


def _check_column(column: Column, study: Study, place: str) -> None:
    check_names([column.task], (*study.downstream, FINE_TUNING), "task=", f"{place}: ")
    if column.task == FINE_TUNING:
        tuned = [row.recipe for row in study.known_rows.values() if row.recipe and row.recipe.task == study.tuned_task]
        if not tuned:
            raise RecipeError(f"{place}: no row has a training with the task {study.tuned_task}, found only others")
        recipe = tuned[0]
    else:
        recipe = study.downstream[column.task]
    data = recipe.data
    tracks = data.tracks or {}
    if column.track is not None:
        check_names([column.track], tracks, "track=", f"{place}: ")
    elif tracks:
        raise RecipeError(
            f"{place}: track is missing, but the task {column.task} is scored only on tracks: give one of "
            f"{', '.join(tracks)}"
        )
    builder = data.builder or TASKS[recipe.task].builder
    splits = [str(split) for split in BUILDERS[builder].BUILDER_CONFIG_CLASS.SPLIT_NAMES.values()]
    check_names([column.split], splits, "split=", f"{place}: ")
