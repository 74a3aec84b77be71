# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Paths of the package, in a clone and in an installed wheel."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
RECIPES = PACKAGE / "recipes"
MODEL_CARDS = PACKAGE / "model_cards"


def find_recipe(name: str) -> Path:
    """
    Finds the file of a recipe.

    Args:
        name (`str`): a path, or the name of a recipe in the package, such as `"scenes_vgp"`. Its folder in the package
            need not be given.

    Returns:
        `Path`: the given path if the file exists or the package has no recipe of that name, otherwise the recipe in
        the package.
    """
    path = Path(name)
    if path.exists() or path.suffix not in ("", ".yaml"):
        return path
    wanted = path.with_suffix(".yaml").name
    return next((found for found in sorted(RECIPES.glob("*/*.yaml")) if found.name == wanted), path)
