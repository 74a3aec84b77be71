# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks that a recipe can run as a job: nothing of this machine may be needed, and the models must go to the Hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from grounded_attention.dataset_scripts.hub.hub_errors import hub_errors
from grounded_attention.dataset_scripts.regions.hub import is_on_hub, parse_place
from grounded_attention.training.recipes.places import data_places, is_drawn
from grounded_attention.training.recipes.recipe import Data, Recipe, RecipeError

REMEDIES = {
    "data_dir": "push the rows (grounded-attention data build ... --push ORG/NAME), then give {key}=hub://ORG/NAME",
    "pseudo_labels": "push them (grounded-attention push), then give {key}=hub://ORG/NAME",
    "images": "images are never on the Hub: train on a region table (data.regions=hub://ORG/NAME), or on this machine",
    "text_corpus": "train on this machine, or give {key}=null",
}
TABLE = "push the table (grounded-attention push), then give {key}=hub://ORG/NAME"
CHECKPOINTS = {
    "source": "push it (grounded-attention push FOLDER ORG/NAME), then give {key}=ORG/NAME",
    "bert": "give the name of a BERT on the Hub",
    "tokenizer": "give the name of a tokenizer on the Hub",
}


def check_destination(recipe: Recipe) -> None:
    """
    Checks that the trained models are pushed: the disk of a job is deleted at its end.
    """
    keys = {"push_to_hub": "true", "hub_model_id": "ORG/NAME"}
    missing = [f"training.{key}={value}" for key, value in keys.items() if not recipe.training.get(key)]
    if missing:
        raise RecipeError(
            f"the files of a job are deleted at its end, and the recipe pushes no model: add {' '.join(missing)}"
        )


def check_reach(recipe: Recipe) -> None:
    """
    Checks that a job can read the data and the checkpoints: from the Hub, or drawn scenes, which the job draws again.
    """
    sections = {"data.": recipe.data} | ({"start.data.": recipe.start.data} if recipe.start else {})
    for prefix, data in sections.items():
        for name, place in data_places(data):
            if not is_on_hub(place) and not is_drawn(place, data):
                raise _unreachable(prefix + name, place, REMEDIES.get(name, TABLE))
    for name, remedy in CHECKPOINTS.items():
        place = getattr(recipe.model, name)
        if place and not is_drawn(place, recipe.data) and (Path(place).exists() or len(Path(place).parts) > 2):
            raise _unreachable(f"model.{name}", place, remedy)
    for key, place in _options(recipe):
        if isinstance(place, str) and Path(place).suffix and Path(place).exists():
            raise _unreachable(key, place, "give its content in the recipe, or train on this machine")


def _unreachable(key: str, place: str, remedy: str) -> RecipeError:
    return RecipeError(f"{key} {place} is of this machine, and a job cannot read it: {remedy.format(key=key)}")


def _options(recipe: Recipe, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options of the task and of the builder; some may be the name of a file."""
    sections: dict[str, Mapping[str, Any]] = {"options": recipe.options, "data.options": recipe.data.options}
    for section, content in sections.items():
        yield from ((f"{prefix}{section}.{key}", value) for key, value in content.items())
    if recipe.start is not None:
        yield from _options(recipe.start, "start.")


def check_data_on_hub(recipe: Recipe, api: HfApi) -> None:
    """
    Checks that the data sets on the Hub exist and that the token may read them.
    """
    for data in (recipe.data, *([recipe.start.data] if recipe.start else [])):
        for name, revision in hub_data(data):
            with hub_errors("reading the data", name):
                api.dataset_info(name, revision=revision)


def hub_data(data: Data) -> list[tuple[str, str | None]]:
    """(repository, revision) of every place of a data section that is on the Hub."""
    return list(dict.fromkeys(parse_place(place) for _, place in data_places(data) if is_on_hub(place)))
