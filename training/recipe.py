# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Recipes: one YAML an experiment, checked key by key before anything runs."""

import dataclasses
import difflib
import re
import types
import typing
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError


class RecipeError(ValueError):
    """A recipe that can't run as written; the message names the file and the key."""


@dataclass
class ScenesData:
    """Embedded data to generate when `data_dir` holds none: so many images, drawn from this seed."""

    images: int = 1000
    seed: int = 0


@dataclass
class Data:
    """Where the rows and the region features come from.

    `options` go to the builder (`config_name`, `negatives`, ...); `limit` cuts a split to its first rows after a
    seeded shuffle; `regions: null` trains on text alone.
    """

    data_dir: str = ""
    regions: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    limit: dict[str, int] = field(default_factory=dict)
    scenes: ScenesData | None = None


@dataclass
class Model:
    """What is trained: a checkpoint (`source`, a directory or Hub id), a BERT to start from (`bert`), or neither.

    `config` overrides configuration fields; `tokenizer` is a directory, a Hub id or a WordPiece `vocab.txt`, by
    default the source's own; `processor` holds the processor's arguments.
    """

    source: str | None = None
    bert: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    processor: dict[str, Any] = field(default_factory=dict)


@dataclass
class Supervision:
    """Weight of the attention loss in the total (equation 9 has 1) and each method's options."""

    weight: float = 1.0
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Start:
    """Training before the methods, shared by all of them; `options` go to the task (how much is masked, ...)."""

    task: str = "pretraining"
    options: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Recipe:
    """One experiment. `methods` names the attention supervision methods to train, each from the same start."""

    task: str = "vgp"
    output_dir: str = ""
    seed: int = 0
    methods: list[str] = field(default_factory=lambda: ["none"])
    text_only_baseline: bool = False
    pictures: int = 0
    resume: bool = False
    overwrite: bool = False
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    start: Start | None = None
    supervision: Supervision = field(default_factory=Supervision)
    training: dict[str, Any] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """YAML that reads 1e-4 as the number it is."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load_recipe(path: str | Path, overrides: typing.Sequence[str] = ()) -> Recipe:
    """Reads a recipe and applies `key=value` overrides (dotted keys, YAML values).

    A recipe may name another one in `extends` (a path relative to its own) and give only what differs.

    Raises:
        RecipeError: unreadable file, unknown key (names the nearest known one), or a value of the wrong type.
    """
    path = Path(path)
    content = _read(path)
    for override in overrides:
        _apply(content, override)
    return _build(Recipe, content, str(path), "")


def _read(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The content of a recipe file, laid over the one it `extends`."""
    if path in below:
        raise RecipeError(f"{path}: extends itself")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader) or {}
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror}); recipes lie in recipes/") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: the recipe must be a section of keys, found {content!r}")
    base = content.pop("extends", None)
    return content if base is None else _overlay(_read(path.parent / base, (*below, path)), content)


def _overlay(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`top` over `base`, section by section."""
    both = {k: _overlay(base[k], v) for k, v in top.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return {**base, **top, **both}


def _apply(content: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator:
        raise RecipeError(f"override {override!r}: expected key=value, for example training.learning_rate=1e-4")
    *parents, last = key.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
        if not isinstance(content, dict):
            raise RecipeError(f"override {override!r}: {parent!r} holds a value, not a section")
    content[last] = yaml.load(value, _Loader)


def _build(kind: type, content: Any, source: str, prefix: str) -> Any:
    if not isinstance(content, dict):
        raise RecipeError(f"{source}: {prefix or 'the recipe'} must be a section of keys, found {content!r}")
    known = {f.name: f for f in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    check_names(content, known, prefix, f"{source}: ")
    return kind(**{key: convert(hints[key], value, f"{source}: ", prefix + key) for key, value in content.items()})


def check_names(given: typing.Iterable[str], known: typing.Collection[str], prefix: str, source: str = "") -> None:
    """Refuses a key that nobody reads.

    Raises:
        RecipeError: names the key and the nearest known one, or all of them.
    """
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
            hint = f"did you mean {prefix + close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}"
            raise RecipeError(f"{source}unknown key {prefix + str(name)!r}; {hint}")


@contextmanager
def blame(key: str) -> typing.Iterator[None]:
    """Turns the error of a library that reads what stands at `key` into a RecipeError naming the key."""
    try:
        yield
    except RecipeError:
        raise
    except (ValueError, TypeError, OSError, StrictDataclassError) as error:
        raise RecipeError(f"{key}: {error}") from error


def convert(hint: Any, value: Any, source: str, key: str) -> Any:
    """The value as the type hint wants it; RecipeError names the key, the type and the value otherwise."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    kind = next(option for option in options if option is not type(None))
    if dataclasses.is_dataclass(kind):
        return _build(typing.cast(type, kind), value, source.removesuffix(": "), key + ".")
    plain = typing.get_origin(kind) or kind
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise RecipeError(f"{source}{key} must be of type {plain.__name__}, found {value!r}")
    return value
