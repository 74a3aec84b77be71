# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks that the files of a recipe exist, before any work starts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.hub.tables import is_on_hub

from .recipe import Data, MadeRegions, Recipe, RecipeError

TABLE_HINT = "make a region table with grounded-attention regions import or regions extract (docs/data.md)"
HINTS = {
    "data_dir": "docs/real_data.md lists the files that belong there; to use another folder give {key}=FOLDER",
    "images": "give the folder of the images",
    "pseudo_labels": "make them with grounded-attention data pseudo-ground (docs/pseudo_labels.md)",
    "text_corpus": "give a text file with one sentence per line",
}


def check_places(recipe: Recipe) -> None:
    """Checks that the files and folders of a recipe exist."""
    check_data(recipe.data, "data.")
    if recipe.start is not None:
        check_data(recipe.start.data, "start.data.")


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
