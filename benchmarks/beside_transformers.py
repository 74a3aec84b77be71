# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Speed of a pre-training step of LXMERT or VisualBERT: transformers' model, ours padded, unpadded, with supervision.

All ways have the same weights and train on the same examples, 8 to 22 tokens and 10 to 100 regions, uniform. LXMERT
predicts masked words, class and feature of regions, and whether the caption belongs; VisualBERT words and the caption.
transformers has only eager attention. A round runs all ways in turn; times are CPU seconds of the process, or seconds
on a GPU. Before the measurement the losses of all ways without supervision are compared, without dropout.

examples:
  python -m benchmarks.beside_transformers lxmert
  python -m benchmarks.beside_transformers lxmert --layers 9 5 5 --batch 32 --examples 256 --device cuda
  python -m benchmarks.beside_transformers visualbert --layers 12
"""

import argparse
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import transformers

from benchmarks.measuring import benchmark_parser, printed, quotients, spread, take_turns
from grounded_attention.commands.command_line import run
from grounded_attention.modeling import LXMERTConfig, LXMERTForPreTraining, VisualBERTConfig, VisualBERTForPreTraining
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
    """Our model with the SDPA back end and transformers' with weights of the same names, each with its optimizer."""

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

    def epoch(self, way: str, steps: int | None = None) -> None:
        """Trains on all batches, or the first `steps`."""
        self._prepare(way)
        model = self.theirs if way == "transformers" else self.ours
        model.train()
        for batch in self.batches[:steps]:
            self.loss(way, batch).backward()
            self.optimizers[model].step()
            self.optimizers[model].zero_grad()


class LXMERTWorkload(Workload):
    """LXMERT with its losses of words, of class and feature of regions, and of the relationship."""

    def __init__(self, options: argparse.Namespace):
        sizes: dict[str, Any] = {}
        if options.quick:
            sizes = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100}
            sizes |= {"visual_feat_dim": 16, "num_object_labels": 12, "num_attr_labels": 5}
        sizes |= dict(zip(("l_layers", "r_layers", "x_layers"), options.layers, strict=True))
        sizes |= {"task_qa": False, "visual_attr_loss": False}
        torch.manual_seed(0)
        config = LXMERTConfig(**sizes, visual_loss="released", attn_implementation="sdpa")
        theirs = transformers.LxmertConfig(**sizes, visual_loss_normalizer=1 / 0.15)
        models = LXMERTForPreTraining(config), transformers.LxmertForPreTraining(theirs)
        batches = make_batches(options, config.vocab_size, config.visual_feat_dim, config.num_object_labels)
        super().__init__(options, *models, batches)

    def their_loss(self, batch: Batch) -> torch.Tensor:
        mask = batch["region_attention_mask"]
        weights = batch["predicted_regions"].float()
        objects = {"obj": (batch["region_labels"], weights), "feat": (batch["region_features"], weights)}
        # Its mean runs over padded regions too.
        self.theirs.visual_loss_normalizer = float(mask.numel() / mask.sum()) / 0.15
        return self.theirs(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            visual_feats=batch["region_features"],
            visual_pos=batch["region_boxes"],
            visual_attention_mask=mask,
            labels=batch["labels"],
            obj_labels=objects,
            matched_label=batch["relationship_labels"],
        ).loss


class VisualBERTWorkload(Workload):
    """VisualBERT with its losses of words and of the relationship."""

    not_inputs = (*Workload.not_inputs, "region_labels", "predicted_regions")

    def __init__(self, options: argparse.Namespace):
        sizes: dict[str, Any] = {"num_hidden_layers": options.layers[0]}
        if options.quick:
            sizes |= {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100}
            sizes |= {"visual_embedding_dim": 16}
        torch.manual_seed(0)
        config = VisualBERTConfig(**sizes, attn_implementation="sdpa")
        theirs = transformers.VisualBertConfig(**{"visual_embedding_dim": 2048, **sizes})
        models = VisualBERTForPreTraining(config), transformers.VisualBertForPreTraining(theirs)
        # VisualBERT predicts nothing of regions: their classes are not read.
        super().__init__(options, *models, make_batches(options, config.vocab_size, config.visual_embedding_dim, 2))

    def their_loss(self, batch: Batch) -> torch.Tensor:
        regions = batch["region_attention_mask"]
        return self.theirs(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            visual_embeds=batch["region_features"],
            visual_attention_mask=regions,
            visual_token_type_ids=torch.zeros_like(regions),
            labels=torch.nn.functional.pad(batch["labels"], (0, regions.shape[1]), value=-100),
            sentence_image_labels=batch["relationship_labels"],
        ).loss


WORKLOADS: dict[str, Any] = {"lxmert": LXMERTWorkload, "visualbert": VisualBERTWorkload}
LAYERS = {"lxmert": [3, 2, 2], "visualbert": [4]}
# Name -> the ways whose seconds are divided.
RATIOS = {
    "speed of padded over transformers": ("transformers", "padded"),
    "speed of unpadded over transformers": ("transformers", "unpadded"),
    "speed of unpadded over padded": ("padded", "unpadded"),
    "time of supervised over unpadded": ("supervised", "unpadded"),
}


def make_workload(options: argparse.Namespace) -> Workload:
    """The models and batches of the options."""
    options.layers = options.layers or LAYERS[options.model]
    if len(options.layers) != len(LAYERS[options.model]):
        raise ValueError(f"--layers {options.layers}: give {len(LAYERS[options.model])} for {options.model}")
    return WORKLOADS[options.model](options)


def _work(options: argparse.Namespace) -> str:
    workload = make_workload(options)
    measured: dict[str, Any] = {"loss difference": workload.difference()}
    for way in WAYS:
        workload.epoch(way, steps=1)
    times = take_turns({way: partial(workload.epoch, way) for way in WAYS}, options.rounds, options.device)
    measured |= {name: quotients(times[slow], times[fast]) for name, (slow, fast) in RATIOS.items()}
    return printed(measured, options.json, _lines)


def _lines(measured: dict[str, Any]) -> Iterator[str]:
    yield f"largest relative difference of a loss between the ways: {measured['loss difference']:.1e}"
    yield from (f"{name}: {spread(measured[name])}" for name in RATIOS)


def build_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    parser = benchmark_parser("beside_transformers", __doc__, rounds=3, device=True)
    parser.add_argument("model", choices=list(WORKLOADS))
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="examples per batch (default: 16)")
    parser.add_argument("--examples", type=int, default=64, metavar="N", help="examples per round (default: 64)")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="LXMERT: text, region, cross (3 2 2); 4")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns its exit status."""
    return run(build_parser(), _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
