# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Refuses NaN and infinity, which pass through a model and through the choice of a largest score without an error."""

from typing import Any

import torch
from torch import Tensor


class NotFiniteError(ValueError):
    """A score, a loss, a gradient or a weight is NaN or infinite."""


def finite_scores(scores: Tensor, what: str = "the attention of the model") -> Tensor:
    """The same scores of a model, of any shape; a [`NotFiniteError`] if one is NaN or infinite.

    It is called wherever scores become a number, a box or a word. Steps of training have a check of their own.
    """
    if not torch.isfinite(scores).all():
        raise NotFiniteError(f"{what} is NaN or infinite: training diverged, a file is damaged or float16 too narrow")
    return scores


def finite_outputs(outputs: Any) -> Any:
    """The same outputs of a model, if all scores in them are numbers; states and attention maps are not looked at."""
    for name, scores in outputs.items():
        if not is_finite(scores):
            finite_scores(scores, f"{name} of the model")
    return outputs


def check_finite(model: torch.nn.Module, source: str) -> None:
    """Checks that every weight of a model is a number."""
    bad = not_finite(model)
    if bad:
        raise ValueError(
            f"{source}: the weight {bad[0]} contains NaN or infinity ({len(bad)} weights in all), expected numbers; "
            "the training diverged or the file is damaged: take another checkpoint"
        )


@torch.no_grad()
def not_finite(model: torch.nn.Module) -> list[str]:
    """The names of the weights and buffers that contain NaN or infinity; of a sharded one this process's part."""
    return [name for name, weight in model.state_dict().items() if not is_finite(weight)]


def is_finite(weight: object) -> bool:
    """Whether a tensor has no NaN and no infinity, without a copy of it; True for integers and for no numbers."""
    if hasattr(weight, "to_local"):
        weight = weight.to_local()
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.is_meta or not weight.numel():
        return True
    low, high = torch.aminmax(weight)  # both are NaN if one value is
    return bool(torch.isfinite(low) and torch.isfinite(high))
