# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What gets wrong values: the JSON files of checkpoints of every family, recipes, and the options of all commands."""

import copy
import dataclasses
import datetime
import inspect
import json
import shutil
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from grounded_attention.commands import evaluate, train
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.families import FAMILIES
from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.prepared_data import builder_options
from grounded_attention.training.loop.trainer import GroundingTrainingArguments
from grounded_attention.training.recipes.recipe import Recipe
from tests.helpers.tiny_scenes import tiny_recipe

from . import fuzz_options
from .inputs import use_cache

VALUES: dict[str, Any] = {
    "null": None, "true": True, "zero": 0, "minus": -1, "large": 2**31, "huge": 10**30, "fraction": 0.5,
    "nan": float("nan"), "infinite": float("inf"), "word": "x", "empty": "", "digits": "3",
    "long": "x" * 100_000, "control": "a\u202e\x1b[31m\nb", "list": [], "nulls": [None, None], "section": {},
    "sections": {"a": {"b": [1]}},
}  # fmt: skip
ONLY_YAML: dict[str, Any] = {"date": datetime.date(2020, 1, 2), "bytes": b"\0x", "numbered": {1: 2}}
FEW = 40  # a section with more keys is a vocabulary: its first ones stand for all


@dataclass(frozen=True)
class Target:
    """What gets wrong values; the first argument of its functions is the folder of `prepare`."""

    places: Callable[[Path], list[str]]
    work: Callable[[Path, str, str], int]  # with a value at a place, or none if the place is empty; the exit status
    values: Sequence[str] = tuple(VALUES)
    result: Callable[[Path], str] | None = None  # what the command found, to notice values that change it
    fits: Callable[[Path, str, str], bool] = lambda base, place, value: False  # whether a value has the type there


def leaves(content: Any, prefix: str = "") -> Iterator[str]:
    """The places of all values and sections, as keys joined by dots; a dot in a key is written as `%2E`."""
    if isinstance(content, dict):
        pairs = [(str(key).replace(".", "%2E").replace("/", "%2F"), value) for key, value in content.items()]
        for key, value in pairs[: 3 if len(pairs) > FEW else FEW]:
            yield prefix + key
            yield from leaves(value, f"{prefix}{key}.")
    elif isinstance(content, list) and content:
        yield f"{prefix}0"
        yield from leaves(content[0], f"{prefix}0.")


def place_in(content: Any, place: str) -> tuple[Any, Any]:
    """The section or list that has a place, and its key there."""
    *parents, last = [part.replace("%2E", ".").replace("%2F", "/") for part in place.split(".")]
    for parent in parents:
        content = content[int(parent)] if isinstance(content, list) else content.setdefault(parent, {})
    return content, int(last) if isinstance(content, list) else last


# Checkpoints

FILES = ("config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json")


def _read(folder: Path, file: str) -> Any:
    return json.loads((folder / file).read_text(encoding="utf-8"))


def _fields(family: str, base: Path) -> list[str]:
    folder = base / "families" / family
    return [f"{file}:{place}" for file in FILES if (folder / file).exists() for place in leaves(_read(folder, file))]


def _evaluate(family: str, base: Path, place: str, value: str) -> int:
    use_cache(base)
    shutil.copytree(base / "families" / family, "model")
    if place:
        file, _, inside = place.partition(":")
        content = _read(Path("model"), file)
        section, key = place_in(content, inside)
        section[key] = VALUES[value]
        Path("model", file).write_text(json.dumps(content), encoding="utf-8")
    data = ["--task", "vgp", "--data-dir", str(base / "scenes"), "--regions", str(base / "scenes" / "regions")]
    return evaluate.main(["model", *data, "--limit", "2", "--output", "measured"])


def _metrics(place: Path) -> str:
    return (place / "measured" / "metrics.json").read_text(encoding="utf-8")


def _same_type(family: str, base: Path, place: str, value: str) -> bool:
    """Whether the value has the type of the sound one, which may be nothing."""
    file, _, inside = place.partition(":")
    section, key = place_in(_read(base / "families" / family, file), inside)
    sound = section[key]
    new = VALUES[value]
    numbers = type(sound) in (int, float) and type(new) in (int, float)
    return sound is None or new is None or type(sound) is type(new) or numbers


# Recipes


@cache
def _recipe_places() -> list[str]:
    """All keys of a recipe: those of the dataclasses, of training, of the options of task, method and builder."""
    places = list(_keys(Recipe))
    method = inspect.signature(type(get_method("direct"))).parameters
    model = FAMILIES["vl_bert"].config_class()
    processor = FAMILIES["vl_bert"].processor_class
    # A compiler works for minutes.
    arguments = sorted(field.name for field in dataclasses.fields(GroundingTrainingArguments))
    places += [f"training.{name}" for name in arguments if not name.startswith("torch_comp")]
    places += [f"options.{field.name}" for field in dataclasses.fields(TASKS["vgp"].Options)]
    places += [f"start.options.{field.name}" for field in dataclasses.fields(TASKS["pretraining"].Options)]
    places += [f"supervision.options.direct.{name}" for name in method if name not in ("self", "kwargs")]
    places += [f"model.config.{name}" for name in model.to_dict()]
    settings = inspect.signature(processor.__init__).parameters
    places += [f"model.processor.{name}" for name in settings if name != "self"]
    places += [f"data.options.{name}" for name in builder_options(BUILDERS["vgp"]) if name != "self"]
    places += [
        "data.limit.train",
        "data.tracks.other",
        "model.family_config.vl_bert",
        "methods.0",
        "extends",
        "unknown",
    ]
    places += ["supervision.heads.best", "supervision.heads.list", "model.adapter.lora", "start.training.max_steps"]
    return places


def _keys(kind: type, prefix: str = "", below: int = 2) -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield prefix + field.name
        parts = (hints[field.name], *typing.get_args(hints[field.name]))
        inner = next((part for part in parts if _is_section(part)), 0)
        if inner and below:
            yield from _keys(typing.cast(type, inner), f"{prefix}{field.name}.", below - 1)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def small_recipe(base: Path) -> dict[str, Any]:
    """A recipe that trains one step."""
    recipe = tiny_recipe(base / "scenes", Path("run"))
    recipe["data"]["limit"] = {"train": 4, "validation": 2, "test": 2}
    recipe["training"] |= {"max_steps": 1, "report_to": "none"}
    return recipe


def _train(base: Path, place: str, value: str) -> int:
    use_cache(base)
    recipe = copy.deepcopy(small_recipe(base))
    top = place.split(".")[0]
    if top == "start" or place.startswith("supervision.heads."):
        recipe["start"] = {"training": dict(recipe["training"])}
    if place.startswith("data.regions."):
        recipe["data"]["regions"] = {"features": "scenes", "detector": "scenes"}
    section, key = place_in(recipe, place)
    section[key] = {**VALUES, **ONLY_YAML}[value]
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe, allow_unicode=False), encoding="utf-8")
    return train.main(["recipe.yaml"])


TARGETS = {
    **{
        f"config {n}": Target(partial(_fields, n), partial(_evaluate, n), result=_metrics, fits=partial(_same_type, n))
        for n in FAMILIES
    },
    "recipe": Target(lambda base: _recipe_places(), _train, (*VALUES, *ONLY_YAML)),
    **{
        f"options {n}": Target(
            lambda base, n=n: fuzz_options.places(n), partial(fuzz_options.work, n), tuple(fuzz_options.VALUES)
        )
        for n in fuzz_options.USUAL
    },
}
