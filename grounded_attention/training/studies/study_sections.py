# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The sections of a study recipe: reads them with the recipes that they extend, and merges each into one recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval, Len

from grounded_attention.training.recipes.recipe import (
    RecipeError,
    apply_override,
    build,
    check_names,
    extended_path,
    further,
    overlay,
    read_recipe,
    read_yaml,
)
from grounded_attention.utils.schema import Count, Of, Processes, Section, Seed
from grounded_attention.utils.schema import section as section_of

# Groups of sections, and the keys of a stage; the study sets its folder, its seed and its start.
GROUPS = ("known_rows", "starts", "downstream")
STAGE_KEYS = ("task", "options", "data", "model", "methods", "supervision", "preserve", "training")
# Folders of a study beside those of its rows, and stages beside its downstream tasks.
RESERVED = ("original", "start", "starts", "fine_tuning")
SIZE_MARK = "@"
MAX_SEEDS = 1000

_STAGE: dict[str, Any] = dict.fromkeys((*STAGE_KEYS, "extends"), Any) | {"data": dict[str, Any]}
_ROW = {
    **_STAGE,
    "objectives": Literal["original"],
    "fine_tuning": bool,
    "start": str | section_of(_STAGE),
    "zero_visual_scales": bool,
    "against": list[str] | None,
}
_SEEDS = Annotated[int, Interval(ge=1, le=MAX_SEEDS)] | Annotated[list[Seed], Len(1, MAX_SEEDS)]
Stage = Annotated[dict[str, Any], Of(section_of(_STAGE))]
Original = Annotated[dict[str, Any], Of(section_of({**_STAGE, "checkpoint": str | None}))]
KnownRow = Annotated[dict[str, Any], Of(section_of(_ROW))]
Downstream = Annotated[dict[str, Any], Of(section_of({**_STAGE, "sizes": Annotated[list[Count | None], Len(1)]}))]


@dataclass
class Sections(Section):
    """The top level of a study recipe, before its sections are merged; `Study` describes the keys."""

    study: str
    output_dir: str = ""
    seeds: Annotated[Any, Of(_SEEDS)] = 1
    start_each_seed: bool = False
    rows: Literal["all"] | list[str] = "all"
    data: dict[str, Any] = field(default_factory=dict)
    original: Original = field(default_factory=dict)
    starts: dict[str, Stage] = field(default_factory=dict)
    fine_tuning: Stage = field(default_factory=dict)
    known_rows: dict[str, KnownRow | None] = field(default_factory=dict)
    downstream: dict[str, Downstream] = field(default_factory=dict)
    columns: list[Any] = field(default_factory=list)
    against: Annotated[list[str], Len(1)] = field(default_factory=lambda: ["original"])
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    overwrite: bool = False
    workers: Processes = 1
    plan: bool = False


class _Extended:
    """The content of the recipe that a section extends. It is not a dict, so a merge replaces it as a whole."""

    def __init__(self, content: dict[str, Any]):
        self.content = content


def read_sections(path: str | Path, overrides: Sequence[str]) -> Sections:
    """Reads and checks the sections of a study recipe."""
    source = str(path)
    content = _read_study(Path(path))
    for override in overrides:
        apply_override(content, override)
    for section in _recipes(content):
        if not isinstance(section.get("extends", _Extended({})), _Extended):
            raise RecipeError(
                f"{source}: extends is not allowed as an override, found {section['extends']!r}; put it into a file"
            )
    sections: Sections = build(Sections, content, source, "")
    _check_sections(sections, source)
    return sections


def _read_study(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A study recipe merged over the one it extends; also reads the recipes that its sections extend."""
    below = further(below, path)
    content = read_yaml(path)
    for section in _recipes(content):
        if "extends" in section:
            section["extends"] = _Extended(read_recipe(extended_path(path, section)))
    if "extends" not in content:
        return content
    return overlay(_read_study(extended_path(path, content), below), content)


def _recipes(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sections of a study recipe that contain a recipe."""
    groups = [content.get(name) for name in GROUPS]
    nested = [section for group in groups if isinstance(group, dict) for section in group.values()]
    nested += [content.get(name) for name in ("original", "fine_tuning")]
    nested += [section.get("start") for section in nested if isinstance(section, dict)]
    return [section for section in nested if isinstance(section, dict)]


def _check_sections(sections: Sections, source: str) -> None:
    place = f"{source}: "
    if not sections.output_dir:
        raise RecipeError(f"{place}output_dir is empty: give the folder for the output of the study")
    if not _is_file_name(sections.study):
        raise RecipeError(f"{place}study must be a valid file name, found {sections.study!r}")
    for key in ("original", "known_rows", "downstream", "columns"):
        if not getattr(sections, key):
            raise RecipeError(f"{place}{key} is empty, but a study needs it")
    for group in GROUPS:
        for name in getattr(sections, group):
            reserved = name in RESERVED and (group, name) != ("known_rows", "original")
            if not _is_file_name(name) or reserved or SIZE_MARK in name:
                raise RecipeError(
                    f"{place}{group}.{name} must be a valid folder name without {SIZE_MARK}, other than "
                    f"{', '.join(RESERVED)}"
                )
    check_names(sections.against, sections.known_rows, "against.", place)
    for name, labelled in sections.groups.items():
        check_names(labelled.values(), sections.known_rows, f"groups.{name}.", place)


def _is_file_name(name: str) -> bool:
    """Whether a file or folder of this name is directly in the folder that it is joined to."""
    return name not in ("", "..") and Path(name).name == name


# Sections to the contents of recipes


def merge_original(sections: Sections) -> dict[str, Any]:
    """The content of the original's recipe; it extends the model of another recipe too."""
    return overlay({"task": "pretraining"}, _merged(sections.original, sections, model=True))


def merge_start(start: dict[str, Any], sections: Sections) -> dict[str, Any]:
    """The start in place of the original: its recipe with the keys of this section, or the recipe it extends."""
    if "extends" in start:
        return _merged(start, sections, model=True)
    return overlay(merge_original(sections), start)


def merge_tuning(sections: Sections) -> dict[str, Any]:
    """The content of the `fine_tuning` section."""
    return _merged(sections.fine_tuning, sections)


def merge_row(row: Mapping[str, Any], sections: Sections) -> dict[str, Any]:
    """The content of the recipe of a row's own training."""
    if "objectives" in row:
        return _continued(row, sections)
    if "extends" in row:
        return _merged(row, sections)
    return overlay(merge_tuning(sections), {key: value for key, value in row.items() if key in STAGE_KEYS})


def _continued(row: Mapping[str, Any], sections: Sections) -> dict[str, Any]:
    """The task and options of the original with the data paths, limits and steps of the fine-tuning."""
    original, tuned = merge_original(sections), merge_tuning(sections)
    own = {key: value for key, value in row.items() if key in STAGE_KEYS}
    rows = ("text_corpus",) if "builder" in own.get("data", {}) else ("text_corpus", "builder", "options")
    data = {key: value for key, value in tuned.get("data", {}).items() if key not in ("builder", "options")}
    data |= {key: original["data"][key] for key in rows if key in original["data"]}
    objectives: dict[str, Any] = {key: original[key] for key in ("task", "options") if key in original}
    return overlay({**objectives, "data": data, "training": tuned.get("training", {})}, own)


def merge_downstream(name: str, sections: Sections) -> dict[int | None, dict[str, Any]]:
    """The contents of a downstream task's recipes: number of training rows -> recipe; None for all rows."""
    section = sections.downstream[name]
    content = _merged(section, sections)
    return {size: _limited(content, size) for size in section.get("sizes", [None])}


def _limited(content: dict[str, Any], size: int | None) -> dict[str, Any]:
    return content if size is None else overlay(content, {"data": {"limit": {"train": size}}})


def stage_name(task: str, size: int | None, sized: bool) -> str:
    """The folder of a downstream task; `sized` if it is trained on several numbers of rows."""
    return f"{task}{SIZE_MARK}{'all' if size is None else size}" if sized else task


def _merged(section: Mapping[str, Any], sections: Sections, model: bool = False) -> dict[str, Any]:
    """Merges the recipe that a section extends, the data of the study, and the keys of the section, in this order."""
    extended = section["extends"].content if "extends" in section else {}
    kept = {key: extended[key] for key in STAGE_KEYS if key in extended and (model or key != "model")}
    own = {key: value for key, value in section.items() if key in STAGE_KEYS}
    return overlay(overlay(kept, {"data": sections.data}), own)
