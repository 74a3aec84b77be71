# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Study recipes: one YAML file with an original model, the trainings of each row, and the downstream tasks."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.tasks import TASKS
from grounded_attention.training.recipes.recipe import (
    Recipe,
    RecipeError,
    apply_override,
    build,
    check_names,
    convert,
    extended_path,
    overlay,
    read_recipe,
    read_yaml,
)

# Keys of a stage; the study sets its folder, its seed and its start.
STAGE_KEYS = ("task", "options", "data", "model", "methods", "supervision", "preserve", "training")
ORIGINAL_KEYS = (*STAGE_KEYS, "checkpoint")
ROW_KEYS = (*STAGE_KEYS, "objectives", "start", "zero_visual_scales")


@dataclass
class Column:
    """
    One column of the table: the mean of an item score on a split of a downstream task.

    Args:
        task (`str`): key of `downstream`.
        split (`str`): split of the task's data.
        score (`str`): column of its `items_<split>.json`.
        name (`str`, *optional*, defaults to `""`): heading; by default task, track and split.
        track (`str`, *optional*): key of its `data.tracks`.
    """

    task: str
    split: str
    score: str
    name: str = ""
    track: str | None = None


@dataclass(frozen=True)
class Row:
    """The trainings between the original model and the downstream tasks.

    Args:
        recipe (`Recipe | None`): the fine-tuning; None uses the original unchanged.
        start (`Recipe`, *optional*): recipe of a model that is trained once and replaces the original.
        zero_visual_scales (`bool`, *optional*, defaults to `False`): whether to set the scales of the visual
            normalisation of `start` to 0.
    """

    recipe: Recipe | None
    start: Recipe | None = None
    zero_visual_scales: bool = False


@dataclass
class Study:
    """A study: every row is trained with every seed and evaluated on every downstream task.

    Args:
        name (`str`): stem of the output files `<name>.md` and `<name>.png`.
        source (`str`): the file of the study recipe.
        output_dir (`str`): folder of the cells.
        seeds (`list[int]`): seeds of the cells.
        rows (`list[str]`): the rows to run, a subset of `known_rows`; contains the first of `against`.
        known_rows (`dict[str, Row]`): all rows by name.
        original (`Recipe`): recipe of the original model.
        checkpoint (`str | None`): directory or Hub id of an original model that the study does not train.
        downstream (`dict[str, Recipe]`): name -> recipe of a downstream task.
        columns (`list[Column]`): columns of the table.
        against (`list[str]`): rows that each row is compared with; the table shows the first.
        notes (`list[str]`): sentences printed below the table.
        overwrite (`bool`): delete cells of another recipe instead of raising an error.
        workers (`int`): number of cells to run in parallel, each in a process with its share of the threads.
        plan (`bool`): list the cells and train nothing.
    """

    name: str
    source: str
    output_dir: str
    seeds: list[int]
    rows: list[str]
    known_rows: dict[str, Row]
    original: Recipe
    checkpoint: str | None
    downstream: dict[str, Recipe]
    columns: list[Column]
    against: list[str]
    notes: list[str]
    overwrite: bool
    workers: int
    plan: bool


@dataclass
class _Sections:
    """The top level of a study recipe, before its sections are merged."""

    study: str
    output_dir: str = ""
    seeds: Any = 1
    rows: Any = "all"
    data: dict[str, Any] = field(default_factory=dict)
    original: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    known_rows: dict[str, Any] = field(default_factory=dict)
    downstream: dict[str, Any] = field(default_factory=dict)
    columns: list[Any] = field(default_factory=list)
    against: list[str] = field(default_factory=lambda: ["original"])
    notes: list[str] = field(default_factory=list)
    overwrite: bool = False
    workers: int = 1
    plan: bool = False


class _Extended:
    """The content of the recipe that a section extends. It is not a dict, so a merge replaces it as a whole."""

    def __init__(self, content: dict[str, Any]):
        self.content = content


def load_study(path: str | Path, overrides: Sequence[str] = ()) -> Study:
    """
    Reads a study recipe and applies overrides.

    Each section with a recipe may extend a recipe file (`extends`, relative to the study recipe). It takes the task,
    options, data, methods, supervision, preserve and training of that file; `original` and `start` also take the
    model. The `data` of the study is merged over it, then the keys of the section. A row that extends nothing is
    merged over `fine_tuning`.

    Args:
        path (`str | Path`): a YAML file.
        overrides (`Sequence[str]`, *optional*): `key=value` texts with dotted keys and YAML values.

    Returns:
        `Study`: the checked study.

    Raises:
        RecipeError: if the file cannot be read, a key is unknown (the message contains the nearest key), a value has
            the wrong type, or a row or column refers to something unknown.
    """
    source = str(path)
    content = _read_study(Path(path))
    for override in overrides:
        apply_override(content, override)
    for section in _recipes(content):
        if not isinstance(section.get("extends", _Extended({})), _Extended):
            raise RecipeError(
                f"{source}: extends is not allowed as an override, found {section['extends']!r}; put it into a file"
            )
    sections = build(_Sections, content, source, "")
    _check_sections(sections, source)
    original = _recipe(_original(sections), source, "original.")
    known = {name: _row(name, row, sections, source) for name, row in sections.known_rows.items()}
    study = Study(
        name=sections.study,
        source=source,
        output_dir=sections.output_dir,
        seeds=_seeds(sections.seeds, source),
        rows=_rows(sections, source),
        known_rows=known,
        original=original,
        checkpoint=sections.original.get("checkpoint"),
        downstream={
            name: _downstream(name, section, sections, source) for name, section in sections.downstream.items()
        },
        columns=[build(Column, column, source, f"columns[{i}].") for i, column in enumerate(sections.columns)],
        against=sections.against,
        notes=sections.notes,
        overwrite=sections.overwrite,
        workers=sections.workers,
        plan=sections.plan,
    )
    for number, column in enumerate(study.columns):
        _check_column(column, study, f"{source}: columns[{number}]")
    return study


def _read_study(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """
    The content of a study recipe merged over the one it extends; also reads the recipes that its sections extend.
    """
    if path.resolve() in below:
        raise RecipeError(f"{path}: the recipe extends itself; remove `extends` from one of the files")
    content = read_yaml(path)
    for section in _recipes(content):
        if "extends" in section:
            section["extends"] = _Extended(read_recipe(extended_path(path, section)))
    if "extends" not in content:
        return content
    return overlay(_read_study(extended_path(path, content), (*below, path.resolve())), content)


def _recipes(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sections of a study recipe that contain a recipe."""
    groups = [content.get(name) for name in ("known_rows", "downstream")]
    nested = [section for group in groups if isinstance(group, dict) for section in group.values()]
    nested += [content.get("original"), content.get("fine_tuning")]
    nested += [section.get("start") for section in nested if isinstance(section, dict)]
    return [section for section in nested if isinstance(section, dict)]


def _check_sections(sections: _Sections, source: str) -> None:
    place = f"{source}: "
    if not sections.output_dir:
        raise RecipeError(f"{place}output_dir is empty: give the folder for the output of the study")
    if not sections.study or Path(sections.study).name != sections.study:
        raise RecipeError(f"{place}study must be a valid file name, found {sections.study!r}")
    for key in ("original", "known_rows", "downstream", "columns"):
        if not getattr(sections, key):
            raise RecipeError(f"{place}{key} is empty, but a study needs it")
    check_names(_own(sections.original), ORIGINAL_KEYS, "original.", place)
    check_names(_own(sections.fine_tuning), STAGE_KEYS, "fine_tuning.", place)
    for group, keys in (("known_rows", ROW_KEYS), ("downstream", STAGE_KEYS)):
        for name, section in getattr(sections, group).items():
            if not isinstance(name, str) or Path(name).name != name or name == "start":
                raise RecipeError(f"{place}{group}.{name} must be a valid folder name other than start")
            if section is None and group == "known_rows":
                continue
            if not isinstance(section, dict):
                raise RecipeError(f"{place}{group}.{name} must be a section of keys, found {section!r}")
            check_names(_own(section), keys, f"{group}.{name}.", place)
    if sections.workers < 1:
        raise RecipeError(f"{place}workers must be 1 or more, found {sections.workers}")
    if not sections.against:
        raise RecipeError(f"{place}against is empty: give the row that the others are compared with")
    check_names(sections.against, sections.known_rows, "against.", place)


def _seeds(seeds: Any, source: str) -> list[int]:
    """Parses seeds: a list of whole numbers, or a number n for [1, ..., n]."""
    if type(seeds) is int and seeds > 0:
        return list(range(1, seeds + 1))
    whole = isinstance(seeds, list) and bool(seeds) and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not whole or len(set(seeds)) < len(seeds):
        raise RecipeError(
            f"{source}: seeds must be a list of different whole numbers, or the number of seeds, found {seeds!r}"
        )
    return seeds


def _rows(sections: _Sections, source: str) -> list[str]:
    """The rows to run, in the order of the known rows; always contains the row of the comparison."""
    wanted = list(sections.known_rows) if sections.rows == "all" else sections.rows
    if not isinstance(wanted, list):
        raise RecipeError(f"{source}: rows must be a list of names or `all`, found {wanted!r}")
    check_names(wanted, sections.known_rows, "rows.", f"{source}: ")
    return [name for name in sections.known_rows if name in (*wanted, sections.against[0])]


# Sections to recipes


def _own(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "extends"}


def _merged(section: Mapping[str, Any], sections: _Sections, model: bool = False) -> dict[str, Any]:
    """Merges the recipe that a section extends, the data of the study, and the keys of the section, in this order."""
    extended = section["extends"].content if "extends" in section else {}
    kept = {key: extended[key] for key in STAGE_KEYS if key in extended and (model or key != "model")}
    own = {key: value for key, value in section.items() if key in STAGE_KEYS}
    return overlay(overlay(kept, {"data": sections.data}), own)


def _original(sections: _Sections) -> dict[str, Any]:
    return overlay({"task": "pretraining"}, _merged(sections.original, sections, model=True))


def _row(name: str, row: dict[str, Any] | None, sections: _Sections, source: str) -> Row:
    if row is None:
        return Row(None)
    prefix = f"known_rows.{name}."
    objectives = row.get("objectives", "")
    if objectives not in ("", "original"):
        raise RecipeError(f"{source}: {prefix}objectives must be original, found {objectives!r}")
    if objectives:
        content = _continued(row, sections)
    elif "extends" in row:
        content = _merged(row, sections)
    else:
        content = overlay(_merged(sections.fine_tuning, sections), {k: v for k, v in row.items() if k in STAGE_KEYS})
    start = row.get("start")
    if start is not None:
        start = _start(start, sections, source, f"{prefix}start.")
    zeroed = convert(bool, row.get("zero_visual_scales", False), f"{source}: ", f"{prefix}zero_visual_scales")
    if zeroed and start is None:
        raise RecipeError(f"{source}: {prefix}zero_visual_scales needs a start of this row: give {prefix}start")
    return Row(_recipe(content, source, prefix), start, zeroed)


def _continued(row: Mapping[str, Any], sections: _Sections) -> dict[str, Any]:
    """The task and options of the original with the data paths, limits and steps of the fine-tuning."""
    original, tuned = _original(sections), _merged(sections.fine_tuning, sections)
    own = {key: value for key, value in row.items() if key in STAGE_KEYS}
    rows = ("text_corpus",) if "builder" in own.get("data", {}) else ("text_corpus", "builder", "options")
    data = {key: value for key, value in tuned.get("data", {}).items() if key not in ("builder", "options")}
    data |= {key: original["data"][key] for key in rows if key in original["data"]}
    objectives: dict[str, Any] = {key: original[key] for key in ("task", "options") if key in original}
    return overlay({**objectives, "data": data, "training": tuned.get("training", {})}, own)


def _start(start: Any, sections: _Sections, source: str, prefix: str) -> Recipe:
    """The start of a row, which replaces the original: the recipe of the original with the keys of this section."""
    if not isinstance(start, dict):
        raise RecipeError(f"{source}: {prefix.removesuffix('.')} must be a section of keys, found {start!r}")
    check_names(_own(start), STAGE_KEYS, prefix, f"{source}: ")
    if "extends" in start:
        return _recipe(_merged(start, sections, model=True), source, prefix)
    return _recipe(overlay(_original(sections), start), source, prefix)


def _downstream(name: str, section: Mapping[str, Any], sections: _Sections, source: str) -> Recipe:
    return _recipe(_merged(section, sections), source, f"downstream.{name}.")


def _recipe(content: dict[str, Any], source: str, prefix: str) -> Recipe:
    """Makes a recipe with one method; a limited split has the same rows for every seed."""
    recipe: Recipe = build(Recipe, content, source, prefix)
    if len(recipe.methods) != 1:
        raise RecipeError(f"{source}: {prefix}methods must contain exactly one method, found {recipe.methods!r}")
    check_names([recipe.task], TASKS, f"{prefix}task=", f"{source}: ")
    if recipe.training.get("push_to_hub"):
        raise RecipeError(
            f"{source}: {prefix}training.push_to_hub: the models of a study are not pushed; to push one of them, run "
            "its recipe alone"
        )
    seed = 0 if recipe.data.limit_seed is None else recipe.data.limit_seed
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, limit_seed=seed))


def _check_column(column: Column, study: Study, place: str) -> None:
    check_names([column.task], study.downstream, "task=", f"{place}: ")
    data = study.downstream[column.task].data
    tracks = data.tracks or {}
    if column.track is not None:
        check_names([column.track], tracks, "track=", f"{place}: ")
    elif tracks:
        raise RecipeError(
            f"{place}: track is missing, but the task {column.task} has figures only for tracks: give one of "
            f"{', '.join(tracks)}"
        )
    builder = data.builder or TASKS[study.downstream[column.task].task].builder
    check_names([builder], BUILDERS, "data.builder=", f"{place}: ")
    splits = [str(split) for split in BUILDERS[builder].BUILDER_CONFIG_CLASS.SPLIT_NAMES.values()]
    check_names([column.split], splits, "split=", f"{place}: ")
    if not column.name:
        column.name = " ".join(filter(None, (column.task, column.track, column.split)))
