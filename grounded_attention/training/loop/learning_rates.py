# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Separate learning rates for some of the weights."""

import difflib
import re
from collections.abc import Mapping

from torch import nn
from torch.optim import Optimizer

from grounded_attention.training.recipes.recipe import RecipeError

MAPPING = "learning_rate_mapping"
# Parts that DataParallel, torch.compile, FSDP and activation checkpointing add to the names of weights.
WRAPPERS = re.compile(r"(?<![^.])(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def map_learning_rates(optimizer: Optimizer, model: nn.Module, mapping: Mapping[str, float]) -> None:
    """Moves the weights that a pattern matches to a new parameter group, which differs only in its learning rate."""
    named = [(WRAPPERS.sub("", name), weight) for name, weight in model.named_parameters()]
    patterns = {
        id(weight): next((pattern for pattern in mapping if re.search(pattern, name)), None) for name, weight in named
    }
    taken = set()
    for group in list(optimizer.param_groups):
        for pattern, rate in mapping.items():
            own = [weight for weight in group["params"] if patterns.get(id(weight)) == pattern]
            if own:
                group["params"] = [weight for weight in group["params"] if patterns.get(id(weight)) != pattern]
                optimizer.add_param_group({**group, "params": own, "lr": rate})
                taken.add(pattern)
    for pattern in mapping:
        if pattern not in taken:
            _refuse(pattern, [name for name, weight in named if weight.requires_grad])


def _refuse(pattern: str, names: list[str]) -> None:
    close = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
    raise RecipeError(
        f"training.{MAPPING}: {pattern!r} matches no trained weight, or an earlier pattern matches them all; the "
        f"nearest name is {close[0]!r}"
    )
