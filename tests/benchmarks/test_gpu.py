# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Without a GPU the ways of the benchmark run on the CPU; batches, peaks of cards and shares are what they claim."""

import json
import sys
import types
from argparse import Namespace

import pytest
import torch
from torch.testing import assert_close

from benchmarks import gpu as benchmark
from benchmarks import gpu_decoders, measuring
from grounded_attention.modeling import VLBertConfig
from tests.helpers.packed_kernel import packed_kernel

TINY = Namespace(device="cpu", batch=3, vgp_batch=3, rounds=2, steps=1, filled=0)


def test_without_a_gpu_every_way_runs(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    # The names of back ends, because kernels need a GPU; eager attention instead.
    monkeypatch.setattr(gpu_decoders, "BACK_ENDS", {"": "sdpa", ", a kernel": "eager"})
    assert benchmark.main(["--json", "--no-compile"]) == 0
    found = json.loads(capsys.readouterr().out)
    for task in benchmark.CLASSES:
        names = {way.name for way in benchmark.available(benchmark.WAYS) if not way.compiled and task in way.tasks}
        assert len(names) >= 3
        assert names <= set(found[task])
        assert all(found[task][name]["seconds"][0] > 0 for name in names)
        assert found[task]["gradients of SDPA"] < 0.1
    decoder = set(found["decoder, 24 image tokens"])
    assert decoder > set(gpu_decoders.PAIRS)
    assert {name + ", a kernel" for name in ("LoRA", "LoRA, direct", "forward", "heads", "answer", "look")} < decoder


def test_when_the_time_is_over_a_line_says_what_was_not_run(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmark.main(["--parts", "VGP", "decoder", "--seconds", "0.001"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for way in ("SDPA", "SDPA, model compiled", "decoder"):
        assert f"{way:<{benchmark.NAME}}{benchmark.TIME_OVER}" in lines


def loss_of(way):
    training = benchmark.Training("VGP", way, TINY)
    training.model.eval()
    return training.loss(half=False).detach()


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_blocks_compute_what_others_do():
    """On a CPU they are traced. Whole models, and batches of other sizes, are compiled in tests/conformance."""
    direct = benchmark.Way("way", method="direct")
    assert_close(loss_of(direct._replace(compiled="blocks")), loss_of(direct))


def test_packed_rows_attend_to_their_own_row(monkeypatch):
    """`varlen` without its kernel, which needs a GPU: the loss is that of SDPA."""
    packed = packed_kernel([])

    def kernel(*states, max_q, max_k, scale):
        states, starts = states[:3], states[3:]
        by_head = [each.transpose(0, 1)[None] for each in states]
        lengths = dict(zip(("cu_seq_lens_q", "cu_seq_lens_k"), starts, strict=True))
        return packed(None, *by_head, None, **lengths, max_length_q=max_q, max_length_k=max_k, scaling=scale)[0][0]

    varlen = types.SimpleNamespace(varlen_attn=kernel)
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", varlen)
    assert_close(loss_of(benchmark.Way("way", benchmark.VARLEN)), loss_of(benchmark.UNPADDED))


def test_only_the_parts_that_are_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmark.main(["--json", "--parts", "decoder"]) == 0
    found = set(json.loads(capsys.readouterr().out))
    assert "decoder, 24 image tokens" in found
    assert not found & set(benchmark.CLASSES)


@pytest.mark.parametrize("task", benchmark.CLASSES)
def test_phrases_and_their_regions_are_within_the_example(task):
    inputs, targets = benchmark.make_batch(task, 5, VLBertConfig(**benchmark.TINY))
    phrases = targets["phrase_mask"]
    regions = targets["phrase_regions"]
    for row in range(5):
        text = int(inputs["attention_mask"][row].sum())
        count = int(inputs["region_attention_mask"][row].sum())
        for phrase in range(phrases.shape[1]):
            words = phrases[row, phrase].nonzero().flatten().tolist()
            begin = 1 + 3 * phrase
            assert words == ([begin, begin + 1] if begin + 2 < text else [])
            seen = regions[row, phrase].nonzero().flatten().tolist()
            assert seen == ([phrase] if words and phrase < count else [])
    assert phrases.any(), "nothing is supervised"


@pytest.mark.parametrize(
    "name, tera",
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ],
)
def test_peaks_are_of_the_card_and_of_no_other(name, tera):
    assert measuring.data_sheet_peak(name) == (None if tera is None else tera * 1e12)


def test_the_table_of_a_card():
    """Seconds are given: 64 samples in 0.1 s are 640 a second, and 0.04 s at the peak are 40 % of it."""
    times = {"SDPA": [0.09, 0.1, 0.12], "SDPA, direct": [0.09, 0.12, 0.24]}
    measured = {name: benchmark.Measured(each, 2**31) for name, each in times.items()} | {"flex": "failed: no kernel"}
    found = {}
    alone, supervised, failed = (line.split() for line in list(benchmark.table("VGP", measured, found, 64, 0.04))[1:])
    assert alone == ["SDPA", "100.0", "90.0", "to", "120.0", "2.0", "640", "40%"]
    ratios = ["1.20", "(1.00", "to", "2.00),", "memory", "1.00"]
    assert supervised[2:] == ["120.0", "90.0", "to", "240.0", "2.0", "533", "33%", *ratios]
    assert failed == ["flex", "failed:", "no", "kernel"]
    assert found["SDPA"]["share_of_peak"] == pytest.approx(0.4)
    twice = {"SDPA, filled": benchmark.Measured([0.1], 2**32, 128)}
    (filled,) = list(benchmark.table("VGP", twice, {}, 64, 0.04))[1:]
    assert filled.split()[-4:] == ["1280", "80%", "batch", "128"]


def test_useful_operations_leave_padding_out(monkeypatch):
    """A layer more adds the products of its linear maps on valid columns, and those of its padded attention."""
    found = []
    for layers in (1, 2):
        monkeypatch.setitem(benchmark.TINY, "num_hidden_layers", layers)
        found.append(benchmark.useful_operations("VGP", TINY)[1])
    inputs, _ = benchmark.make_batch("VGP", TINY.vgp_batch, VLBertConfig(**benchmark.TINY))
    masks = torch.cat([inputs["attention_mask"], inputs["region_attention_mask"]], dim=1)
    columns = int(masks.sum()) + len(masks)  # END
    width = 48
    inner = 96
    length = masks.shape[1] + 1
    linear = 6 * columns * (4 * width**2 + 2 * width * inner)  # a product forward, two backward, two operations each
    attention = 14 * width * len(masks) * length**2  # two products forward, five backward
    assert linear <= found[1] - found[0] <= linear + attention
