# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The output folder of a run, and the recipe that it belongs to."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import PartialState

from grounded_attention.training.recipes.recipe import Recipe, RecipeError, without_hub
from grounded_attention.utils.whole_files import write_json

# Keys that may differ when a run is resumed; the Hub keys may differ too.
ASIDE = ("resume", "overwrite", "output_dir", "pictures", "card", "workers")


def check_output(recipe: Recipe) -> None:
    """
    Checks that the output directory is free for the recipe; writes nothing.

    Raises:
        RecipeError: if it contains a run of another recipe, or a run of this recipe and `resume` is not set.
    """
    output = Path(recipe.output_dir)
    found = read_json(output / "recipe.json")
    if found is not None and not recipe.overwrite:
        _check_same(output, found, _wanted(recipe), recipe.resume)


def _wanted(recipe: Recipe) -> dict[str, Any]:
    return json.loads(json.dumps(identity(recipe)))


def open_output(recipe: Recipe) -> Path:
    """
    Creates the output directory and writes `recipe.json`.

    From then on the directory belongs to this recipe, so all user errors must be checked before. `check_output` must
    have accepted the directory.

    Returns:
        `Path`: the directory, empty or with an unfinished run of the same recipe.
    """
    output, state = Path(recipe.output_dir), PartialState()
    state.wait_for_everyone()
    if state.is_main_process:
        if recipe.overwrite:
            shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True, exist_ok=True)
        write_json(output / "recipe.json", _wanted(recipe))
    state.wait_for_everyone()
    return output


def _check_same(output: Path, found: dict[str, Any], wanted: dict[str, Any], resume: bool) -> None:
    if found != wanted:
        keys = ", ".join(sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k)))
        raise RecipeError(
            f"{output} contains a run of another recipe (different keys: {keys}): "
            "give another output_dir, or overwrite=true to delete it"
        )
    if not resume:
        raise RecipeError(
            f"{output} contains a run of this recipe: resume=true continues it, overwrite=true restarts it"
        )


def identity(recipe: Recipe) -> dict[str, Any]:
    """The content of a recipe that identifies its run."""
    return _without_aside(asdict(recipe))


def _without_aside(content: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in content.items() if key not in ASIDE}
    kept["training"] = without_hub(kept["training"])
    scenes = kept["data"]["scenes"]
    if scenes and not scenes["held_out"]:
        del scenes["held_out"]  # so that runs begun before this key existed can be resumed
    return kept | {"start": _without_aside(kept["start"])} if kept["start"] else kept


def read_json(path: Path) -> Any:
    """The content of a JSON file; `None` if the file does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
