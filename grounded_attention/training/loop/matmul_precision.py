# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The precision of linear layers when a CPU trains float32 weights.

Processors with bfloat16 instructions multiply bfloat16 matrices twice as fast as float32 ones, or more. With AMX,
PyTorch rounds the factors of a float32 product to bfloat16 and sums in float32. With AVX512-BF16 alone it has no such
product: the factors are converted to bfloat16, and the product is rounded too, as under autocast. Weights,
activations, attention, losses and the optimizer stay in float32.
"""

import os
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
ROUNDED_RESULTS = "bfloat16 with rounded results"  # as a checkpoint records it
# A user may limit oneDNN to an instruction set; these have no products in bfloat16.
MAX_ISA = "ONEDNN_MAX_CPU_ISA"
FLOAT32_ISAS = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")
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
            f"has neither AMX nor AVX512-BF16 instructions, or the program has set another precision): give {key}=auto"
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


def describe_products(arguments: TrainingArguments) -> str:
    """
    The precision of matrix products, with what two processors do differently.

    Args:
        arguments (`TrainingArguments`): as for `matmul_precision`.

    Returns:
        `str`: `float32`, `bfloat16` (sums in float32, AMX) or `bfloat16 with rounded results` (AVX512-BF16).
    """
    precision = matmul_precision(arguments)
    return ROUNDED_RESULTS if precision == BFLOAT16 and _converts_factors() else precision


@contextmanager
def use_matmul_precision(precision: str) -> Iterator[None]:
    """Computes the large linear layers of float32 models in this precision inside the block."""
    if precision == FLOAT32:
        yield
        return
    with _Bfloat16Layers():
        yield


def has_bfloat16_products() -> bool:
    """Whether this processor gains from products in bfloat16, and the program has set no precision of its own."""
    return not _precision_is_set() and (_rounds_factors() or _converts_factors())


@cache
def _rounds_factors() -> bool:
    """Whether PyTorch rounds float32 factors to bfloat16 when it may, which it does only with AMX."""
    factor = torch.full((64, 64), 1 + 2**-12)  # 1 in bfloat16
    with _rounded_factors():
        return bool((factor @ torch.ones(64, 64) == 64).all())


@cache
def _converts_factors() -> bool:
    """Whether products of bfloat16 tensors are the way: the processor has AVX512-BF16, and no AMX."""
    forbidden = os.environ.get(MAX_ISA, "").upper() in FLOAT32_ISAS
    return not forbidden and torch.cpu._is_avx512_bf16_supported() and not _rounds_factors()


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
        states, weight = _factor(states), _factor(weight)
        ctx.save_for_backward(states, weight)
        if states.dtype == torch.float32:
            with _rounded_factors():
                return functional.linear(states, weight, bias)
        product = functional.linear(states, weight)
        return product.float() if bias is None else product + bias  # the sum is in float32

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        rows = gradients[0].flatten(0, -2)
        factor = _factor(rows)
        for_states = for_weight = None
        with _rounded_factors():
            if ctx.needs_input_grad[0]:
                for_states = (factor @ weight).view_as(states).float()
            if ctx.needs_input_grad[1]:
                for_weight = (factor.T @ states.flatten(0, -2)).float()
        for_bias = rows.sum(0) if len(ctx.needs_input_grad) > 2 and ctx.needs_input_grad[2] else None
        return (for_states, for_weight, for_bias)[: len(ctx.needs_input_grad)]


def _factor(tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if _converts_factors() else tensor


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
