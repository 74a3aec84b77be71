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

from grounded_attention.families import DEFAULT_FAMILY


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

    `data_dir` is a folder with the official files, `regions` one with a region table; both may be `hub://ORG/NAME`,
    rows and tables that were pushed.
    `builder` names the data builder, by default the task's; `options` go to it (`config_name`, `negatives`, ...);
    `limit` cuts a split to its first rows after a shuffle seeded by `limit_seed`, by default the recipe's seed;
    `regions: null` trains on text alone, a list of tables gives an image the regions of each, in that order; with
    `tracks` (name -> a table, or a list of tables) what is measured is measured on each of these, and the figures are
    `<track>_<figure>`; `text_corpus` is a text file, one sentence a line, for tasks that read texts without images;
    `images` is a folder of pictures, for models that read pixels: the table then gives boxes and classes.
    `train_splits` are the splits that are trained on, together.
    """

    data_dir: str = ""
    builder: str | None = None
    regions: str | list | None = None
    tracks: dict[str, Any] = field(default_factory=dict)
    text_corpus: str | None = None
    images: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    limit: dict[str, int] = field(default_factory=dict)
    limit_seed: int | None = None
    train_splits: list = field(default_factory=lambda: ["train"])
    scenes: ScenesData | None = None


@dataclass
class Model:
    """What is trained: a checkpoint (`source`, a directory or Hub id), a BERT to start from (`bert`), or neither.

    Beside a source, `bert` gives what that lacks, such as VL-BERT's pooler.

    `family` is a key of `families.FAMILIES`, by default that of the source, or `DEFAULT_FAMILY` without one. `config`
    overrides configuration fields. `family_config` has those of one family alone, by its name: without a source, which
    has its own, they join `config`, and what stands there wins. `tokenizer` is a directory, a Hub id or a WordPiece
    `vocab.txt`, by default the source's own; `processor` holds the processor's arguments.
    """

    family: str | None = None
    source: str | None = None
    bert: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    family_config: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    processor: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        own = None if self.source else self.family_config.get(self.family or DEFAULT_FAMILY)
        if isinstance(own, dict):  # `grounded_attention.training.experiments.checks` refuses anything else
            self.config = {**own, **self.config}


@dataclass
class Supervision:
    """Weight of the attention loss in the total (equation 9 has 1) and each method's options.

    `labels` says what is taught: `gold`, or a control (`supervision/controls.py`). `heads` says which heads learn
    it: `all`, `{best: k}`, `{worst: k}` (measured before supervision), `{layers: [..]}` or `{list: [[layer, head]]}`.
    """

    weight: float = 1.0
    labels: str = "gold"
    heads: Any = "all"
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Preserve:
    """Weights of the losses that keep a model near the start model (`training/loop/preserve.py`); 0 leaves one out.

    `distillation_of` is `hidden_states` or `logits`, at `temperature`. The Fisher information of `ewc` is estimated on
    `fisher_batches` batches of the pre-training of `start`, or else on rows of `builder` with the task's `options`.
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
    """What a model card says that nobody can work out: the licence of the weights, a name for the model, and the name
    on the Hub of the data set that it was measured on."""

    license: str | None = None
    name: str | None = None
    dataset: str | None = None


@dataclass
class Recipe:
    """One experiment. `methods` names the attention supervision methods to train, each from the same start.

    `workers` of them are trained side by side, each with its share of the threads and its own `log.txt`; as many
    processes draw the scenes and read the rows.
    `options` go to the task (how much is masked, ...). `start` is what is trained before the methods: a recipe with
    the model, the seed and the place of the data of the one around it, see `load_recipe`.
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
        """YAML reads `no` as false; where a word is expected, as in `save_strategy: no`, it is the word."""
        for key, value in self.training.items():
            if value is False and key.endswith("_strategy"):
                self.training[key] = "no"


def without_hub(training: dict[str, Any]) -> dict[str, Any]:
    """A `training` section without what is said about the Hub: it may change, and holds a token at times."""
    return {key: value for key, value in training.items() if key != "push_to_hub" and not key.startswith("hub_")}


def is_quiet(recipe: Recipe) -> bool:
    """Whether the recipe wants no line that says how far the work is (`training.disable_tqdm`)."""
    return bool(recipe.training.get("disable_tqdm"))


# What a `start` may say; all else is as in the recipe around it. Of a recipe that it extends, it takes no places.
START_KEYS = ("task", "options", "data", "training")
PLACES = ("data_dir", "regions", "images", "scenes")


class _Loader(yaml.SafeLoader):
    """YAML that reads 1e-4 as the number it is."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load_recipe(path: str | Path, overrides: typing.Sequence[str] = ()) -> Recipe:
    """Reads a recipe and applies `key=value` overrides (dotted keys, YAML values).

    A recipe may name another one in `extends` (a path relative to its own) and give only what differs; so may its
    `start`, which takes `task`, `options`, `training` and what of `data` is no place from there. Where the data lie
    (`data.data_dir`, `regions`, `images`, `scenes`), the model and the seed are those of the recipe around it.

    Raises:
        RecipeError: unreadable file, unknown key (names the nearest known one), or a value of the wrong type.
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
    """The recipe of what is trained first: `start` laid over what it shares with the recipe around it."""
    _check_start(start, source)
    shared = {"data": {key: value for key, value in content.get("data", {}).items() if key in PLACES}}
    built = build(Recipe, overlay({"task": "pretraining", **shared}, start), source, "start.")
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
                f"{source}: start.{key} can't be given: a start has {', '.join(START_KEYS)}, and shares the rest with "
                "the recipe around it"
            )
    check_names(start, START_KEYS, "start.", f"{source}: ")


def read_yaml(path: Path) -> dict[str, Any]:
    """The sections of a YAML file as they stand there."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader) or {}
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror}); recipes lie in recipes/") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: the recipe must be a section of keys, found {content!r}")
    return content


def read_recipe(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The content of a recipe file, laid over the one it `extends`; its `start` likewise."""
    if path.resolve() in below:
        raise RecipeError(f"{path}: extends itself")
    below = (*below, path.resolve())
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
    """The file that a section of `path` extends; takes `extends` out of it."""
    name = section.pop("extends")
    if not isinstance(name, str):
        raise RecipeError(f"{path}: extends must name a recipe file, found {name!r}")
    return path.parent / name


def _as_start(content: dict[str, Any]) -> dict[str, Any]:
    """What a start takes of a recipe that it extends."""
    kept = {key: value for key, value in content.items() if key in START_KEYS}
    if isinstance(kept.get("data"), dict):
        kept["data"] = {key: value for key, value in kept["data"].items() if key not in (*PLACES, "tracks")}
    return kept


def overlay(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`top` over `base`, section by section."""
    both = {k: overlay(base[k], v) for k, v in top.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return {**base, **top, **both}


def apply_override(content: dict[str, Any], override: str) -> None:
    """Puts the value of `key=value` (dotted keys, a YAML value) where the key says."""
    key, separator, value = override.partition("=")
    if not separator:
        raise RecipeError(f"override {override!r}: expected key=value, for example training.learning_rate=1e-4")
    *parents, last = key.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
        if not isinstance(content, dict):
            raise RecipeError(f"override {override!r}: {parent!r} holds a value, not a section")
    content[last] = yaml.load(value, _Loader)


def build(kind: type, content: Any, source: str, prefix: str) -> Any:
    """The dataclass `kind` made of a section; RecipeError names `source` and the key after `prefix` otherwise."""
    if not isinstance(content, dict):
        raise RecipeError(f"{source}: {prefix or 'the recipe'} must be a section of keys, found {content!r}")
    known = {f.name: f for f in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    place = f"{source}: " if source else ""
    check_names(content, known, prefix, place)
    return kind(**{key: convert(hints[key], value, place, prefix + key) for key, value in content.items()})


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
        raise RecipeError(f"{source}{key} must be of type {plain.__name__}, found {value!r}")
    return value
