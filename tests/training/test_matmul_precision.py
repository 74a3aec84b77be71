# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Linear layers whose factors are rounded to bfloat16: the same gradients, whatever the processor has."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from grounded_attention.training.loop import matmul_precision as room
from grounded_attention.training.loop.environment import differences, environment
from grounded_attention.training.loop.training_arguments import GroundingTrainingArguments
from tests.helpers.tiny_trainer import make_trainer

# Without the setting of the tests that switches bfloat16 off: a layer and its gradients by factors rounded by hand.
ROUNDED = """
import torch
from torch.nn import functional
from grounded_attention.training.loop import matmul_precision as room

torch.manual_seed(0)
states, weight, bias, weights = torch.randn(512, 128), torch.randn(96, 128), torch.randn(96), torch.randn(512, 96)
rounded = lambda tensor: tensor.bfloat16().double()
found = []
for cast in (rounded, torch.Tensor.double):
    found.append([
        cast(states) @ cast(weight).T + bias,
        cast(weights) @ cast(weight),
        cast(weights).T @ cast(states),
        weights.double().sum(0),
    ])
leaves = [tensor.requires_grad_() for tensor in (states, weight, bias)]
with room.use_matmul_precision("bfloat16"):
    output = functional.linear(*leaves)
    output.backward(weights)
computed = [output.detach(), *(leaf.grad for leaf in leaves)]
errors = [max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(computed, e)) for e in found]
available = "none"
if room.has_bfloat16_products():
    available = "converted" if room._converts_factors() else "rounded"
print(available, *errors, torch.get_float32_matmul_precision())
"""


def test_products_are_those_of_rounded_factors_where_the_processor_has_them():
    environ = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    command = [sys.executable, "-c", ROUNDED]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    available, rounded, exact, precision = done.stdout.split()
    assert precision == "highest"
    if available == "converted":  # the results are rounded too
        assert 1e-4 < float(rounded) < 2**-8 and float(exact) > 1e-4
        return
    near, far = (rounded, exact) if available == "rounded" else (exact, rounded)
    assert float(near) < 1e-5 and float(far) > 1e-4


def test_a_limit_of_instructions_is_respected(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    found = {}
    for limit in ("", "default", "AVX512_CORE_BF16", "AVX512_CORE", "avx2"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        found[limit] = room._converts_factors.__wrapped__()
    assert found == {"": True, "default": True, "AVX512_CORE_BF16": True, "AVX512_CORE": False, "avx2": False}


@pytest.mark.parametrize("shape", [(400, 64), (8, 50, 64)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_gradients_are_those_of_the_plain_layer(shape, with_bias):
    plain, other = _layer_and_gradients(shape, with_bias)  # in float32, since tests switch bfloat16 off
    for expected, computed in zip(plain, other, strict=True):
        assert torch.allclose(expected, computed, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("shape", [(400, 64), (8, 50, 64)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_converted_factors_give_float32_gradients_near_those_of_the_plain_layer(shape, with_bias, monkeypatch):
    monkeypatch.setattr(room, "_converts_factors", lambda: True)  # any processor multiplies bfloat16, slowly
    plain, other = _layer_and_gradients(shape, with_bias)
    for expected, computed in zip(plain, other, strict=True):
        assert computed.dtype == torch.float32 and computed.shape == expected.shape
        assert 1e-5 < (expected - computed).norm() / expected.norm() < 2**-7
    if not with_bias:
        assert torch.equal(other[0], other[0].bfloat16().float())


def _layer_and_gradients(shape, with_bias):
    found = []
    for precision in (room.FLOAT32, room.BFLOAT16):
        generator = torch.Generator().manual_seed(1)
        draw = [torch.randn(size, generator=generator) for size in (shape, (256, 64), (256,))]
        leaves = [tensor.requires_grad_() for tensor in draw[: 2 + with_bias]]
        with room.use_matmul_precision(precision):
            output = functional.linear(*leaves)
            output.square().sum().backward()
        found.append([output.detach(), *(leaf.grad for leaf in leaves)])
    return found


def test_steps_use_it_and_evaluation_does_not(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(room, "MIN_OPERATIONS", 0)
    monkeypatch.setattr(room, "has_bfloat16_products", lambda: True)
    apply = room._Bfloat16Linear.apply
    monkeypatch.setattr(room._Bfloat16Linear, "apply", lambda *given: calls.append(1) or apply(*given))
    counts = {}
    for precision in room.PRECISIONS:
        fixed = {"arguments_class": GroundingTrainingArguments, "max_steps": 1, "per_device_train_batch_size": 4}
        trainer = make_trainer(tmp_path, cpu_matmul_precision=precision, **fixed)
        trainer.train()
        counts[precision] = len(calls)
        trainer.evaluate()
        assert len(calls) == counts[precision]
        calls.clear()
    assert counts["float32"] == 0
    assert counts["auto"] == counts["bfloat16"] > 10


def test_a_precision_of_the_program_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "has_bfloat16_products", lambda: True)
    arguments = GroundingTrainingArguments(str(tmp_path), use_cpu=True, cpu_matmul_precision="auto")
    assert room.matmul_precision(arguments) == "bfloat16"
    torch.set_float32_matmul_precision("high")
    try:
        assert room.matmul_precision(arguments) == "float32"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_another_precision_is_named_when_a_training_continues(tmp_path, monkeypatch):
    arguments = GroundingTrainingArguments(str(tmp_path), use_cpu=True, cpu_matmul_precision="auto")
    before = environment(arguments, sharded=False)
    monkeypatch.setattr(room, "has_bfloat16_products", lambda: True)
    now = environment(arguments, sharded=False)
    assert differences(before, now) == ["matrix products in float32 -> bfloat16"]
    monkeypatch.setattr(room, "_converts_factors", lambda: True)
    here = environment(arguments, sharded=False)
    assert differences(now, here) == ["matrix products in bfloat16 -> bfloat16 with rounded results"]
    del before["products"]  # a checkpoint of an earlier version
    assert differences(before, now) == ["matrix products in float32 -> bfloat16"]
