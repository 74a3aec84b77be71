# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The sections of a study recipe: reads them with the recipes that they extend, and merges each into one recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grounded_attention.training.recipes.recipe import (
    RecipeError,
    apply_override,
    build,
    check_names,
    extended_path,
    overlay,
    read_recipe,
    read_yaml,
)
from grounded_attention.utils.bounded_numbers import MAX_PROCESSES

# Keys of a stage; the study sets its folder, its seed and its start.
STAGE_KEYS = ("task", "options", "data", "model", "methods", "supervision", "preserve", "training")
# Section, or group of sections -> the keys of a section.
SECTION_KEYS = {"original": (*STAGE_KEYS, "checkpoint"), "fine_tuning": STAGE_KEYS}
GROUP_KEYS = {
    "known_rows": (*STAGE_KEYS, "objectives", "fine_tuning", "start", "zero_visual_scales", "against"),
    "starts": STAGE_KEYS,
    "downstream": (*STAGE_KEYS, "sizes"),
}
# Folders of a study beside those of its rows, and stages beside its downstream tasks.
RESERVED = ("original", "start", "starts", "fine_tuning")
SIZE_MARK = "@"


@dataclass
class Sections:
    """The top level of a study recipe, before its sections are merged; `Study` describes the keys."""

    study: str
    output_dir: str = ""
    seeds: Any = 1
    start_each_seed: bool = False
    rows: Any = "all"
    data: dict[str, Any] = field(default_factory=dict)
    original: dict[str, Any] = field(default_factory=dict)
    starts: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    known_rows: dict[str, Any] = field(default_factory=dict)
    downstream: dict[str, Any] = field(default_factory=dict)
    columns: list[Any] = field(default_factory=list)
    against: list[str] = field(default_factory=lambda: ["original"])
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    overwrite: bool = False
    workers: int = 1
    plan: bool = False


class _Extended:
    """The content of the recipe that a section extends. It is not a dict, so a merge replaces it as a whole."""

    def __init__(self, content: dict[str, Any]):
        self.content = content


def read_sections(path: str | Path, overrides: Sequence[str]) -> Sections:
    """
    Reads and checks the sections of a study recipe.
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
    sections: Sections = build(Sections, content, source, "")
    _check_sections(sections, source)
    return sections


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
    groups = [content.get(name) for name in GROUP_KEYS]
    nested = [section for group in groups if isinstance(group, dict) for section in group.values()]
    nested += [content.get(name) for name in SECTION_KEYS]
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
    for name, keys in SECTION_KEYS.items():
        check_names(_own(getattr(sections, name)), keys, f"{name}.", place)
        _check_data(name, getattr(sections, name), place)
    for group in GROUP_KEYS:
        _check_group(group, getattr(sections, group), place)
    if sections.workers < 1:
        raise RecipeError(f"{place}workers must be 1 or more, found {sections.workers}")
    if sections.workers > MAX_PROCESSES:
        raise RecipeError(f"{place}workers must be at most {MAX_PROCESSES}, found {str(sections.workers)[:40]}")
    if not sections.against:
        raise RecipeError(f"{place}against is empty: give the row that the others are compared with")
    check_names(sections.against, sections.known_rows, "against.", place)
    for name, labelled in sections.groups.items():
        check_names(labelled.values(), sections.known_rows, f"groups.{name}.", place)


def _check_data(name: str, section: Mapping[str, Any], place: str) -> None:
    if not isinstance(section.get("data", {}), dict):
        raise RecipeError(f"{place}{name}.data must be a section of keys, found {section['data']!r}")


def _is_file_name(name: Any) -> bool:
    """Whether a file or folder of this name is directly in the folder that it is joined to."""
    return isinstance(name, str) and name not in ("", "..") and "\0" not in name and Path(name).name == name


def _check_group(group: str, sections: Mapping[str, Any], place: str) -> None:
    for name, section in sections.items():
        reserved = name in RESERVED and (group, name) != ("known_rows", "original")
        if not _is_file_name(name) or reserved or SIZE_MARK in name:
            raise RecipeError(
                f"{place}{group}.{name} must be a valid folder name without {SIZE_MARK}, other than "
                f"{', '.join(RESERVED)}"
            )
        if section is None and group == "known_rows":
            continue
        if not isinstance(section, dict):
            raise RecipeError(f"{place}{group}.{name} must be a section of keys, found {section!r}")
        _check_data(f"{group}.{name}", section, place)
        check_names(_own(section), GROUP_KEYS[group], f"{group}.{name}.", place)


# Sections to the contents of recipes


def merge_original(sections: Sections) -> dict[str, Any]:
    """The content of the original's recipe; it extends the model of another recipe too."""
    return overlay({"task": "pretraining"}, _merged(sections.original, sections, model=True))


def merge_start(start: Any, sections: Sections, source: str, prefix: str) -> dict[str, Any]:
    """The content of a start that replaces the original: the original's recipe with the keys of this section, or the
    recipe that it extends.
    """
    if not isinstance(start, dict):
        raise RecipeError(f"{source}: {prefix.removesuffix('.')} must be a section of keys, found {start!r}")
    check_names(_own(start), STAGE_KEYS, prefix, f"{source}: ")
    if "extends" in start:
        return _merged(start, sections, model=True)
    return overlay(merge_original(sections), start)


def merge_tuning(sections: Sections) -> dict[str, Any]:
    """The content of the `fine_tuning` section."""
    return _merged(sections.fine_tuning, sections)


def merge_row(row: Mapping[str, Any], sections: Sections, source: str, prefix: str) -> dict[str, Any]:
    """The content of the recipe of a row's own training."""
    objectives = row.get("objectives", "")
    if objectives not in ("", "original"):
        raise RecipeError(f"{source}: {prefix}objectives must be original, found {objectives!r}")
    if objectives:
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


def merge_downstream(name: str, sections: Sections, source: str) -> dict[int | None, dict[str, Any]]:
    """The contents of a downstream task's recipes: number of training rows -> recipe; None for all rows."""
    section = sections.downstream[name]
    content = _merged(section, sections)
    if "sizes" not in section:
        return {None: content}
    sizes = section["sizes"]
    found = sizes if isinstance(sizes, list) else []
    whole = all(size is None or (type(size) is int and size > 0) for size in found)
    if not found or not whole or len(set(found)) < len(found):
        raise RecipeError(
            f"{source}: downstream.{name}.sizes must be a list of different numbers of training rows, with null for "
            f"all rows, found {sizes!r}"
        )
    return {size: _limited(content, size) for size in sizes}


def _limited(content: dict[str, Any], size: int | None) -> dict[str, Any]:
    return content if size is None else overlay(content, {"data": {"limit": {"train": size}}})


def stage_name(task: str, size: int | None, sized: bool) -> str:
    """The folder of a downstream task; `sized` if it is trained on several numbers of rows."""
    return f"{task}{SIZE_MARK}{'all' if size is None else size}" if sized else task


def _own(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "extends"}


def _merged(section: Mapping[str, Any], sections: Sections, model: bool = False) -> dict[str, Any]:
    """Merges the recipe that a section extends, the data of the study, and the keys of the section, in this order."""
    extended = section["extends"].content if "extends" in section else {}
    kept = {key: extended[key] for key in STAGE_KEYS if key in extended and (model or key != "model")}
    own = {key: value for key, value in section.items() if key in STAGE_KEYS}
    return overlay(overlay(kept, {"data": sections.data}), own)
