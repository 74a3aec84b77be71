# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Learning rates of their own for some of the weights."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer
from transformers import TrainingArguments

from grounded_attention.training.recipes.recipe import RecipeError

MAPPING = "learning_rate_mapping"
# What DataParallel, torch.compile, FSDP and activation checkpointing put into the names of weights.
WRAPPERS = re.compile(r"(?<![^.])(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass
class GroundingTrainingArguments(TrainingArguments):
    """`TrainingArguments` and `learning_rate_mapping`, the argument of sentence-transformers.

    Args:
        learning_rate_mapping (`dict[str, float]`, *optional*): regular expression -> learning rate, from 0 on, of the
            weights in whose name it is found (`re.search` in what the model's own `named_parameters()` says, whatever
            wraps it); the first one found counts. All others keep `learning_rate`. The schedule is that of all. None
            is none.

    Raises:
        RecipeError: see `check_mapping`.
    """

    learning_rate_mapping: dict[str, float] | None = None

    def __post_init__(self):
        super().__post_init__()
        check_mapping(self.learning_rate_mapping, MAPPING)


def check_mapping(mapping: Mapping[str, float] | None, key: str) -> None:
    """Refuses a `learning_rate_mapping` that can't be followed.

    Raises:
        RecipeError: names `key`, and what is no regular expression or no learning rate.
    """
    if mapping is None:
        return
    if not isinstance(mapping, Mapping):
        raise RecipeError(f"{key} must give a regular expression its learning rate each, found {mapping!r}")
    for pattern, rate in mapping.items():
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise RecipeError(f"{key}: {pattern!r} is no regular expression: {error}") from error
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < float("inf"):
            raise RecipeError(f"{key}.{pattern} must be a learning rate from 0 on, found {rate!r}")


def map_learning_rates(optimizer: Optimizer, model: nn.Module, mapping: Mapping[str, float]) -> None:
    """Moves the weights a pattern names to parameter groups of their own, which differ in their learning rate alone.

    Args:
        optimizer (`Optimizer`): of the model's trained parameters, before its first step.
        mapping (`Mapping[str, float]`): see `GroundingTrainingArguments`.

    Raises:
        RecipeError: a pattern that takes no weight; names the nearest one.
    """
    named = [(WRAPPERS.sub("", name), weight) for name, weight in model.named_parameters()]
    patterns = {id(weight): _pattern(name, mapping) for name, weight in named}
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


def _pattern(name: str, mapping: Mapping[str, float]) -> str | None:
    return next((pattern for pattern in mapping if re.search(pattern, name)), None)


def _refuse(pattern: str, names: list[str]) -> None:
    close = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
    raise RecipeError(
        f"training.{MAPPING}: {pattern!r} is found in the name of no trained weight, or an earlier pattern takes them "
        f"all; the nearest name is {close[0]!r}"
    )
