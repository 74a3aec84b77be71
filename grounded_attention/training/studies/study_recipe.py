# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Study recipes: one YAML file with an original model, the trainings of each row, and the downstream tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval, Len, Predicate

from grounded_attention.training.recipes.recipe import (
    Recipe,
    apply_override,
    build,
    check_names,
    check_one_method,
    extended_path,
    further,
    overlay,
    read_recipe,
    read_yaml,
)
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.processes import shares_memory
from grounded_attention.utils.schema import Count, Of, Processes, Section, Seed
from grounded_attention.utils.schema import section as section_of

FINE_TUNING = "fine_tuning"
ORIGINAL = "original"
START = "start"
STARTS = "starts"
# Folders of a study beside those of its rows, and stages beside its downstream tasks.
RESERVED = (START, STARTS, FINE_TUNING)
STAGE_KEYS = ("task", "options", "data", "model", "methods", "supervision", "preserve", "training")

# What a stage extends stands there as its content, in a tuple: a merge replaces it whole.
_STAGE: Fields = dict.fromkeys(STAGE_KEYS, Any) | {"data": dict[str, Any], "extends": tuple[dict[str, Any]]}
_ROW = {
    **_STAGE,
    "fine_tuning": bool,
    "start": str,
    "against": list[str],
}
_SEEDS = Annotated[int, Interval(ge=1, le=1000)] | Annotated[list[Seed], Len(1, 1000)]
Stage = Annotated[Fields, Of(section_of(_STAGE))]
Original = Annotated[Fields, Of(section_of({**_STAGE, "checkpoint": str | None}))]
KnownRow = Annotated[Fields, Of(section_of(_ROW) | None)]  # None is a row as it stands
Downstream = Annotated[Fields, Of(section_of({**_STAGE, "sizes": Annotated[list[Count | None], Len(1)]}))]


@dataclass
class Column(Section):
    """One column of the table: the mean of a score on a split of a downstream task, or of the rows' own training."""

    task: str
    split: str
    score: str
    name: str = ""
    track: str | None = None


def is_folder(name: str) -> bool:
    """Whether a name can be that of a folder of the study, beside its own ones."""
    return name not in ("", "..", *RESERVED) and Path(name).name == name and "@" not in name


Folder = Annotated[str, Predicate(is_folder)]


@dataclass
class Sections(Section):
    """The content of a study recipe; `docs/api/training.md` describes the keys."""

    study: Folder
    output_dir: Annotated[str, Len(1)]
    original: Original
    known_rows: Annotated[dict[Folder, KnownRow], Len(1)]
    downstream: Annotated[dict[Folder, Downstream], Len(1)]
    columns: Annotated[list[Column], Len(1)]
    seeds: Annotated[Any, Of(_SEEDS)] = 1
    start_each_seed: bool = False
    rows: Literal["all"] | list[str] = "all"
    data: Fields = field(default_factory=dict)
    starts: dict[Folder, Stage] = field(default_factory=dict)
    fine_tuning: Stage = field(default_factory=dict)
    against: Annotated[list[str], Len(1)] = field(default_factory=lambda: [ORIGINAL])
    notes: list[str] = field(default_factory=list)
    overwrite: bool = False
    workers: Processes = 1
    plan: bool = False


@dataclass
class Study:
    """A study: every row is trained with every seed and evaluated on every downstream task."""

    source: str
    sections: Sections  # with seeds as a list, the rows that run in the order of the known ones, and their defaults
    starts: dict[str, Recipe]  # the original among them
    tunings: dict[str, Recipe | None]  # row -> its own training
    downstream: dict[str, Recipe]
    columns: list[Column]
    tuned_task: str  # of `fine_tuning`, which the columns of the rows' own training are about

    @property
    def output(self) -> Path:
        """The folder of all cells."""
        return Path(self.sections.output_dir)

    @property
    def checkpoint(self) -> str | None:
        """The original, if it is one from elsewhere."""
        return self.sections.original.get("checkpoint")

    def start_of(self, row: str) -> str:
        """The name of a row's start: `original`, or one of `starts`."""
        return str(self.sections.known_rows[row]["start"])

    def against_of(self, row: str) -> list[str]:
        """The rows that run and that a row is compared with, itself excluded."""
        against = self.sections.known_rows[row]["against"]
        return [other for other in against if other != row and other in self.sections.rows]


def load_study(path: str | Path, overrides: Sequence[str] = ()) -> Study:
    """
    Reads a study recipe and applies overrides.

    Each section with a recipe may extend a recipe file (`extends`, relative to the study recipe). It takes the task,
    options, data, methods, supervision, preserve and training of that file; `original` and starts also take the
    model. The `data` of the study is merged over it, then the keys of the section. A row that extends nothing is
    merged over `fine_tuning`, a start over `original`.
    """
    source = str(path)
    sections = _read_sections(Path(path), overrides)
    original = overlay({"task": "pretraining"}, _content(sections.original, sections, model=True))
    starts = {ORIGINAL: _recipe(original, source, "original.")}
    for name, start in sections.starts.items():
        content = _content(start, sections, over=original, model=True)
        starts[name] = _recipe(content, source, f"starts.{name}.")
    tuned = _content(sections.fine_tuning, sections)
    tunings = dict[str, Recipe | None]()
    for name, row in sections.known_rows.items():
        tunings[name] = None  # straight to the downstream tasks
        if row["fine_tuning"]:
            tunings[name] = _recipe(_content(row, sections, over=tuned), source, f"known_rows.{name}.")
    downstream = _downstream(sections, source)
    columns = _columns(sections, downstream, source)
    return Study(source, sections, starts, tunings, downstream, columns, str(tuned.get("task", Recipe.task)))


def _read_sections(path: Path, overrides: Sequence[str]) -> Sections:
    content = _read_study(path)
    for override in overrides:
        apply_override(content, override)
    sections: Sections = build(Sections, content, str(path), "")
    place = f"{path}: "
    check_names(sections.against, sections.known_rows, "against.", place)
    for name, own in sections.known_rows.items():
        row = {"start": ORIGINAL, "against": sections.against, "fine_tuning": bool(own), **(own or {})}
        check_names(row["against"], sections.known_rows, f"known_rows.{name}.against.", place)
        check_names([row["start"]], [*sections.starts, ORIGINAL], f"known_rows.{name}.start=", place)
        sections.known_rows[name] = row
    if sections.rows == "all":
        wanted = list(sections.known_rows)
    else:
        wanted = sections.rows
    check_names(wanted, sections.known_rows, "rows.", place)
    sections.rows = [name for name in sections.known_rows if name in (*wanted, sections.against[0])]
    seeds = sections.seeds
    if isinstance(seeds, int):
        sections.seeds = list(range(1, seeds + 1))
    else:
        sections.seeds = list(dict.fromkeys(seeds))
    sections.workers = sections.workers if shares_memory() else 1
    return sections


def _read_study(path: Path, below: tuple[Path, ...] = ()) -> Fields:
    """A study recipe merged over the one it extends; a section's `extends` becomes the content that it names."""
    below = further(below, path)
    content = read_yaml(path)
    for section in _stages(content):
        if "extends" in section:
            section["extends"] = (read_recipe(extended_path(path, section)),)
    if "extends" not in content:
        return content
    return overlay(_read_study(extended_path(path, content), below), content)


def _stages(content: Columns) -> list[Fields]:
    """The sections of a study recipe that contain a recipe."""
    sections = [content.get(ORIGINAL), content.get(FINE_TUNING)]
    for group in ("known_rows", "starts", "downstream"):
        if isinstance(content.get(group), dict):
            sections += content[group].values()
    return [section for section in sections if isinstance(section, dict)]


# Sections to recipes


def _content(section: Columns, sections: Sections, over: Fields | None = None, model: bool = False) -> Fields:
    """The recipe that a section extends with the data of the study over it, or else `over`; then its own keys."""
    if over is None or "extends" in section:
        extended = section["extends"][0] if "extends" in section else {}
        kept = {}
        for key in STAGE_KEYS:
            if key in extended and (model or key != "model"):
                kept[key] = extended[key]
        over = overlay(kept, {"data": sections.data})
    return overlay(over, {key: value for key, value in section.items() if key in STAGE_KEYS})


def _downstream(sections: Sections, source: str) -> dict[str, Recipe]:
    """Stage -> recipe; a task with `sizes` has a stage for each number of training rows."""
    recipes = {}
    for name, section in sections.downstream.items():
        content = _content(section, sections)
        for size in section.get("sizes", ()):
            if size is None:
                limited = content
            else:
                limited = overlay(content, {"data": {"limit": {"train": size}}})
            recipes[f"{name}@{size or 'all'}"] = _recipe(limited, source, f"downstream.{name}.")
        if "sizes" not in section:
            recipes[name] = _recipe(content, source, f"downstream.{name}.")
    return recipes


def _recipe(content: Fields, source: str, prefix: str) -> Recipe:
    """A recipe with one method; a limited split has the same rows for every seed."""
    recipe: Recipe = build(Recipe, content, source, prefix)
    check_one_method(recipe, source, prefix)
    return replace(recipe, data=replace(recipe.data, limit_seed=recipe.data.limit_seed or 0))


# Columns


def _columns(sections: Sections, tasks: Mapping[str, Recipe], source: str) -> list[Column]:
    """The columns; one of a task with sizes is one for each size."""
    columns: dict[str, Column] = {}
    for column in sections.columns:
        name = column.name or " ".join(filter(None, (column.task, column.track, column.split)))
        stages = [stage for stage in tasks if stage.startswith(f"{column.task}@")] or [column.task]
        check_names(stages, [*tasks, FINE_TUNING], "columns.task=", f"{source}: ")
        for stage in stages:
            size = stage.removeprefix(column.task)
            sized = replace(column, task=stage, name=f"{name} {size}" if size else name)
            columns[sized.name] = sized
    return [*columns.values()]
