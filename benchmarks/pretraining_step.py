# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Speed of pre-training steps on examples of different lengths: padded, in batches of similar length, unpadded, both.

The lengths are similar to those of Conceptual Captions: 8 to 22 tokens and 10 to 100 regions, uniform. Padded to the
maximum of the batch, 0.59 of the columns are not padding. All ways train on the same examples: forward, backward and
AdamW, with dropout 0.1; with `--forward` they compute the forward passes of an evaluation instead. A round runs all
ways in turn, and the result is the ratio to `padded` in the same round. On a CPU, times are CPU seconds of the
process, which other processes change little.

examples:
  python -m benchmarks.pretraining_step
  python -m benchmarks.pretraining_step --forward                            # what unpadding brings to an evaluation
  python -m benchmarks.pretraining_step --layers 12 --batch 256 --examples 4096 --dtype bfloat16 --compile   # on a GPU
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from transformers.trainer_pt_utils import LengthGroupedSampler

from benchmarks.measuring import benchmark_parser, printed, quotients, spread, take_turns
from grounded_attention.commands.command_line import run
from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining

TOKENS, REGIONS = (8, 22), (10, 100)
MASKED = 0.15
TINY: dict[str, Any] = {"hidden_size": 48, "intermediate_size": 96, "vocab_size": 100, "region_feature_size": 16}
# Way -> (batches of similar length, unpadded).
WAYS = {"padded": (False, False), "length-aware": (True, False), "unpadded": (False, True), "both": (True, True)}
Example = dict[str, torch.Tensor]
Batches = list[dict[str, torch.Tensor]]


def make_examples(
    count: int, config: VLBertConfig, words: tuple[int, int] = TOKENS, boxes: tuple[int, int] = REGIONS
) -> list[Example]:
    """Makes random examples of `words` tokens and `boxes` regions (ranges); about one of seven is predicted."""
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    examples = []
    for _ in range(count):
        tokens, regions = int(draw(words[0], words[1] + 1, 1)), int(draw(boxes[0], boxes[1] + 1, 1))
        corners = torch.rand(regions, 2, generator=generator) / 2
        predicted = [torch.rand(length, generator=generator) < MASKED for length in (tokens, regions)]
        for chosen in predicted:
            chosen[0] = True  # every example has a loss, so the mean does not depend on the batches
        examples.append(
            {
                "input_ids": draw(1, config.vocab_size, tokens),
                "attention_mask": torch.ones(tokens, dtype=torch.int64),
                "labels": draw(1, config.vocab_size, tokens).masked_fill(~predicted[0], -100),
                "region_features": torch.randn(regions, config.region_feature_size, generator=generator),
                "region_boxes": torch.cat([corners, corners + 0.4], dim=1),
                "region_attention_mask": torch.ones(regions, dtype=torch.int64),
                "region_labels": draw(0, config.region_classes, regions).masked_fill(~predicted[1], -100),
                "masked_regions": predicted[1],
            }
        )
    return examples


def make_batches(examples: Sequence[Example], size: int, by_length: bool, device: str) -> Batches:
    """Makes batches, each padded to its maximum; with `by_length` in the order of the sampler of the Trainer."""
    order: Sequence[int] = range(len(examples))
    if by_length:
        lengths = [len(example["input_ids"]) + len(example["region_boxes"]) for example in examples]
        generator = torch.Generator().manual_seed(0)
        order = list(LengthGroupedSampler(size, lengths=lengths, generator=generator))
    groups = [[examples[i] for i in order[start : start + size]] for start in range(0, len(examples), size)]
    return [{name: _pad(name, group).to(device) for name in group[0]} for group in groups]


def _pad(name: str, group: Sequence[Example]) -> torch.Tensor:
    padding = -100 if name.endswith("labels") else 0
    return torch.nn.utils.rnn.pad_sequence(
        [example[name] for example in group], batch_first=True, padding_value=padding
    )


def fill(batches: Batches) -> float:
    """Returns the share of columns that are not padding, including END."""
    masks = [torch.cat([b["attention_mask"], b["region_attention_mask"]], dim=1) for b in batches]
    return sum(float(mask.sum()) + len(mask) for mask in masks) / sum(mask.numel() + len(mask) for mask in masks)


def make_model(options: argparse.Namespace) -> VLBertForPreTraining:
    """Makes a model of base width, or a tiny model with `--quick`."""
    sizes = TINY if options.quick else {}
    torch.manual_seed(0)
    config = VLBertConfig(num_hidden_layers=options.layers, attn_implementation="sdpa", **sizes)
    return VLBertForPreTraining(config).to(options.device)


class Workload:
    """A model that trains on the same examples in each way."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.model = make_model(options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.step = torch.compile(self.model, dynamic=True) if options.compile else self.model
        examples = make_examples(options.examples, self.model.config)
        self.batches = {
            by_length: make_batches(examples, options.batch, by_length, options.device) for by_length in (False, True)
        }

    def epoch(self, way: str, steps: int | None = None) -> None:
        """Runs one step, or with `--forward` one forward pass, on each batch, or on the first `steps` batches."""
        by_length, self.model.config.unpad = WAYS[way]
        trains = not self.options.forward
        self.model.train(trains)
        for batch in self.batches[by_length][:steps]:
            with self._autocast(), torch.set_grad_enabled(trains):
                loss = self.step(**batch).loss
            if not trains:
                continue
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.options.device, torch.bfloat16, enabled=self.options.dtype == "bfloat16")

    @torch.no_grad()
    def loss(self, way: str) -> float:
        """Returns the mean cross-entropy of all words plus that of all regions, without dropout."""
        by_length, self.model.config.unpad = WAYS[way]
        self.model.eval()
        totals = torch.zeros(2, 2, dtype=torch.float64)
        for batch in self.batches[by_length]:
            with self._autocast():
                outputs = self.model(**{name: value for name, value in batch.items() if "labels" not in name})
            totals[0] += _sum_and_count(outputs.mlm_logits, batch["labels"])
            totals[1] += _sum_and_count(outputs.region_logits, batch["region_labels"])
        return float((totals[:, 0] / totals[:, 1]).sum())


def _sum_and_count(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    total = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
    return torch.stack([total, (labels >= 0).sum()]).double().cpu()


def measure(workload: Workload, rounds: int, device: str) -> dict[str, list[float]]:
    """Returns way -> seconds of each round; a round runs each way once, in alternating order."""
    for way in WAYS:
        workload.epoch(way, steps=None if workload.options.compile else 1)  # warm-up
    return take_turns({way: partial(workload.epoch, way) for way in WAYS}, rounds, device, "epochs")


def ratios(times: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Returns way -> speed relative to `padded` in each round."""
    return {way: quotients(times["padded"], taken) for way, taken in times.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(_parser(), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    workload = Workload(_with_sizes(options))
    losses = {way: workload.loss(way) for way in WAYS}
    times = measure(workload, options.rounds, options.device)

    def lines(numbers: object) -> Iterator[str]:
        """One line per way: fill, speed relative to `padded`, and difference of loss."""
        yield f"{options.examples} examples in batches of {options.batch}, {options.layers} layers, {options.dtype}"
        yield f"{'way':<14}{'fill':>5}{'speed / padded':>24}{'loss - padded':>16}"
        for way, speeds in ratios(times).items():
            filled = fill(workload.batches[WAYS[way][0]])
            yield f"{way:<14}{filled:>5.2f}{spread(speeds):>24}{losses[way] - losses['padded']:>16.1e}"
        if not options.forward:
            yield "aim: both / padded >= 1.5"

    return printed({"seconds": times, "losses": losses}, options.json, lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the options; `--quick` sets the sizes of a tiny run."""
    return _with_sizes(_parser().parse_args(arguments))


def _with_sizes(options: argparse.Namespace) -> argparse.Namespace:
    if options.quick:
        options.layers, options.batch, options.examples, options.rounds = 1, 2, 4, 1
    return options


def _parser() -> argparse.ArgumentParser:
    parser = benchmark_parser("pretraining_step", __doc__, rounds=3, device=True)
    add = parser.add_argument
    add("--forward", action="store_true", help="no training: forward passes, as an evaluation has them")
    add("--compile", action="store_true", help="with torch.compile")
    add("--layers", type=int, default=2, help="layers of the model: %(default)s")
    add("--batch", type=int, default=16, help="examples per batch: %(default)s")
    add("--examples", type=int, default=48, help="examples per round: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
