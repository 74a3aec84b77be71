# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Large products in bfloat16, or by oneDNN in float32: the same gradients, whatever the processor has."""

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
    monkeypatch.setattr(room, "_rounds_factors", lambda: False)  # a product now would fix the limit of this process
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


@pytest.mark.parametrize("shapes", [[(40, 32, 64), (96, 64), (96,)], [(64, 64), (96, 64)]])
def test_one_dnn_computes_linear_layers_in_float32(shapes, one_dnn):
    calls = one_dnn(True)
    _compare_with_float64(functional.linear, shapes)
    assert calls["layers"] == 1


@pytest.mark.parametrize("layers", [(), (3,)])
@pytest.mark.parametrize("product", [torch.matmul, lambda first, second: first @ second, torch.Tensor.matmul])
def test_one_dnn_computes_products_of_batches_in_float32(product, layers, one_dnn):
    calls = one_dnn(True)
    _compare_with_float64(product, [(*layers, 4, 2, 50, 32), (*layers, 4, 2, 32, 40)])
    assert calls["batches"] > 0


def _compare_with_float64(function, shapes):
    torch.manual_seed(2)
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    with room.use_matmul_precision(room.FLOAT32):
        output = function(*leaves)
        output.square().sum().backward()
    expected = function(*exact)
    expected.square().sum().backward()
    pairs = [(output, expected), *((leaf.grad, other.grad) for leaf, other in zip(leaves, exact, strict=True))]
    for computed, other in pairs:
        assert computed.dtype == torch.float32
        assert (computed - other).norm() < 1e-6 * other.norm()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.fixture
def one_dnn(monkeypatch):
    """A function that decides whether oneDNN's float32 products are fast; returns counts of replaced products."""
    calls = {"layers": 0, "batches": 0}

    def count(name, kind):
        apply = kind.apply

        def counted(*given):
            calls[name] += 1
            return apply(*given)

        monkeypatch.setattr(kind, "apply", counted)

    count("layers", room._Linear)
    count("batches", room._BatchedProduct)

    def decide(fast):
        monkeypatch.setattr(room, "has_faster_float32", lambda: fast)
        return calls

    return decide


def test_one_dnn_is_for_processors_whose_avx512_mkl_does_not_use(monkeypatch):
    name = "AMD EPYC"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": name}, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(room, "_rounds_factors", lambda: False)
    found = room._leaves_avx512_unused.__wrapped__
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert found()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx2")
    assert not found()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
    assert found()
    name = "Intel(R) Xeon(R) Platinum 8481C"
    assert not found()


def test_the_switch_of_pytorch_leaves_products_to_mkl(monkeypatch):
    monkeypatch.setattr(room, "_leaves_avx512_unused", lambda: True)
    assert room.has_faster_float32()
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not room.has_faster_float32()


def test_steps_round_and_evaluation_does_not(tmp_path, monkeypatch, one_dnn):
    calls = one_dnn(False)
    monkeypatch.setattr(room, "MIN_OPERATIONS", 0)
    monkeypatch.setattr(room, "has_bfloat16_products", lambda: True)
    counts = {}
    for precision in room.PRECISIONS:
        trainer = _one_step(tmp_path, cpu_matmul_precision=precision)
        counts[precision] = calls["layers"]
        trainer.evaluate()
        assert calls["layers"] == counts[precision]
        calls["layers"] = 0
    assert counts["float32"] == 0
    assert counts["auto"] == counts["bfloat16"] > 10


def test_steps_and_evaluation_use_one_dnn_unless_other_settings_decide(tmp_path, monkeypatch, one_dnn):
    calls = one_dnn(True)
    monkeypatch.setattr(room, "MIN_FLOAT32_OPERATIONS", 0)
    trainer = _one_step(tmp_path)
    trained = dict(calls)
    assert trained["layers"] > 10
    trainer.evaluate()
    assert calls["layers"] > trained["layers"]
    calls["layers"] = 0
    _one_step(tmp_path, bf16=True).evaluate()
    assert calls["layers"] == 0


def _one_step(folder, **arguments):
    fixed = {"arguments_class": GroundingTrainingArguments, "max_steps": 1, "per_device_train_batch_size": 4}
    trainer = make_trainer(folder, **fixed, **arguments)
    trainer.train()
    return trainer


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
