# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes a recipe as YAML that can be read back."""

import dataclasses
from typing import Any

import yaml

from .recipe import PLACES, START_KEYS, Recipe, without_hub


class _Plain(yaml.SafeDumper):
    """A YAML dumper without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def recipe_yaml(recipe: Recipe) -> str:
    """The keys of a recipe that differ from the defaults, without the Hub keys."""
    content = _shortened(recipe)
    if recipe.start is not None:  # it shares everything else with the outer recipe
        start = {key: value for key, value in content["start"].items() if key in START_KEYS}
        start["data"] = {key: value for key, value in start.get("data", {}).items() if key not in PLACES}
        content["start"] = start
    return yaml.dump(content, Dumper=_Plain, sort_keys=False, allow_unicode=True).strip()


def _shortened(value: Any) -> Any:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    kept = {}
    for field in dataclasses.fields(value):
        own = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if own != default:
            kept[field.name] = _shortened(without_hub(own) if field.name == "training" else own)
    return kept
