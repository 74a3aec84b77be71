# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A pre-training model of transformers and ours side by side: the same weights, the same examples, in turns."""

import argparse
import json
import statistics
from abc import ABC, abstractmethod
from typing import Any

from grounded_attention.commands.command_line import make_parser

import torch

from benchmarks.device import clock
from grounded_attention.supervision import get_method

TOKENS, REGIONS = (8, 22), (10, 100)
MASKED = 0.15
WAYS = ("transformers", "padded", "unpadded", "supervised")
Batch = dict[str, torch.Tensor]


def make_batches(options: argparse.Namespace, vocabulary: int, width: int, classes: int) -> list[Batch]:
    """Makes random batches, each padded to its maximum. Two words of an example refer to a region each."""
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    batches = []
    for start in range(0, options.examples, options.batch):
        size = min(options.batch, options.examples - start)
        tokens, regions = draw(TOKENS[0], TOKENS[1] + 1, size), draw(REGIONS[0], REGIONS[1] + 1, size)
        words, boxes = int(tokens.max()), int(regions.max())
        text_mask, region_mask = (
            torch.arange(most) < length[:, None] for most, length in ((words, tokens), (boxes, regions))
        )
        corners = torch.rand(size, boxes, 2, generator=generator) / 2
        masked_words = (torch.rand(size, words, generator=generator) < MASKED) & text_mask
        masked_words[:, 0] = True
        masked_regions = (torch.rand(size, boxes, generator=generator) < MASKED) & region_mask
        masked_regions[:, 0] = True
        phrases, grounded = (
            torch.zeros(size, 2, words, dtype=torch.bool),
            torch.zeros(size, 2, boxes, dtype=torch.bool),
        )
        for phrase in range(2):
            phrases[:, phrase, 2 + phrase], grounded[:, phrase, phrase] = True, True
        batch = {
            "input_ids": draw(1, vocabulary, size, words) * text_mask,
            "attention_mask": text_mask.long(),
            "region_features": torch.randn(size, boxes, width, generator=generator) * region_mask[..., None],
            "region_boxes": torch.cat([corners, corners + 0.4], dim=-1) * region_mask[..., None],
            "region_attention_mask": region_mask.long(),
            "labels": draw(1, vocabulary, size, words).masked_fill(~masked_words, -100),
            "region_labels": draw(0, classes, size, boxes).masked_fill(~masked_regions, -100),
            "predicted_regions": masked_regions,
            "relationship_labels": draw(0, 2, size),
            "region_candidate_mask": region_mask,
            "phrase_mask": phrases,
            "phrase_regions": grounded,
        }
        batches.append({name: value.to(options.device) for name, value in batch.items()})
    return batches


class Workload(ABC):
    """Both models with the same weights, each with its optimizer.

    Args:
        options (`argparse.Namespace`): the options of [`build_parser`].
        ours (`PreTrainedModel`): our model, with the SDPA back end.
        theirs (`PreTrainedModel`): transformers' model with weights of the same names.
        batches (`list[Batch]`): the examples.
    """

    not_inputs: tuple[str, ...] = ("phrase_mask", "phrase_regions", "region_candidate_mask")
    """Entries of a batch that our model does not take."""

    def __init__(self, options: argparse.Namespace, ours: Any, theirs: Any, batches: list[Batch]):
        self.options, self.batches = options, batches
        self.ours, self.theirs = ours.to(options.device), theirs.to(options.device)
        self.theirs.load_state_dict(self.ours.state_dict(), strict=True)
        self.optimizers = {
            model: torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) for model in (self.ours, self.theirs)
        }
        self.method = get_method("direct")
        self.back_end = self.ours.config._attn_implementation

    @abstractmethod
    def their_loss(self, batch: Batch) -> torch.Tensor:
        """The loss of transformers' model; the same number as ours."""

    def _prepare(self, way: str) -> None:
        self.ours.config.unpad = way in ("unpadded", "supervised")
        if way == "supervised":
            self.method.prepare(self.ours)
        else:
            self.ours.set_attn_implementation(self.back_end)

    def loss(self, way: str, batch: Batch) -> torch.Tensor:
        """The loss of a batch."""
        with torch.autocast(self.options.device, torch.bfloat16, enabled=self.options.dtype == "bfloat16"):
            if way == "transformers":
                return self.their_loss(batch)
            inputs = {name: value for name, value in batch.items() if name not in self.not_inputs}
            if way != "supervised":
                return self.ours(**inputs).loss
            outputs = self.ours(**inputs, **self.method.forward_kwargs(batch))
            parts = self.method.losses(outputs, batch).values()
            return outputs.loss + torch.stack([total / count.clamp(min=1) for total, count in parts]).sum()

    def difference(self) -> float:
        """The largest relative difference of a loss between the ways without supervision, without dropout."""
        self.ours.eval()
        self.theirs.eval()
        largest = 0.0
        for batch in self.batches[:2]:
            losses = []
            for way in WAYS[:3]:
                self._prepare(way)
                with torch.no_grad():
                    losses.append(float(self.loss(way, batch)))
            largest = max(largest, (max(losses) - min(losses)) / losses[0])
        return largest

    def epoch(self, way: str, steps: int | None = None) -> float:
        """Trains on all batches, or the first `steps`; returns the seconds."""
        self._prepare(way)
        model = self.theirs if way == "transformers" else self.ours
        model.train()
        start = clock(self.options.device)
        for batch in self.batches[:steps]:
            self.loss(way, batch).backward()
            self.optimizers[model].step()
            self.optimizers[model].zero_grad()
        return clock(self.options.device) - start


def measure(workload: Workload) -> dict[str, Any]:
    """Runs the rounds; returns ratios as median, lowest and highest."""
    difference = workload.difference()
    for way in WAYS:
        workload.epoch(way, steps=1)
    rounds = [{way: workload.epoch(way) for way in WAYS} for _ in range(workload.options.rounds)]

    def ratio(slow: str, fast: str) -> list[float]:
        found = sorted(each[slow] / each[fast] for each in rounds)
        return [statistics.median(found), found[0], found[-1]]

    return {
        "loss_difference": difference,
        "speed_of_padded_over_transformers": ratio("transformers", "padded"),
        "speed_of_unpadded_over_transformers": ratio("transformers", "unpadded"),
        "speed_of_unpadded_over_padded": ratio("padded", "unpadded"),
        "time_of_supervised_over_unpadded": ratio("supervised", "unpadded"),
    }


def report(workload: Workload) -> str:
    """Measures, and returns the ratios as text, or as JSON with `--json`."""
    found = measure(workload)
    if workload.options.json:
        return json.dumps(found)
    lines = [f"largest relative difference of a loss between the ways: {found.pop('loss_difference'):.1e}"]
    lines += [f"{name.replace('_', ' ')}: {m:.2f} ({low:.2f} to {high:.2f})" for name, (m, low, high) in found.items()]
    return "\n".join(lines)


def build_parser(name: str, docstring: str | None) -> argparse.ArgumentParser:
    """Makes the parser of a benchmark, without the option `--layers`."""
    parser = make_parser(name, docstring)
    add = parser.add_argument
    add("--batch", type=int, default=16, metavar="N", help="examples per batch (default: 16)")
    add("--examples", type=int, default=64, metavar="N", help="examples per round (default: 64)")
    add("--rounds", type=int, default=3, metavar="N", help="rounds (default: 3)")
    add("--device", default="cpu", help="cpu or cuda (default: cpu)")
    add("--dtype", default="float32", choices=["float32", "bfloat16"], help="precision (default: float32)")
    add("--quick", action="store_true", help="a tiny model, to try the benchmark")
    add("--json", action="store_true", help="print JSON")
    return parser
