# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A check of loaded weights: NaN and infinity would pass through a model without an error."""

import torch


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
    weight = weight.to_local() if hasattr(weight, "to_local") else weight
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point() or weight.is_meta or not weight.numel():
        return True
    low, high = torch.aminmax(weight)  # both are NaN if one value is
    return bool(torch.isfinite(low) and torch.isfinite(high))
