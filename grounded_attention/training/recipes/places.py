# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks that the files and checkpoints of a recipe exist, data first, before any work starts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from grounded_attention.dataset_scripts.hub.tables import is_on_hub

from .recipe import Data, MadeRegions, Model, Recipe, RecipeError

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
    """Checks that the files and folders of a recipe exist, and that its checkpoints may exist."""
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
    """Checks that each checkpoint is a folder, or has the form of a name on the Hub."""
    for name, hint in CHECKPOINT_HINTS.items():
        wanted = getattr(model, name)
        if not wanted or Path(wanted).exists() or is_drawn(wanted, data):
            continue
        try:
            validate_repo_id(wanted)  # also refuses paths with several folders
        except HFValidationError as error:
            raise RecipeError(
                f"model.{name} {wanted}: no such folder, and not a name on the Hub; {hint.format(key=f'model.{name}')}"
            ) from error
