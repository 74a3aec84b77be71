# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes a recipe as YAML that can be read back."""

from typing import Any

import yaml

from grounded_attention.utils.schema import plain_content

from .recipe import PLACES, START_KEYS, Recipe, without_hub


class _Plain(yaml.SafeDumper):
    """A YAML dumper without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def recipe_yaml(recipe: Recipe) -> str:
    """The keys of a recipe that differ from the defaults, without the Hub keys."""
    content = plain_content(recipe)
    if recipe.start is not None:  # it shares everything else with the outer recipe
        start = {key: value for key, value in content["start"].items() if key in START_KEYS}
        start["data"] = {key: value for key, value in start.get("data", {}).items() if key not in PLACES}
        content["start"] = start
    for section in (content, content.get("start", {})):
        if "training" in section:
            section["training"] = without_hub(section["training"])
    return yaml.dump(content, Dumper=_Plain, sort_keys=False, allow_unicode=True).strip()
