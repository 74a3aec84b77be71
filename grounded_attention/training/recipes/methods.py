# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The supervision methods of a recipe with their options."""

from grounded_attention.supervision.method import SupervisionMethod
from grounded_attention.supervision.registry import make_method, split_name

from .recipe import Recipe, RecipeError


def recipe_method(recipe: Recipe, name: str, key: str = "supervision.options.") -> SupervisionMethod:
    """Makes a method with the options of a recipe."""
    options = recipe.supervision.options
    parts = split_name(name)
    if len(parts) == 1:
        return make_method(name, options.get(name, {}), f"{key}{name}.", RecipeError)
    return make_method(name, {part: options[part] for part in parts if part in options}, key, RecipeError)


def needs_grounding(recipe: Recipe) -> bool:
    """Whether a method of the recipe needs the grounding of phrases."""
    return any(recipe_method(recipe, name).needs_grounding for name in recipe.methods)
