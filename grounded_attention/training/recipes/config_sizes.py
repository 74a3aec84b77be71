# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Bounds of the sizes that the configuration of a stranger's checkpoint declares, before a model is made."""

from collections.abc import Mapping

from grounded_attention.utils.named_types import Columns

from .recipe import RecipeError

# Larger values are no model: memory would be claimed before any check. RoPE's theta is 1e9 in Mistral Small.
MAX_LAYERS = 1000
MAX_SIZE = 2**25
MAX_NUMBER = 2**40


def check_sizes(config: Columns, prefix: str) -> None:
    """Checks the numbers of a configuration and of those inside."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            check_sizes(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            if "layers" in str(name):
                limit = MAX_LAYERS
            else:
                limit = MAX_SIZE if str(name).endswith("_size") else MAX_NUMBER
            if not abs(value) <= limit:  # NaN is not either
                raise RecipeError(f"{prefix}{name} is {str(value)[:40]}, expected at most {limit}")
