# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where the files of the package lie, in a clone as in an installed wheel."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]  # not resolved: the rooms that are links in a clone lie below it, too
RECIPES = PACKAGE / "recipes"
MODEL_CARDS = PACKAGE / "model_cards"


def find_recipe(name: str) -> Path:
    """
    The file of a recipe.

    Args:
        name (`str`): a path, or the name of a recipe that ships with the package, such as `"scenes_vgp"`.

    Returns:
        `Path`: the path as it is given where there is such a file or no recipe of that name, else the shipped recipe.
    """
    path = Path(name)
    shipped = RECIPES / path.with_suffix(".yaml").name
    return shipped if not path.exists() and path.suffix in ("", ".yaml") and shipped.is_file() else path
