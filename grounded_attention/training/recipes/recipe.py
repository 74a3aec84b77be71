# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Recipes: one YAML file per experiment. The annotations of the classes below are the schema that it is read by."""

import copy
import dataclasses
import difflib
import os
import re
import typing
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Len
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.families import DEFAULT_FAMILY, FAMILIES
from grounded_attention.supervision.registry import LABELS, METHODS, make_method, split_name
from grounded_attention.tasks import TASKS
from grounded_attention.utils import schema
from grounded_attention.utils.bounded_files import (
    MAX_CONFIG_BYTES,
    FileError,
    PlainLoader,
    decode_text,
    parse_yaml,
    read_text,
)
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.plain_text import first_sentences
from grounded_attention.utils.processes import shares_memory
from grounded_attention.utils.project import find_recipe, recipe_summaries
from grounded_attention.utils.schema import (
    Count,
    Index,
    Indices,
    Of,
    Pair,
    Processes,
    Section,
    Seed,
    Weight,
    plain_content,
)

if typing.TYPE_CHECKING:  # a recipe is read before torch is imported
    from grounded_attention.supervision.method import SupervisionMethod

# Which heads are supervised, one of these; `list` has pairs of layer and head.
HEADS = {"best": Count, "worst": Count, "layers": Indices, "list": Annotated[list[Pair], Len(1)], "file": str}
BuilderName = Annotated[str, Of(tuple(BUILDERS))]
FamilyName = Annotated[str, Of(tuple(FAMILIES))]
Adapter = Annotated[Fields, Of(schema.section({"lora": Fields}))]  # the options of PEFT's LoraConfig


class RecipeError(ValueError):
    """A recipe that cannot run as written; the message contains the file and the key."""


@dataclass
class ScenesData(Section):
    """Scenes to generate if `data_dir` contains none."""

    images: int = 1000
    seed: Seed = 0
    held_out: bool = False


@dataclass
class MadeRegions(Section):
    """Regions that are extracted when they are first needed, and kept."""

    features: str
    detector: str = "grid"
    queries: list[str] | None = None
    min_regions: Count = 10
    max_regions: Count = 100
    folder: str | None = None


@dataclass
class Data(Section):
    """Where the rows and the region features come from. With `source`, rows as people have them are read instead of
    the files of a builder, which then only says what rows are made.
    """

    data_dir: str = ""
    source: str | None = None
    columns: dict[str, str | list[str]] = field(default_factory=dict)
    boxes: str | None = None
    splits: dict[str, str] = field(default_factory=dict)
    max_rows: Count | None = None
    builder: BuilderName | None = None
    regions: str | list[str] | MadeRegions | None = None
    tracks: dict[str, str | list[str]] = field(default_factory=dict)
    text_corpus: str | None = None
    pseudo_labels: str | None = None
    images: str | None = None
    options: Fields = field(default_factory=dict)
    limit: dict[str, Count] = field(default_factory=dict)
    limit_seed: Seed | None = None
    train_splits: list[str] = field(default_factory=lambda: ["train"])
    scenes: ScenesData | None = None


@dataclass
class Model(Section):
    """The model to train. It starts from a checkpoint (`source`), from a BERT (`bert`), or from random weights."""

    family: str | None = None
    source: str | None = None
    bert: str | None = None
    config: Fields = field(default_factory=dict)
    family_config: dict[FamilyName, Fields] = field(default_factory=dict)
    tokenizer: str | None = None
    tokens: list[str] = field(default_factory=list)
    processor: Fields = field(default_factory=dict)
    adapter: Adapter = field(default_factory=dict)
    freeze: list[str] = field(default_factory=list)

    def __post_init__(self):
        own = None
        if not self.source:
            own = self.family_config.get(self.family or DEFAULT_FAMILY)
        if own:
            self.config = {**own, **self.config}


@dataclass
class SupervisionSection(Section):
    """How attention is supervised."""

    weight: Weight = 1.0
    labels: Annotated[str, Of(LABELS)] = "gold"
    heads: Annotated[Any, Of(Literal["all"] | schema.section(HEADS))] = "all"
    options: dict[str, Fields] = field(default_factory=dict)


@dataclass
class Preserve(Section):
    """A loss that keeps a model close to its start model (`training/loop/preserve.py`); weight 0 disables it."""

    distillation: Weight = 0.0


@dataclass
class Card(Section):
    """Facts of a model card that the code cannot derive."""

    license: str | None = None
    name: str | None = None
    dataset: str | None = None


@dataclass
class Recipe(Section):
    """One experiment."""

    task: Annotated[str, Of(tuple(TASKS))] = "vgp"
    options: Fields = field(default_factory=dict)
    output_dir: str = ""
    seed: Seed = 0
    methods: list[str] = field(default_factory=lambda: ["none"])
    text_only_baseline: bool = False
    pictures: Index = 0
    resume: bool = False
    overwrite: bool = False
    workers: Processes = 1
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    start: "Recipe | None" = None
    supervision: SupervisionSection = field(default_factory=SupervisionSection)
    preserve: Preserve = field(default_factory=Preserve)
    training: Fields = field(default_factory=dict)
    card: Card = field(default_factory=Card)

    def __post_init__(self):
        """YAML parses `no` as false; in keys such as `save_strategy: no` the word is restored."""
        for key, value in self.training.items():
            if value is False and key.endswith("_strategy"):
                self.training[key] = "no"


def without_hub(training: Fields) -> Fields:
    """A `training` section without its Hub keys, which may change between runs and may contain a token."""
    return {key: value for key, value in training.items() if key != "push_to_hub" and not key.startswith("hub_")}


def is_quiet(recipe: Recipe) -> bool:
    """Whether the recipe disables the progress bars (`training.disable_tqdm`)."""
    return bool(recipe.training.get("disable_tqdm"))


# Keys of a `start`; everything else is as in the outer recipe. From a recipe that it extends, a start takes no paths.
START_KEYS = ("task", "options", "data", "training", "methods", "supervision")
PLACES = ("data_dir", "source", "columns", "boxes", "splits", "max_rows", "regions", "images", "scenes")
# Keys of `data` that are of the files of one builder.
FILES = ("data_dir", "images", "scenes", "options", "tracks")
# Paths that belong to the rows of one training, so a start neither shares nor extends them.
OWN_PLACES = ("tracks", "pseudo_labels")


PIPES = ("/dev/fd/", "/dev/stdin")


class _Loader(PlainLoader):
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
    if any(override.startswith("data.source=") for override in overrides) and isinstance(content.get("data"), dict):
        # It takes the place of the recipe's own files.
        content["data"] = {key: value for key, value in content["data"].items() if not _is_of_files(key, value)}
    for override in overrides:
        apply_override(content, override)
    start = content.pop("start", None)
    recipe = build(Recipe, content, str(path), "")
    if recipe.workers != 1 and not shares_memory():
        recipe.workers = 1
    if start is not None:
        recipe.start = _build_start(recipe, content, start, str(path))
    return recipe


def _is_of_files(key: str, value: Any) -> bool:
    return key in FILES or (key == "regions" and not isinstance(value, dict))


def _build_start(recipe: Recipe, content: Fields, start: Any, source: str) -> Recipe:
    """The recipe of the first training: the `start` section plus the keys that it shares with the outer recipe."""
    if not isinstance(start, dict):
        raise RecipeError(f"{source}: start must be a section of keys, found {start!r}")
    check_names(start, START_KEYS, "start.", f"{source}: ")
    shared = {"data": {key: value for key, value in content.get("data", {}).items() if key in PLACES}}
    built = build(Recipe, overlay({"task": "pretraining", **shared}, start), source, "start.")
    check_one_method(built, source, "start.")
    directory = ""
    if recipe.output_dir:
        directory = str(Path(recipe.output_dir) / "start")
    return dataclasses.replace(
        built, model=recipe.model, seed=recipe.seed, workers=recipe.workers, output_dir=directory, resume=recipe.resume
    )


def check_one_method(recipe: Recipe, source: str, prefix: str) -> None:
    """Checks that a recipe trains one model."""
    if len(recipe.methods) != 1:
        raise RecipeError(f"{source}: {prefix}methods must contain exactly one method, found {recipe.methods!r}")


@lru_cache(maxsize=32)
def _parse(text: str, source: object) -> Any:
    """Parses a recipe. Many recipes extend the same ones, and parsing is most of the work of loading one."""
    return parse_yaml(text, source, _Loader)


@lru_cache(maxsize=1)
def _read_once(pipe: Path) -> str:
    """The text of `<(command)` in a shell, which can be read only once."""
    with open(pipe, "rb") as file:
        return decode_text(file.read(MAX_CONFIG_BYTES), pipe)


def read_yaml(path: Path) -> Fields:
    """The content of a YAML file, unchanged."""
    try:
        if str(path).startswith(PIPES):
            text = _read_once(path)
        else:
            text = read_text(path, MAX_CONFIG_BYTES)
        content = copy.deepcopy(_parse(text, path)) or {}
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
    return {key: value for key, value in content.items() if not str(key).startswith("x-")}  # where anchors stand


def further(below: tuple[Path, ...], path: Path) -> tuple[Path, ...]:
    """The recipes that extend each other, with one more."""
    place = Path(os.path.realpath(path))  # `resolve` raises RuntimeError for links in a circle; reading, OSError
    if place in below:
        raise RecipeError(f"{path}: the recipe extends itself; remove `extends` from one of the files")
    return (*below, place)


def read_recipe(path: Path, below: tuple[Path, ...] = ()) -> Fields:
    """The content of a recipe file merged over the file that it `extends`; the same for its `start`."""
    below = further(below, path)
    content = read_yaml(path)
    start = content.get("start")
    own_start = isinstance(start, dict) and "extends" in start
    if isinstance(start, dict) and own_start:
        content["start"] = overlay(_as_start(read_recipe(extended_path(path, start), below)), start)
    if "extends" not in content:
        return content
    base = read_recipe(extended_path(path, content), below)
    return overlay({**base, "start": None} if own_start else base, content)


def extended_path(path: Path, section: Fields) -> Path:
    """Removes `extends` from a section and returns the file that it refers to."""
    name = section.pop("extends")
    if not isinstance(name, str):
        raise RecipeError(f"{path}: extends must be the path or the name of a recipe, found {name!r}")
    beside = path.parent / name
    if beside.exists():
        return beside
    return find_recipe(name)


def _as_start(content: Fields) -> Fields:
    """The keys that a start takes from a recipe that it extends."""
    kept = {key: value for key, value in content.items() if key in START_KEYS}
    if isinstance(kept.get("data"), dict):
        kept["data"] = {key: value for key, value in kept["data"].items() if key not in (*PLACES, *OWN_PLACES)}
    return kept


def overlay(base: Fields, top: Fields) -> Fields:
    """Merges `top` over `base`, section by section."""
    both = {}
    for k, v in top.items():
        if isinstance(v, dict) and isinstance(base.get(k), dict):
            both[k] = overlay(base[k], v)
    return {**base, **top, **both}


def apply_override(content: Fields, override: str) -> None:
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


def build(kind: type, content: Any, source: str, prefix: str) -> Any:
    """Makes a dataclass of a section."""
    section = schema.validate(kind, _at_home(content), prefix, source, RecipeError)
    if isinstance(section, Recipe):
        place = source and f"{source}: "
        for name in section.methods:
            check_names(split_name(name), METHODS, f"{prefix}methods=", place)
        if len({*section.methods}) < max(len(section.methods), 1 - section.text_only_baseline):
            raise RecipeError(f"{place}{prefix}methods must be one or more different methods, found {section.methods}")
    return section


def _at_home(value: Any) -> Any:
    """A value whose texts may begin with `~/`, the home directory, as in a shell."""
    if isinstance(value, dict):
        return {key: _at_home(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_at_home(each) for each in value]
    if isinstance(value, str) and value.startswith("~/"):
        return os.path.expanduser(value)
    return value


def check_names(names: typing.Iterable[str], known: typing.Collection[str], prefix: str, source: str = "") -> None:
    """Checks names against those that only a model, a builder or a study knows."""
    schema.check_names(names, known, prefix, source, RecipeError)


@contextmanager
def recipe_key_errors(key: str) -> typing.Iterator[None]:
    """Converts an error of a library into a RecipeError that contains the recipe key `key`."""
    try:
        yield
    except (RecipeError, MemoryError):
        raise
    except (ValueError, TypeError, OSError, ImportError, re.error, SafetensorError, StrictDataclassError) as error:
        raise RecipeError(f"{key}: {error}") from error
    except Exception as error:  # libraries raise any type for a value of another type, tokenizers a plain Exception
        raise RecipeError(f"{key}: a value does not fit ({type(error).__name__}: {first_sentences(error)})") from error


class _Plain(yaml.SafeDumper):
    """A YAML dumper without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def recipe_yaml(recipe: Recipe) -> str:
    """The keys of a recipe that differ from the defaults, without the Hub keys."""
    content = plain_content(recipe)
    if recipe.start is not None:  # it shares everything else with the outer recipe
        start = {key: value for key, value in content["start"].items() if key in START_KEYS}
        start["data"] = {key: value for key, value in start.get("data", {}).items() if key not in PLACES}
        content["start"] = start
    for section in (content, content.get("start", {})):
        if "training" in section:
            section["training"] = without_hub(section["training"])
    return yaml.dump(content, Dumper=_Plain, sort_keys=False, allow_unicode=True).strip()


def recipe_method(recipe: Recipe, name: str, key: str = "supervision.options.") -> "SupervisionMethod":
    """Makes a method with the options of a recipe."""
    options = recipe.supervision.options
    parts = split_name(name)
    if len(parts) == 1:
        return make_method(name, options.get(name, {}), f"{key}{name}.", RecipeError)
    return make_method(name, {part: options[part] for part in parts if part in options}, key, RecipeError)


def needs_grounding(recipe: Recipe) -> bool:
    """Whether a method of the recipe needs the grounding of phrases."""
    return any(recipe_method(recipe, name).needs_grounding for name in recipe.methods)
