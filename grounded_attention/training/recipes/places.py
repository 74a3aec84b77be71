# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks that the files and checkpoints of a recipe exist, data first, before any work starts."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from grounded_attention.dataset_scripts.hub.hub_errors import explain_failure, status_of
from grounded_attention.dataset_scripts.hub.tables import is_on_hub
from grounded_attention.utils.bounded_files import read_json

from .recipe import Data, MadeRegions, Model, Recipe, RecipeError, ScenesData

TIMEOUT = 10.0  # seconds for the answer of the Hub
# If one of these files is in the cache, the repository was loaded before.
CACHED = ("config.json", "tokenizer_config.json", "tokenizer.json", "vocab.txt")
TABLE_HINT = "make a region table with grounded-attention regions import or regions extract (docs/data.md)"
HINTS = {
    "data_dir": "docs/real_data.md lists the files that belong there; to use another folder give {key}=FOLDER",
    "images": "give the folder of the images",
    "pseudo_labels": "make them with grounded-attention data pseudo-ground (docs/pseudo_labels.md)",
    "text_corpus": "give a text file with one sentence per line",
}
CHECKPOINT_HINTS = {
    "source": "convert an original checkpoint (grounded-attention convert, docs/loading.md), or train one with the "
    "recipe in the first lines of this recipe, then give {key}=FOLDER",
    "bert": "give {key}=FOLDER with a BERT, or {key}=null: random weights, and the words of the rows as tokens",
    "tokenizer": "give {key}=FOLDER with a tokenizer, or a vocab.txt",
}


def check_places(recipe: Recipe) -> None:
    """Checks that the files and folders of a recipe exist, and that its checkpoints exist on disk or on the Hub."""
    check_data(recipe.data, "data.")
    if recipe.start is not None:
        check_data(recipe.start.data, "start.data.")
    check_checkpoints(recipe.model, recipe.data)


def check_data(data: Data, prefix: str) -> None:
    """Checks that the files of a data section exist, except those that `scenes` will generate."""
    for name, place in data_places(data):
        if is_on_hub(place) or Path(place).exists() or is_drawn(place, data):
            continue
        hint = HINTS.get(name, TABLE_HINT).format(key=prefix + name)
        raise RecipeError(f"{prefix}{name} {place}: no such file or folder; {hint}")
    _check_scenes(data, prefix)


def _check_scenes(data: Data, prefix: str) -> None:
    """Checks that features, images and labels are of the scenes of `data_dir`; all scenes name their images alike."""
    wanted = _scenes_of(Path(data.data_dir)) if data.scenes is None else vars(data.scenes)
    for name, place in data_places(data):
        scenes = None if is_on_hub(place) or name == "data_dir" else _scenes_of(Path(place).parent)
        if scenes and wanted and scenes != {key: wanted.get(key) for key in scenes}:
            raise RecipeError(
                f"{prefix}{name} {place} belongs to scenes with {_listed(scenes)}, but the scenes of {prefix}data_dir "
                f"{data.data_dir} have {_listed(wanted)}: give {prefix}{name} of the same scenes"
            )


def _scenes_of(folder: Path) -> dict[str, Any] | None:
    """What the summary of drawn scenes says of them; `None` if there is none."""
    path = folder / "scenes.json"
    if not path.is_file():
        return None
    summary = read_json(path)
    if not isinstance(summary, Mapping):
        raise RecipeError(
            f"{path}: found {str(summary)[:100]!r}, expected the summary of drawn scenes; draw them again"
        )
    return {field.name: summary.get(field.name, field.default) for field in fields(ScenesData)}


def _listed(scenes: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in scenes.items())


def is_drawn(place: str, data: Data) -> bool:
    """Whether a path is in the folder of the generated scenes."""
    return data.scenes is not None and Path(place).resolve().is_relative_to(Path(data.data_dir).resolve())


def data_places(data: Data) -> Iterator[tuple[str, str]]:
    """Yields (key, path) for each path of a data section."""
    regions = None if isinstance(data.regions, MadeRegions) else data.regions
    named: dict[str, Any] = {"data_dir": None if data.source else data.data_dir, "regions": regions}
    named |= {f"tracks.{name}": places for name, places in data.tracks.items()}
    named |= {"images": data.images, "text_corpus": data.text_corpus, "pseudo_labels": data.pseudo_labels}
    for name, places in named.items():
        for place in places if isinstance(places, list) else [places]:
            if place:
                yield name, str(place)


def check_checkpoints(model: Model, data: Data) -> None:
    """Checks that each checkpoint is a folder or exists on the Hub. The Hub is not queried for cached repositories."""
    for name in CHECKPOINT_HINTS:
        wanted = getattr(model, name)
        if not wanted or Path(wanted).exists() or is_drawn(wanted, data):
            continue
        missing = _missing(wanted)
        if missing:
            hint = CHECKPOINT_HINTS[name].format(key=f"model.{name}")
            raise RecipeError(f"model.{name} {wanted}: no such folder, and {missing}; {hint}")


def _missing(repository: str) -> str | None:
    """The reason why a name cannot be loaded from the Hub; `None` if it can."""
    try:
        validate_repo_id(repository)  # also refuses paths with several folders
    except HFValidationError:
        return "it is not a name on the Hub"
    if any(isinstance(try_to_load_from_cache(repository, name), str) for name in CACHED):
        return None
    try:
        HfApi().model_info(repository, timeout=TIMEOUT)
    except Exception as error:
        if status_of(error) in (401, 403, 404):
            return "the Hub has no such model (or you have no access to it: hf auth login)"
        return f"the Hub cannot be reached ({explain_failure(error)})"
    return None
