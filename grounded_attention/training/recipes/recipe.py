# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Recipes: one YAML file per experiment, checked key by key before anything runs."""

import copy
import dataclasses
import difflib
import os
import re
import types
import typing
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from grounded_attention.families import DEFAULT_FAMILY
from grounded_attention.utils.bounded_files import MAX_CONFIG_BYTES, FileError, parse_yaml, read_text
from grounded_attention.utils.plain_text import first_sentences
from grounded_attention.utils.project import find_recipe, recipe_summaries

MAX_NUMBER = 2**63 - 1  # of the libraries in C


class RecipeError(ValueError):
    """A recipe that cannot run as written; the message contains the file and the key."""


@dataclass
class ScenesData:
    """
    Scenes to generate if `data_dir` contains none.
    """

    images: int = 1000
    seed: int = 0
    held_out: bool = False


@dataclass
class Data:
    """
    Where the rows and the region features come from.
    """

    data_dir: str = ""
    builder: str | None = None
    regions: str | list | None = None
    tracks: dict[str, Any] = field(default_factory=dict)
    text_corpus: str | None = None
    pseudo_labels: str | None = None
    images: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    limit: dict[str, int] = field(default_factory=dict)
    limit_seed: int | None = None
    train_splits: list = field(default_factory=lambda: ["train"])
    scenes: ScenesData | None = None


@dataclass
class Model:
    """
    The model to train. It starts from a checkpoint (`source`), from a BERT (`bert`), or from random weights.
    """

    family: str | None = None
    source: str | None = None
    bert: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    family_config: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    processor: dict[str, Any] = field(default_factory=dict)
    adapter: dict[str, Any] = field(default_factory=dict)
    freeze: list = field(default_factory=list)

    def __post_init__(self):
        own = None if self.source else self.family_config.get(self.family or DEFAULT_FAMILY)
        if isinstance(own, dict):  # `grounded_attention.training.experiments.checks` refuses anything else
            self.config = {**own, **self.config}


@dataclass
class Supervision:
    """
    How attention is supervised.
    """

    weight: float = 1.0
    labels: str = "gold"
    heads: Any = "all"
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Preserve:
    """
    Losses that keep a model close to its start model (`training/loop/preserve.py`); a weight of 0 disables a loss.
    """

    distillation: float = 0.0
    distillation_of: str = "hidden_states"
    temperature: float = 1.0
    l2: float = 0.0
    ewc: float = 0.0
    fisher_batches: int = 16
    builder: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Card:
    """
    Facts of a model card that the code cannot derive.
    """

    license: str | None = None
    name: str | None = None
    dataset: str | None = None


@dataclass
class Recipe:
    """
    One experiment.
    """

    task: str = "vgp"
    options: dict[str, Any] = field(default_factory=dict)
    output_dir: str = ""
    seed: int = 0
    methods: list[str] = field(default_factory=lambda: ["none"])
    text_only_baseline: bool = False
    pictures: int = 0
    resume: bool = False
    overwrite: bool = False
    workers: int = 1
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    start: "Recipe | None" = None
    supervision: Supervision = field(default_factory=Supervision)
    preserve: Preserve = field(default_factory=Preserve)
    training: dict[str, Any] = field(default_factory=dict)
    card: Card = field(default_factory=Card)

    def __post_init__(self):
        """YAML parses `no` as false; in keys such as `save_strategy: no` the word is restored."""
        for key, value in self.training.items():
            if value is False and key.endswith("_strategy"):
                self.training[key] = "no"


def without_hub(training: dict[str, Any]) -> dict[str, Any]:
    """A `training` section without its Hub keys, which may change between runs and may contain a token."""
    return {key: value for key, value in training.items() if key != "push_to_hub" and not key.startswith("hub_")}


def is_quiet(recipe: Recipe) -> bool:
    """Whether the recipe disables the progress line (`training.disable_tqdm`)."""
    return bool(recipe.training.get("disable_tqdm"))


# Keys of a `start`; everything else is as in the outer recipe. From a recipe that it extends, a start takes no paths.
START_KEYS = ("task", "options", "data", "training", "methods", "supervision")
PLACES = ("data_dir", "regions", "images", "scenes")
# Paths that belong to the rows of one training, so a start neither shares nor extends them.
OWN_PLACES = ("tracks", "pseudo_labels")


class _Loader(yaml.SafeLoader):
    """A YAML loader that parses 1e-4 as a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load_recipe(path: str | Path, overrides: typing.Sequence[str] = ()) -> Recipe:
    """
    Reads a recipe and applies overrides.

    A recipe may extend another one: `extends` is a path relative to the recipe, or the name of a recipe in the
    package, and the recipe contains only the differences. A `start` may extend a recipe too; it takes `task`,
    `options`, `training`, `methods`, `supervision` and the `data` keys that are not paths. The paths (`data.data_dir`,
    `regions`, `images`, `scenes`), the model and the seed are those of the outer recipe.

    Args:
        path (`str | Path`): a YAML file.
        overrides (`Sequence[str]`, *optional*): `key=value` texts with dotted keys and YAML values.

    Returns:
        `Recipe`: the checked recipe.

    Raises:
        RecipeError: if the file cannot be read, a key is unknown (the message contains the nearest key), or a value
            has the wrong type.
    """
    path = Path(path)
    content = read_recipe(path)
    for override in overrides:
        apply_override(content, override)
    start = content.pop("start", None)
    recipe = build(Recipe, content, str(path), "")
    if start is not None:
        recipe.start = _build_start(recipe, content, start, str(path))
    return recipe


def _build_start(recipe: Recipe, content: dict[str, Any], start: Any, source: str) -> Recipe:
    """The recipe of the first training: the `start` section plus the keys that it shares with the outer recipe."""
    _check_start(start, source)
    shared = {"data": {key: value for key, value in content.get("data", {}).items() if key in PLACES}}
    built = build(Recipe, overlay({"task": "pretraining", **shared}, start), source, "start.")
    if len(built.methods) != 1:
        raise RecipeError(f"{source}: start.methods must contain exactly one method, found {built.methods!r}")
    directory = str(Path(recipe.output_dir) / "start") if recipe.output_dir else ""
    return dataclasses.replace(
        built, model=recipe.model, seed=recipe.seed, workers=recipe.workers, output_dir=directory, resume=recipe.resume
    )


def _check_start(start: Any, source: str) -> None:
    if not isinstance(start, dict):
        raise RecipeError(f"{source}: start must be a section of keys, found {start!r}")
    for key in start:
        if key not in START_KEYS and key in {field.name for field in dataclasses.fields(Recipe)}:
            raise RecipeError(
                f"{source}: start.{key} is not allowed: a start has the keys {', '.join(START_KEYS)} and shares the "
                "others with the outer recipe"
            )
    check_names(start, START_KEYS, "start.", f"{source}: ")


@lru_cache(maxsize=32)
def _parse(text: str, source: object) -> Any:
    """Parses a recipe. Many recipes extend the same ones, and parsing is most of the work of loading one."""
    return parse_yaml(text, source, _Loader)


def read_yaml(path: Path) -> dict[str, Any]:
    """The content of a YAML file, unchanged."""
    try:
        content = copy.deepcopy(_parse(read_text(path, MAX_CONFIG_BYTES), path)) or {}
    except OSError as error:
        close = difflib.get_close_matches(path.stem, recipe_summaries(), n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise RecipeError(
            f"{path}: cannot be read ({error.strerror}); {hint}`grounded-attention train --list` lists the recipes"
        ) from error
    except FileError as error:
        raise RecipeError(str(error)) from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: the recipe must be a section of keys, found {content!r:.200}")
    _check_plain(content, f"{path}: ", "")
    return content


def _check_plain(content: Any, source: str, key: str) -> None:
    """Checks that all values could be written as JSON, as they are in `recipe.json`, and that numbers have an end."""
    if isinstance(content, dict):
        for name, value in content.items():
            if not isinstance(name, str | int):
                raise RecipeError(f"{source}{key}{name!r:.80} is no key, expected a word: write it in quotes")
            _check_plain(value, source, f"{key}{name}.")
    elif isinstance(content, list):
        for number, value in enumerate(content):
            _check_plain(value, source, f"{key}{number}.")
    elif not isinstance(content, str | int | float | None):
        kind = (
            "a date: write it in quotes" if isinstance(content, date) else f"a value of type {type(content).__name__}"
        )
        raise RecipeError(f"{source}{key.removesuffix('.')} is {kind}, expected text, a number, true, false or null")
    elif isinstance(content, int) and abs(content) > MAX_NUMBER and not key.endswith("seed."):  # seeds have their own
        raise RecipeError(
            f"{source}{key.removesuffix('.')} must be at most {MAX_NUMBER}, found {str(content)[:40]}..."
        )


def read_recipe(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The content of a recipe file merged over the file that it `extends`; the same for its `start`."""
    place = Path(os.path.realpath(path))  # `resolve` raises RuntimeError for links in a circle; reading, OSError
    if place in below:
        raise RecipeError(f"{path}: the recipe extends itself; remove `extends` from one of the files")
    below = (*below, place)
    content = read_yaml(path)
    start = content.get("start")
    own_start = isinstance(start, dict) and "extends" in start
    if isinstance(start, dict) and own_start:
        content["start"] = overlay(_as_start(read_recipe(extended_path(path, start), below)), start)
    if "extends" not in content:
        return content
    base = read_recipe(extended_path(path, content), below)
    return overlay({**base, "start": None} if own_start else base, content)


def extended_path(path: Path, section: dict[str, Any]) -> Path:
    """Removes `extends` from a section and returns the file that it refers to."""
    name = section.pop("extends")
    if not isinstance(name, str) or "\0" in name:
        raise RecipeError(f"{path}: extends must be the path or the name of a recipe, found {name!r}")
    beside = path.parent / name
    return beside if beside.exists() else find_recipe(name)


def _as_start(content: dict[str, Any]) -> dict[str, Any]:
    """The keys that a start takes from a recipe that it extends."""
    kept = {key: value for key, value in content.items() if key in START_KEYS}
    if isinstance(kept.get("data"), dict):
        kept["data"] = {key: value for key, value in kept["data"].items() if key not in (*PLACES, *OWN_PLACES)}
    return kept


def overlay(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Merges `top` over `base`, section by section."""
    both = {k: overlay(base[k], v) for k, v in top.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return {**base, **top, **both}


def apply_override(content: dict[str, Any], override: str) -> None:
    """Applies one `key=value` override (dotted key, YAML value) to the content of a recipe, in place."""
    key, separator, value = override.partition("=")
    if not separator:
        raise RecipeError(f"override {override!r}: expected key=value, for example training.learning_rate=1e-4")
    *parents, last = key.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
        if not isinstance(content, dict):
            raise RecipeError(f"override {override!r}: {parent!r} is a value, not a section")
    try:
        content[last] = parse_yaml(value, f"override {key}", _Loader)
    except FileError as error:
        raise RecipeError(str(error)) from error
    _check_plain(content[last], "override ", f"{key}.")


def build(kind: type, content: Any, source: str, prefix: str) -> Any:
    """
    Makes a dataclass of a section.
    """
    if not isinstance(content, dict):
        name = prefix.removesuffix(".") or "the recipe"
        raise RecipeError(f"{source}: {name} must be a section of keys, found {content!r:.200}")
    known = {f.name: f for f in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    place = f"{source}: " if source else ""
    check_names(content, known, prefix, place)
    return kind(**{key: convert(hints[key], value, place, prefix + key) for key, value in content.items()})


def check_names(given: typing.Iterable[str], known: typing.Collection[str], prefix: str, source: str = "") -> None:
    """
    Checks names against the known ones.
    """
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
            hint = f"did you mean {prefix + close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}"
            raise RecipeError(f"{source}unknown key {prefix + str(name)!r}; {hint}")


@contextmanager
def recipe_key_errors(key: str) -> typing.Iterator[None]:
    """Converts an error of a library into a RecipeError that contains the recipe key `key`."""
    try:
        yield
    except (RecipeError, MemoryError):
        raise
    except (ValueError, TypeError, OSError, ImportError, SafetensorError, StrictDataclassError) as error:
        raise RecipeError(f"{key}: {error}") from error
    except Exception as error:  # libraries raise any type for a value of another type, tokenizers a plain Exception
        raise RecipeError(f"{key}: a value does not fit ({type(error).__name__}: {first_sentences(error)})") from error


def convert(hint: Any, value: Any, source: str, key: str) -> Any:
    """
    Checks and converts a value for a type hint.
    """
    if hint is Any:
        return value
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    kinds = [option for option in options if option is not type(None)]
    kind = next((option for option in kinds if isinstance(option, type) and isinstance(value, option)), kinds[0])
    if dataclasses.is_dataclass(kind):
        return build(typing.cast(type, kind), value, source.removesuffix(": "), key + ".")
    plain = typing.get_origin(kind) or kind
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise RecipeError(f"{source}{key} must be of type {plain.__name__}, found {value!r:.200}")
    if isinstance(value, str) and "\0" in value:
        raise RecipeError(f"{source}{key} contains a NUL character, found {value!r:.200}: remove it")
    inner, checked = typing.get_args(kind), typing.cast(Any, value)
    if plain is dict and inner:
        return {name: convert(inner[1], each, source, f"{key}.{name}") for name, each in checked.items()}
    if plain is list and inner:
        return [convert(inner[0], each, source, f"{key}.{number}") for number, each in enumerate(checked)]
    return checked
