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
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from grounded_attention.commands.command_line import make_parser, run

import torch
from tqdm.auto import tqdm

from benchmarks.device import clock
from benchmarks.pretraining_step import TINY, make_batches, make_examples
from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining
from grounded_attention.training.loop.matmul_precision import (
    BFLOAT16,
    FLOAT32,
    has_bfloat16_products,
    has_faster_float32,
    use_matmul_precision,
)
from grounded_attention.utils.quiet import is_quiet

NO_DROPOUT: dict[str, Any] = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "region_dropout": 0.0,
}
# Name -> (configuration, examples in a batch).
SIZES: dict[str, tuple[dict[str, Any], int]] = {
    "small": (
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "vocab_size": 400,
        },
        64,
    ),
    "base": ({"num_hidden_layers": 6}, 16),
}


PLAIN = "PyTorch's own"


class Training:
    """A model that trains with one precision, or with PyTorch's own products."""

    def __init__(self, model: VLBertForPreTraining, precision: str):
        self.model, self.precision = model, precision
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def epoch(self, batches: Sequence[dict[str, torch.Tensor]]) -> tuple[float, list[float]]:
        """Trains on all batches; returns the CPU seconds and the losses."""
        start, losses = clock("cpu"), []
        for batch in batches:
            with nullcontext() if self.precision == PLAIN else use_matmul_precision(self.precision):
                loss = self.model(**batch).loss
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return clock("cpu") - start, losses


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns for each precision the ratio of each round, and the largest relative difference of a loss."""
    sizes, batch = SIZES[name]
    sizes, batch = (TINY | {"num_hidden_layers": 1}, 2) if options.quick else (sizes, batch)
    torch.manual_seed(0)
    model = VLBertForPreTraining(VLBertConfig(attn_implementation="sdpa", **NO_DROPOUT, **sizes)).train()
    trainings = [Training(copy.deepcopy(model), precision) for precision in (PLAIN, FLOAT32, BFLOAT16)]
    batches = make_batches(make_examples(batch * options.batches, model.config), batch, False, "cpu")
    for training in trainings:
        training.epoch(batches[:1])  # warm-up
    found: dict[str, Any] = {each: {"rounds": [], "loss_difference": 0.0} for each in (FLOAT32, BFLOAT16)}
    for turn in tqdm(range(options.rounds), desc=name, leave=False, disable=is_quiet()):
        done = {each.precision: each.epoch(batches) for each in trainings[:: 1 if turn % 2 else -1]}
        for precision, figures in found.items():
            figures["rounds"].append(done[precision][0] / done[PLAIN][0])
            pairs = zip(done[precision][1], done[PLAIN][1], strict=True)
            difference = max(abs(one - other) / other for one, other in pairs)
            figures["loss_difference"] = max(figures["loss_difference"], difference)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(_parser(), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    found = {name: measure(name, options) for name in options.sizes}
    if options.json:
        return json.dumps(found)
    lines = [] if has_bfloat16_products() else ["note: this processor has no bfloat16 products"]
    lines += [] if has_faster_float32() else ["note: PyTorch's own products are the fast ones in float32 here"]
    lines.append(f"{'size':<8}{'precision':<10}{'time / own':>11}{'rounds':>16}{'losses differ by':>18}")
    for name, ways in found.items():
        for precision, each in ways.items():
            rounds = each["rounds"]
            spread = f"{min(rounds):.2f} to {max(rounds):.2f}"
            figures = f"{statistics.median(rounds):>11.2f}{spread:>16}{each['loss_difference']:>18.1e}"
            lines.append(f"{name:<8}{precision:<10}{figures}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m benchmarks.matmul_precision", __doc__)
    add = parser.add_argument
    add("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES), help="models: %(default)s")
    add("--batches", type=int, default=4, metavar="N", help="batches in a round: %(default)s")
    add("--rounds", type=int, default=5, metavar="N", help="rounds: %(default)s")
    add("--quick", action="store_true", help="only a tiny model, as a test")
    add("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
