# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How a CPU computes the large products of float32 models: in which precision, and with which library.

Processors with bfloat16 instructions multiply bfloat16 matrices twice as fast as float32 ones, or more. With AMX,
PyTorch rounds the factors of a float32 product to bfloat16 and sums in float32. With AVX512-BF16 alone it has no such
product: the factors are converted to bfloat16, and the product is rounded too, as under autocast. Weights,
activations, attention, losses and the optimizer stay in float32.

Products in float32 come from MKL, which leaves the AVX-512 instructions of AMD processors unused. There oneDNN
computes the same products in float32, twice as fast. `torch.backends.mkldnn.enabled = False` leaves them to MKL.
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
ISAS_WITHOUT_AVX512 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")
FLOAT32_ISAS = (*ISAS_WITHOUT_AVX512, "AVX512_CORE", "AVX512_CORE_VNNI")
# Multiplications of a product; below these numbers it is not what costs.
MIN_OPERATIONS = 2**22
MIN_FLOAT32_OPERATIONS = 2**18  # where only the library is another one
MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


def check_precision(precision: str, key: str, other: str | None = None) -> None:
    """
    Checks that a precision is known and has an effect.
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
    """
    if getattr(arguments, MATMUL, FLOAT32) == FLOAT32 or decided_elsewhere(arguments):
        return FLOAT32
    return BFLOAT16 if has_bfloat16_products() else FLOAT32


def decided_elsewhere(arguments: TrainingArguments) -> bool:
    """Whether other settings decide about products: on other devices, under autocast and for compiled models."""
    return arguments.device.type != "cpu" or arguments.bf16 or arguments.torch_compile or _precision_is_set()


def describe_products(arguments: TrainingArguments) -> str:
    """
    The precision of matrix products, with what two processors do differently.
    """
    precision = matmul_precision(arguments)
    return ROUNDED_RESULTS if precision == BFLOAT16 and _converts_factors() else precision


@contextmanager
def use_matmul_precision(precision: str) -> Iterator[None]:
    """Computes the large products of float32 models in this precision, and as fast as possible, inside the block."""
    if precision == FLOAT32 and not has_faster_float32():
        yield
        return
    with _LargeProducts(rounds=precision == BFLOAT16, float32=has_faster_float32()):
        yield


def has_bfloat16_products() -> bool:
    """Whether this processor gains from products in bfloat16, and the program has set no precision of its own."""
    return not _precision_is_set() and (_rounds_factors() or _converts_factors())


@cache
def _rounds_factors() -> bool:
    """Whether PyTorch rounds float32 factors to bfloat16 when it may, which it does only with AMX."""
    factor = torch.full((64, 64), 1 + 2**-12)  # 1 in bfloat16
    with _one_dnn():
        return bool((factor @ torch.ones(64, 64) == 64).all())


@cache
def _converts_factors() -> bool:
    """Whether products of bfloat16 tensors are the way: the processor has AVX512-BF16, and no AMX."""
    forbidden = os.environ.get(MAX_ISA, "").upper() in FLOAT32_ISAS
    return not forbidden and torch.cpu._is_avx512_bf16_supported() and not _rounds_factors()


def has_faster_float32() -> bool:
    """Whether oneDNN's float32 products are the fast ones here, and the program has not switched oneDNN off."""
    return not _precision_is_set() and bool(torch.backends.mkldnn.enabled) and _leaves_avx512_unused()


@cache
def _leaves_avx512_unused() -> bool:
    """Whether MKL does not use the AVX-512 instructions of this processor, because it is AMD's, and oneDNN does."""
    limited = os.environ.get(MAX_ISA, "").upper() in ISAS_WITHOUT_AVX512
    # Older PyTorch cannot tell the processor, and stays with MKL.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    amd = str(capabilities.get("cpu_name", "")).startswith("AMD")
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return amd and has_both and not limited and torch.cpu._is_avx512_supported() and not _rounds_factors()


class _LargeProducts(TorchFunctionMode):
    """Replaces large linear layers and large products of batches, as in eager attention.

    PyTorch's fused attention is left out: it calls many small products, which a switch would slow down.
    """

    def __init__(self, rounds: bool, float32: bool):
        super().__init__()
        self.rounds, self.float32 = rounds, float32

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.linear and not kwargs:
            operations = _operations_of_linear(*args)
            if self.rounds and operations >= MIN_OPERATIONS:
                return _Linear.apply(_converts_factors(), *args)
            if self.float32 and operations >= MIN_FLOAT32_OPERATIONS:
                return _Linear.apply(False, *args)
        elif self.float32 and func in MATMULS and not kwargs and _operations_of_batch(*args) >= MIN_FLOAT32_OPERATIONS:
            return _BatchedProduct.apply(*args)
        return func(*args, **(kwargs or {}))


def _operations_of_linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> int:
    """The number of multiplications; 0 if the layer must not be replaced, such as a shard of FSDP."""
    replaceable = type(weight) in (Tensor, nn.Parameter) and weight.ndim == 2
    return states.numel() * len(weight) if replaceable and _are_plain(states, weight) else 0


def _operations_of_batch(first: Any, second: Any) -> int:
    """The number of multiplications of (..., B, H, N, K) and (..., B, H, K, M); 0 for other products."""
    same = first.ndim == second.ndim >= 4 and first.shape[:-2] == second.shape[:-2]
    return first.numel() * second.shape[-1] if same and _are_plain(first, second) else 0


def _are_plain(*tensors: Tensor) -> bool:
    return all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)


class _Linear(Function):
    """`functional.linear` of float32 tensors. Its products, also those of its gradients, may round their factors."""

    @staticmethod
    def forward(ctx: Any, converts: bool, states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.converts = converts
        if converts:
            states, weight = states.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(states, weight)
        if not converts:
            with _one_dnn():
                return functional.linear(states, weight, bias)
        product = functional.linear(states, weight)
        return product.float() if bias is None else product + bias  # the sum is in float32

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        rows = gradients[0].flatten(0, -2)
        factor = rows.bfloat16() if ctx.converts else rows
        needed = ctx.needs_input_grad[1:]
        for_states = for_weight = None
        with _one_dnn():
            if needed[0]:
                for_states = (factor @ weight).view_as(states).float()
            if needed[1]:
                for_weight = (factor.T @ states.flatten(0, -2)).float()
        for_bias = rows.sum(0) if len(needed) > 2 and needed[2] else None
        return (None, for_states, for_weight, for_bias)[: len(ctx.needs_input_grad)]


class _BatchedProduct(Function):
    """The product of two batches (..., B, H, N, K) and (..., B, H, K, M) of float32 matrices, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, second)
        with _one_dnn():
            return first @ second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        first, second = ctx.saved_tensors
        with _one_dnn():
            for_first = gradients[0] @ second.transpose(-1, -2) if ctx.needs_input_grad[0] else None
            for_second = first.transpose(-1, -2) @ gradients[0] if ctx.needs_input_grad[1] else None
        return for_first, for_second


@contextmanager
def _one_dnn() -> Iterator[None]:
    """Lets oneDNN compute products of float32: with AMX from factors rounded to bfloat16, otherwise unrounded."""
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
