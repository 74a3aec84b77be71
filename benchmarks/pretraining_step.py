# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Speed of pre-training steps on examples of different lengths: padded, unpadded, supervised, and in transformers.

The lengths are similar to those of Conceptual Captions: 8 to 22 tokens and 10 to 100 regions, uniform. Padded to the
maximum of the batch, 0.59 of the columns are not padding. All ways have the same weights and train on the same
examples: forward, backward and AdamW, with dropout 0.1; with `--forward` they compute the forward passes of an
evaluation instead. LXMERT predicts masked words, class and feature of regions, and whether the caption belongs;
VisualBERT words and the caption; VL-BERT words and classes of regions. Of LXMERT and VisualBERT transformers has a
model too, which has only eager attention. A round runs all ways in turn; times are CPU seconds of the process. Before,
the losses of all ways without supervision are compared, without dropout.

examples:
  python -m benchmarks.pretraining_step vl_bert
  python -m benchmarks.pretraining_step vl_bert --forward            # what unpadding brings to an evaluation
  python -m benchmarks.pretraining_step lxmert --layers 9 5 5 --batch 32 --examples 256
  python -m benchmarks.pretraining_step visualbert --layers 12
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import transformers
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from benchmarks.measuring import benchmark_parser, quotients, report, take_turns
from grounded_attention.commands.command_line import run
from grounded_attention.modeling import (
    LXMERTConfig,
    LXMERTForPreTraining,
    VisualBERTConfig,
    VisualBERTForPreTraining,
    VLBertConfig,
    VLBertForPreTraining,
)
from grounded_attention.supervision import get_method

TOKENS = (8, 22)
REGIONS = (10, 100)
MASKED = 0.15
SMALL: dict[str, Any] = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100}
TINY: dict[str, Any] = {**SMALL, "region_feature_size": 16}
INPUTS = ("input_ids", "attention_mask", "labels", "region_features", "region_boxes", "region_attention_mask")
Batch = dict[str, torch.Tensor]


def make_batches(
    config: Any, count: int, size: int, words: tuple[int, int] = TOKENS, boxes: tuple[int, int] = REGIONS
) -> list[Batch]:
    """Random examples of `words` tokens and `boxes` regions (ranges) in batches, each padded to its maximum.

    About one of seven is predicted. The third and the fourth word of an example refer to its first two regions.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    examples = []
    for _ in range(count):
        tokens = int(draw(words[0], words[1] + 1, 1))
        regions = int(draw(boxes[0], boxes[1] + 1, 1))
        corners = torch.rand(regions, 2, generator=generator) / 2
        predicted = [torch.rand(length, generator=generator) < MASKED for length in (tokens, regions)]
        for chosen in predicted:
            chosen[0] = True  # every example has a loss, so the mean does not depend on the batches
        classes = getattr(config, "region_classes", 2)
        examples.append(
            {
                "input_ids": draw(1, config.vocab_size, tokens),
                "attention_mask": torch.ones(tokens, dtype=torch.int64),
                "labels": draw(1, config.vocab_size, tokens).masked_fill(~predicted[0], -100),
                "region_features": torch.randn(regions, config.region_feature_size, generator=generator),
                "region_boxes": torch.cat([corners, corners + 0.4], dim=1),
                "region_attention_mask": torch.ones(regions, dtype=torch.int64),
                "region_labels": draw(0, classes, regions).masked_fill(~predicted[1], -100),
                "masked_regions": predicted[1],
            }
        )
    batches = []
    for start in range(0, count, size):
        group = examples[start : start + size]
        batch = {name: _pad(name, [each[name] for each in group]) for name in group[0]}
        batch["relationship_labels"] = draw(0, 2, len(group))
        batch["region_candidate_mask"] = batch["region_attention_mask"].bool()
        phrase = torch.arange(2)[:, None]
        for name, first in (("phrase_mask", 2), ("phrase_regions", 0)):
            columns = batch["input_ids" if first else "region_boxes"].shape[1]
            batch[name] = (torch.arange(columns) == phrase + first).expand(len(group), -1, -1)
        batches.append(batch)
    return batches


def _pad(name: str, rows: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(rows, batch_first=True, padding_value=-100 if name.endswith("labels") else 0)


class Family(NamedTuple):
    """How the benchmark makes a family, and what it gives to it."""

    layers: list[int]
    make: Callable[[list[int], bool], tuple[Any, Any]]
    """Layers, and whether tiny -> our model and that of transformers, if there is one."""
    inputs: dict[str, str]
    """More arguments of our model -> entries of a batch."""
    their_loss: Callable[[Any, Batch], torch.Tensor] | None = None
    """The loss of transformers' model; the same number as ours."""


def _make_vl_bert(layers: list[int], quick: bool) -> tuple[Any, Any]:
    return VLBertForPreTraining(VLBertConfig(num_hidden_layers=layers[0], **(TINY if quick else {}))), None


def _make_lxmert(layers: list[int], quick: bool) -> tuple[Any, Any]:
    sizes = SMALL | {"visual_feat_dim": 16, "num_object_labels": 12, "num_attr_labels": 5} if quick else {}
    sizes = sizes | dict(zip(("l_layers", "r_layers", "x_layers"), layers, strict=True))
    sizes |= {"task_qa": False, "visual_attr_loss": False}
    theirs = transformers.LxmertConfig(**sizes, visual_loss_normalizer=1 / 0.15)
    ours = LXMERTConfig(**sizes, visual_loss="released")
    return LXMERTForPreTraining(ours), transformers.LxmertForPreTraining(theirs)


def _make_visualbert(layers: list[int], quick: bool) -> tuple[Any, Any]:
    sizes = {"num_hidden_layers": layers[0], **(SMALL if quick else {})}
    sizes["visual_embedding_dim"] = 16 if quick else 2048
    theirs = transformers.VisualBertForPreTraining(transformers.VisualBertConfig(**sizes))
    return VisualBERTForPreTraining(VisualBERTConfig(**sizes)), theirs


def _lxmert_loss(model: Any, batch: Batch) -> torch.Tensor:
    mask = batch["region_attention_mask"]
    weights = batch["masked_regions"].float()
    # Its mean runs over padded regions too.
    model.visual_loss_normalizer = float(mask.numel() / mask.sum()) / 0.15
    return model(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        visual_feats=batch["region_features"],
        visual_pos=batch["region_boxes"],
        visual_attention_mask=mask,
        labels=batch["labels"],
        obj_labels={"obj": (batch["region_labels"], weights), "feat": (batch["region_features"], weights)},
        matched_label=batch["relationship_labels"],
    ).loss


def _visualbert_loss(model: Any, batch: Batch) -> torch.Tensor:
    regions = batch["region_attention_mask"]
    return model(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        visual_embeds=batch["region_features"],
        visual_attention_mask=regions,
        visual_token_type_ids=torch.zeros_like(regions),
        labels=pad(batch["labels"], (0, regions.shape[1]), value=-100),
        sentence_image_labels=batch["relationship_labels"],
    ).loss


CLASSES = {"region_labels": "region_labels"}
CAPTION = {"relationship_labels": "relationship_labels"}
FAMILIES = {
    "vl_bert": Family([2], _make_vl_bert, {**CLASSES, "masked_regions": "masked_regions"}),
    "lxmert": Family(
        [3, 2, 2], _make_lxmert, {**CLASSES, **CAPTION, "predicted_regions": "masked_regions"}, _lxmert_loss
    ),
    "visualbert": Family([4], _make_visualbert, CAPTION, _visualbert_loss),
}


class Workload:
    """Our model with the SDPA back end, and transformers' with the same weights, each with its optimizer."""

    def __init__(self, options: argparse.Namespace):
        family = FAMILIES[options.model]
        layers = options.layers or family.layers
        if len(layers) != len(family.layers):
            raise ValueError(f"--layers {layers}: give {len(family.layers)} for {options.model}")
        torch.manual_seed(0)
        self.family = family
        self.trains = not options.forward
        self.ours, self.theirs = family.make(layers, options.quick)
        self.ours.set_attn_implementation("sdpa")
        self.ways = ("padded", "unpadded", "direct")
        if self.theirs is not None:
            self.theirs.load_state_dict(self.ours.state_dict(), strict=True)
            self.ways = ("transformers", *self.ways)
        self.optimizers = {
            model: torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
            for model in (self.ours, self.theirs)
            if model is not None
        }
        self.method = get_method("direct")
        self.batches = make_batches(self.ours.config, options.examples, options.batch)

    def prepare(self, way: str) -> None:
        """Sets our model to a way."""
        self.ours.config.unpad = way != "padded"
        if way == "direct":
            self.method.prepare(self.ours)
        else:
            self.ours.set_attn_implementation("sdpa")

    def loss(self, way: str, batch: Batch) -> torch.Tensor:
        """The loss of a batch."""
        if way == "transformers":
            assert self.family.their_loss is not None
            return self.family.their_loss(self.theirs, batch)
        inputs = {name: batch[name] for name in INPUTS}
        inputs |= {name: batch[entry] for name, entry in self.family.inputs.items()}
        if way != "direct":
            return self.ours(**inputs).loss
        outputs = self.ours(**inputs, **self.method.forward_kwargs(batch))
        parts = self.method.losses(outputs, batch).values()
        return outputs.loss + sum(total / count.clamp(min=1) for total, count in parts)

    @torch.no_grad()
    def difference(self) -> float:
        """The largest relative difference of a loss between the ways without supervision, without dropout."""
        for model in self.optimizers:
            model.eval()
        largest = 0.0
        for batch in self.batches[:2]:
            losses = []
            for way in self.ways[:-1]:
                self.prepare(way)
                losses.append(float(self.loss(way, batch)))
            largest = max(largest, (max(losses) - min(losses)) / losses[0])
        return largest

    def epoch(self, way: str, steps: int | None = None) -> None:
        """Trains on all batches, or the first `steps`; with `--forward` it computes the losses alone."""
        self.prepare(way)
        model = self.theirs if way == "transformers" else self.ours
        model.train(self.trains)
        for batch in self.batches[:steps]:
            with torch.set_grad_enabled(self.trains):
                loss = self.loss(way, batch)
            if self.trains:
                loss.backward()
                self.optimizers[model].step()
                self.optimizers[model].zero_grad()


def ratios(times: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The comparisons of the ways that were measured, by name, of each round."""
    speeds = (("padded", "transformers"), ("unpadded", "transformers"), ("unpadded", "padded"))
    found = {f"speed, {a} / {b}": quotients(times[b], times[a]) for a, b in speeds if b in times}
    return {**found, "time, direct / unpadded": quotients(times["direct"], times["unpadded"])}


def _work(options: argparse.Namespace) -> str:
    workload = Workload(options)
    difference = workload.difference()
    for way in workload.ways:
        workload.epoch(way, steps=1)
    times = take_turns({way: partial(workload.epoch, way) for way in workload.ways}, options.rounds)
    return report({options.model: {"difference of losses": [difference], **ratios(times)}}, options.json)


def build_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    parser = benchmark_parser("pretraining_step", __doc__, rounds=3)
    add = parser.add_argument
    add("model", choices=list(FAMILIES))
    add("--forward", action="store_true", help="no training: forward passes, as an evaluation has them")
    add("--batch", type=int, default=16, metavar="N", help="examples per batch (default: %(default)s)")
    add("--examples", type=int, default=64, metavar="N", help="examples per round (default: %(default)s)")
    add("--layers", type=int, nargs="+", metavar="N", help="VL-BERT: 2; LXMERT: text, region, cross (3 2 2); 4")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns its exit status."""
    return run(build_parser(), _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
