# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time of pre-training steps on a CPU with the products of this package, over that with PyTorch's own.

That is what `training.cpu_matmul_precision` switches: `float32` differs from PyTorch's own products on AMD processors
with AVX-512, where oneDNN computes them; `bfloat16` rounds the factors of large linear layers. Three models train in
turns on the same unpadded examples, from the same weights: forward, backward and AdamW, without dropout. `small` has
the sizes of the recipes on scenes, `base` the width of BERT base. The last column is the largest relative difference
of a loss in the timed steps.

examples:
  OMP_NUM_THREADS=1 python -m benchmarks.matmul_precision
"""

import argparse
import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from grounded_attention.commands.command_line import run

import numpy as np
import torch

from benchmarks.measuring import benchmark_parser, printed, quotients, spread, take_turns
from benchmarks.pretraining_step import TINY, make_batches, make_examples
from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining
from grounded_attention.training.loop.matmul_precision import (
    BFLOAT16,
    FLOAT32,
    has_bfloat16_products,
    has_faster_float32,
    use_matmul_precision,
)

NO_DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "region_dropout"), 0.0)
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3}
# Name -> (configuration, examples in a batch).
SIZES: dict[str, tuple[dict[str, Any], int]] = {
    "small": ({**SMALL, "vocab_size": 400}, 64),
    "base": ({"num_hidden_layers": 6}, 16),
}
PLAIN = "PyTorch's own"


class Training:
    """A model that trains with one precision, or with PyTorch's own products."""

    def __init__(self, model: VLBertForPreTraining, precision: str):
        self.model, self.precision = model, precision
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

        self.losses: list[float] = []

    def epoch(self, batches: Sequence[dict[str, torch.Tensor]]) -> None:
        """Trains on all batches, and keeps the losses."""
        for batch in batches:
            with nullcontext() if self.precision == PLAIN else use_matmul_precision(self.precision):
                loss = self.model(**batch).loss
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns for each precision the ratio of each round, and the largest relative difference of a loss."""
    sizes, batch = SIZES[name]
    sizes, batch = (TINY | {"num_hidden_layers": 1}, 2) if options.quick else (sizes, batch)
    torch.manual_seed(0)
    model = VLBertForPreTraining(VLBertConfig(attn_implementation="sdpa", **NO_DROPOUT, **sizes)).train()
    trainings = {each: Training(copy.deepcopy(model), each) for each in (PLAIN, FLOAT32, BFLOAT16)}
    batches = make_batches(make_examples(batch * options.batches, model.config), batch, False, "cpu")
    for training in trainings.values():
        training.epoch(batches[:1])  # warm-up
    ways = {each: partial(training.epoch, batches) for each, training in trainings.items()}
    times = take_turns(ways, options.rounds, label=name)
    plain = np.array(trainings[PLAIN].losses)
    return {
        each: {
            "rounds": quotients(times[each], times[PLAIN]),
            "loss_difference": float((abs(np.array(trainings[each].losses) - plain) / plain).max()),
        }
        for each in (FLOAT32, BFLOAT16)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("matmul_precision", __doc__, rounds=5)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES), help="models: %(default)s")
    parser.add_argument("--batches", type=int, default=4, metavar="N", help="batches in a round: %(default)s")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    return printed({name: measure(name, options) for name in options.sizes}, options.json, _lines)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    if not has_bfloat16_products():
        yield "note: this processor has no bfloat16 products"
    if not has_faster_float32():
        yield "note: PyTorch's own products are the fast ones in float32 here"
    yield f"{'size':<8}{'precision':<10}{'time / own':>22}{'losses differ by':>18}"
    for name, ways in found.items():
        for precision, each in ways.items():
            yield f"{name:<8}{precision:<10}{spread(each['rounds']):>22}{each['loss_difference']:>18.1e}"


if __name__ == "__main__":
    sys.exit(main())
