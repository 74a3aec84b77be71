# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The direct path from the output of attention heads to what a model says: direct logit attribution.

What a head gives goes through the output projection and along the residual stream to the read-out. On this path every
other factor keeps the value that it has: norms, gates, multipliers. Feed-forward layers and later attention, which
also read what the head gave, are not followed. Logits are then linear in the outputs of all heads, and shares of them
add up.

Shape letters: B batch, N sequence, D width of the model.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

PROBE = 1024.0  # large beside the epsilon of a norm, and exact in every data type
# Relative error of a norm's linear form, beside the rounding of its data type.
NORM_ERROR = 1e-4


class NotFollowed(ValueError):
    """A model has a part along which contributions cannot be followed; attention can still be read."""


@contextmanager
def direct_path(model: nn.Module, projections: Collection[nn.Module]) -> Iterator[None]:
    """Inside it, outputs stay the same, but gradients follow the direct path alone.

    Args:
        model (`nn.Module`): the layers of a model, with the last norm, without what reads it out.
        projections (`Collection[nn.Module]`): modules with a weight that are on the path: the output projections of
            attention. Every other module with a weight of two dimensions ends it.

    Raises:
        NotFollowed: in the pass, if a norm is not linear up to one factor for each position.
    """
    with ExitStack() as stack:
        for module in model.modules():
            if "norm" in type(module).__name__.lower():
                stack.callback(module.register_forward_hook(_freeze_norm).remove)
            elif module not in projections and any(each.dim() > 1 for each in module.parameters(recurse=False)):
                stack.callback(module.register_forward_hook(_end_path).remove)
        yield


def _end_path(module: nn.Module, args: tuple, output: Any) -> Any:
    if isinstance(output, tuple):
        return tuple(map(_without_gradient, output))
    return _without_gradient(output)


def _without_gradient(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return value


def _freeze_norm(module: Any, args: tuple, output: Any) -> Any:
    """The output of a norm, whose gradient sees its statistics as constants."""
    if not args or not args[0].requires_grad:
        return None
    states = args[0].float()
    weight, shift, centres = _linear_form(module, args[0])
    if centres:
        states = states - states.mean(-1, keepdim=True)
    linear = states * weight
    with torch.no_grad():
        changed = output.float() - shift
        squares = (linear * linear).sum(-1, keepdim=True)
        factor = (changed * linear).sum(-1, keepdim=True) / squares.clamp(min=torch.finfo(torch.float32).tiny)
        error = (changed - factor * linear).norm() / changed.norm().clamp(min=PROBE**-2)
    frozen = factor * linear
    if error > NORM_ERROR + 4 * torch.finfo(output.dtype).eps:
        raise NotFollowed(
            f"{type(module).__name__} is no norm of a known kind: its output is {float(error):.2g} from a weight "
            "times its input over one number, so contributions cannot be read; take another form"
        )
    return output.detach() + (frozen - frozen.detach()).to(output.dtype)


@torch.no_grad()
def _linear_form(module: Any, like: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Weight and shift (D,) float32 of a norm, and whether it removes the mean: what it makes of three vectors."""
    signs = torch.ones(like.shape[-1], device=like.device)
    signs[1::2] = -1
    probes = torch.stack([torch.zeros_like(signs), PROBE * signs, PROBE * torch.ones_like(signs)])
    shift, alternating, constant = module.forward(probes.to(like.dtype)).float()
    centres = torch.allclose(constant, shift, atol=1e-3)
    return (alternating - shift) * signs, shift, centres


def innermost(model: nn.Module, kind: type[nn.Module] = nn.Module) -> Any:
    """The innermost module of a kind that has all modules with the number of a layer."""
    numbered = {module for module in model.modules() if getattr(module, "layer_idx", None) is not None}
    found = model
    for module in model.modules():
        if isinstance(module, kind) and numbered <= {*module.modules()}:
            found = module
    return found
