# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The precision of linear layers when a CPU trains float32 weights.

Processors with AMX multiply bfloat16 matrices twice as fast as float32 ones, or more. PyTorch can round the factors of
a product to bfloat16 and sum in float32; weights, activations, attention, losses and the optimizer stay in float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import TrainingArguments

from grounded_attention.training.recipes.recipe import RecipeError

MATMUL = "cpu_matmul_precision"
AUTO, FLOAT32, BFLOAT16 = "auto", "float32", "bfloat16"
PRECISIONS = (AUTO, FLOAT32, BFLOAT16)
MIN_OPERATIONS = 2**22  # multiplications of a linear layer; below it a product is not what costs


def check_precision(precision: str, key: str, other: str | None = None) -> None:
    """
    Checks that a precision is known and has an effect.

    Args:
        precision (`str`): value of `cpu_matmul_precision`.
        key (`str`): its key, for the message.
        other (`str`, *optional*): what decides about the precision instead.

    Raises:
        RecipeError: if it is unknown or has no effect.
    """
    if precision not in PRECISIONS:
        raise RecipeError(f"{key} must be one of {', '.join(PRECISIONS)}, found {precision!r}")
    if precision != BFLOAT16:
        return
    if other is not None:
        raise RecipeError(f"{key} has no effect with {other}: remove one of them")
    if not has_bfloat16_products():
        raise RecipeError(
            f"{key} is bfloat16, but PyTorch {torch.__version__} computes products in float32 on this processor (it "
            f"has no AMX instructions, or the program has set another precision): give {key}=auto"
        )


def matmul_precision(arguments: TrainingArguments) -> str:
    """
    The precision of matrix products in a training step.

    Args:
        arguments (`TrainingArguments`): its `cpu_matmul_precision`; without this field it is `float32`.

    Returns:
        `str`: `float32` or `bfloat16`; `float32` on other devices, under autocast and for compiled models, where other
        settings decide.
    """
    wanted = getattr(arguments, MATMUL, FLOAT32)
    elsewhere = arguments.device.type != "cpu" or arguments.bf16 or arguments.torch_compile or _precision_is_set()
    if wanted == FLOAT32 or elsewhere:
        return FLOAT32
    return BFLOAT16 if has_bfloat16_products() else FLOAT32


@contextmanager
def use_matmul_precision(precision: str) -> Iterator[None]:
    """Computes the large linear layers of float32 models in this precision inside the block."""
    if precision == FLOAT32:
        yield
        return
    with _Bfloat16Layers():
        yield


@cache
def has_bfloat16_products() -> bool:
    """Whether PyTorch rounds to bfloat16 here when it may, which it does only where the processor gains from it."""
    if _precision_is_set():
        return False
    factor = torch.full((64, 64), 1 + 2**-12)  # 1 in bfloat16
    with _rounded_factors():
        return bool((factor @ torch.ones(64, 64) == 64).all())


class _Bfloat16Layers(TorchFunctionMode):
    """Replaces linear layers. Attention is left out: it calls many small products, which a switch would slow down."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.linear and not kwargs and _gains(*args):
            return _Bfloat16Linear.apply(*args)
        return func(*args, **(kwargs or {}))


def _gains(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    if type(weight) not in (Tensor, nn.Parameter) or weight.ndim != 2:  # a shard of FSDP, for example
        return False
    plain = states.dtype == weight.dtype == torch.float32 and states.device.type == "cpu"
    return plain and states.numel() * len(weight) >= MIN_OPERATIONS


class _Bfloat16Linear(Function):
    """`functional.linear` of float32 tensors whose products, also those of its gradients, round their factors."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(states, weight)
        with _rounded_factors():
            return functional.linear(states, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        rows = gradients[0].flatten(0, -2)
        for_states = for_weight = None
        with _rounded_factors():
            if ctx.needs_input_grad[0]:
                for_states = (rows @ weight).view_as(states)
            if ctx.needs_input_grad[1]:
                for_weight = rows.T @ states.flatten(0, -2)
        for_bias = rows.sum(0) if len(ctx.needs_input_grad) > 2 and ctx.needs_input_grad[2] else None
        return (for_states, for_weight, for_bias)[: len(ctx.needs_input_grad)]


@contextmanager
def _rounded_factors() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


def _precision_is_set() -> bool:
    """Whether the program has chosen a precision of its own, by PyTorch's older or newer functions."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # raised when the newer ones were used
        return True
