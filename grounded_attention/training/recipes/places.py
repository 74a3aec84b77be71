# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Whether what a recipe names is there, data first, then checkpoints: found out at once, before any work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, try_to_load_from_cache

from grounded_attention.dataset_scripts.hub.hub_errors import explain_failure, status_of
from grounded_attention.dataset_scripts.regions.hub import is_on_hub

from .recipe import Data, Model, Recipe, RecipeError

PATIENCE = 10.0  # seconds that the Hub has for its one answer
# Any of these in the cache: the repository was loaded before.
CACHED = ("config.json", "tokenizer_config.json", "tokenizer.json", "vocab.txt")
TABLE_HINT = "grounded-attention regions import or extract_regions makes a region table (docs/data.md)"
HINTS = {
    "data_dir": "docs/real_data.md says what to put there; another place is {key}=FOLDER",
    "images": "give the folder of the pictures",
    "text_corpus": "give a text file, one sentence a line",
}
CHECKPOINT_HINTS = {
    "source": "convert an original checkpoint (grounded-attention convert, docs/loading.md) or train one with the "
    "recipe that the first lines of this one name, then give {key}=FOLDER",
    "bert": "give {key}=FOLDER with a BERT",
    "tokenizer": "give {key}=FOLDER with a tokenizer, or a vocab.txt",
}


def check_places(recipe: Recipe) -> None:
    """Refuses files and folders that are not there, and checkpoints that are neither there nor on the Hub.

    Raises:
        RecipeError: names the key, what was found and what to do.
    """
    check_data(recipe.data, "data.")
    if recipe.start is not None:
        check_data(recipe.start.data, "start.data.")
    check_checkpoints(recipe.model, recipe.data)


def check_data(data: Data, prefix: str) -> None:
    """Refuses places of data that are not there; what is drawn (`scenes`) may still come."""
    for name, place in _places(data):
        if is_on_hub(place) or Path(place).exists() or _is_drawn(place, data):
            continue
        hint = HINTS.get(name, TABLE_HINT).format(key=prefix + name)
        raise RecipeError(f"{prefix}{name} {place}: no such file or folder; {hint}")


def _is_drawn(place: str, data: Data) -> bool:
    """Whether a place lies in the folder that the scenes are drawn into."""
    return data.scenes is not None and Path(place).resolve().is_relative_to(Path(data.data_dir).resolve())


def _places(data: Data) -> Iterator[tuple[str, str]]:
    """Key -> each place that it names."""
    named: dict[str, Any] = {"data_dir": data.data_dir, "regions": data.regions}
    named |= {f"tracks.{name}": places for name, places in data.tracks.items()}
    named |= {"images": data.images, "text_corpus": data.text_corpus}
    for name, places in named.items():
        for place in places if isinstance(places, list) else [places]:
            if place:
                yield name, str(place)


def check_checkpoints(model: Model, data: Data) -> None:
    """
    Refuses names that are no folder and not on the Hub either; the Hub is queried once, and not about what is cached.

    Args:
        model (`Model`): whose `source`, `bert` and `tokenizer` are looked up.
        data (`Data`): the data beside it; the scenes bring a tokenizer, which may not have been written yet.
    """
    for name in CHECKPOINT_HINTS:
        wanted = getattr(model, name)
        if not wanted or Path(wanted).exists() or _is_drawn(wanted, data):
            continue
        missing = _missing(wanted)
        if missing:
            hint = CHECKPOINT_HINTS[name].format(key=f"model.{name}")
            raise RecipeError(f"model.{name} {wanted}: no such folder, and {missing}; {hint}")


def _missing(repository: str) -> str | None:
    """Why a name can't be loaded from the Hub, or None."""
    path = Path(repository)
    if len(path.parts) > 2 or path.is_absolute():
        return "no name of a repository"
    if any(isinstance(try_to_load_from_cache(repository, name), str) for name in CACHED):
        return None
    try:
        HfApi().model_info(repository, timeout=PATIENCE)
    except Exception as error:
        if status_of(error) in (401, 403, 404):
            return "the Hub has no such model (or hides it from you: hf auth login)"
        return f"the Hub can't be asked ({explain_failure(error)})"
    return None
