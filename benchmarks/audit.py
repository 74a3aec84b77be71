# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time and peak memory of the audit, compared to a simple implementation with eager maps of all layers.

A step audits both directions of a batch of captions with 32 words, 4 phrases and the given number of regions, with
VL-BERT (12 layers of 12 heads, base width). The output also contains the number of answers and the attention by which
the two implementations differ.

Each round runs both in turn; times are CPU seconds of the process. Memory is the peak above weights and inputs, each
in a separate process, after one caption, so memory that libraries allocate once is not counted.

examples:
  python -m benchmarks.audit
  python -m benchmarks.audit --quick
"""

import argparse
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import BertTokenizer

from benchmarks.measuring import Workload, benchmark_parser, compare, report, run_apart
from grounded_attention.commands.command_line import run
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.items import (
    DEFAULT_WORD,
    HeadBatch,
    RegionInputs,
    Rules,
    ground,
    region_items,
    text_items,
)
from grounded_attention.heads.measure import Tally, item_sums, pool
from grounded_attention.heads.reading import Batch, Observer, Queries, get_observer
from grounded_attention.modeling import VLBertConfig, VLBertModel
from grounded_attention.processing import VLBertProcessor
from grounded_attention.processing.phrase import Phrase
from grounded_attention.supervision import from_attention_maps
from grounded_attention.supervision.row_states import AttentionPair

WAYS = ("audit", "plain")
WORDS, PHRASES, FEATURES = 32, 4, 2048
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(95))]


class PlainObserver(Observer):
    """Reads the queried rows from full maps of all layers of an eager VL-BERT."""

    def __init__(self, model: Any):
        self.model, self.heads = model, model.config.num_attention_heads
        self.layers = tuple(str(layer) for layer in range(model.config.num_hidden_layers))

    @torch.no_grad()
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        maps = self.model(**batch, output_attentions=True).attentions
        text = batch["input_ids"].shape[1]
        starts = {"text_to_region": (0, text), "region_to_text": (text, 0)}
        pairs: dict[str, AttentionPair] = {}
        for name, pair in queries.items():
            rows, columns = (
                torch.where(index < 0, index, index + start) for index, start in zip(pair, starts[name], strict=True)
            )
            read = [from_attention_maps(layer, rows, columns) for layer in maps]
            pairs[name] = torch.stack([alpha for alpha, _ in read]), torch.stack([share for _, share in read])
        return pairs


class Audit(Workload):
    """A model, a batch and its queries; a step runs them and returns the counts."""

    def __init__(self, way: str, regions: int, options: argparse.Namespace):
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"hidden_size": 48, "intermediate_size": 192, "num_hidden_layers": 2}
        config = VLBertConfig(
            **(sizes if options.quick else {}),
            vocab_size=len(VOCABULARY),
            max_position_embeddings=128,
            # With the default of 0, a new model does not distinguish regions, and all heads give equal results.
            visual_scale_text_init=0.5,
            visual_scale_region_init=0.5,
            initializer_range=0.3 if options.quick else 0.05,
        )
        model = VLBertModel._from_config(config, attn_implementation="eager" if way == "plain" else "sdpa").eval()
        self.observer = PlainObserver(model) if way == "plain" else get_observer(model)
        self.examples = _examples(options.batch, regions)
        batch = _process(model, self.examples, regions)
        grounded = ground(batch, self.examples)
        self.items = {
            "text_to_region": text_items(grounded, batch, DEFAULT_WORD),
            "region_to_text": region_items(grounded, batch),
        }
        self.batch = batch.inputs
        self.queries = {name: (items.rows, items.columns) for name, items in self.items.items()}

    def warm_up(self) -> None:
        """Runs the queries of the first caption only."""
        batch = {name: tensor[:1] for name, tensor in self.batch.items()}
        self.observer.observe(batch, {name: (rows[:1], columns[:1]) for name, (rows, columns) in self.queries.items()})

    def step(self) -> dict[str, dict[str, list]]:
        pairs = self.observer.observe(self.batch, self.queries)
        images, numbers = [example.image_id for example in self.examples], range(len(self.examples))
        counted = {}
        for name, items in self.items.items():
            tally = Tally()
            tally.add(items, item_sums(pool(pairs[name], items), items), images, numbers)
            counts = tally.counts()["all"]
            counted[name] = {"correct": counts.correct.sum(0).tolist(), "share": counts.mean_share.tolist()}
        return counted


def _boxes(count: int, seed: int) -> np.ndarray:
    corners = np.random.default_rng(seed).uniform(0, 0.6, (count, 2))
    return np.concatenate([corners, corners + 0.2], axis=1).astype(np.float32)


def _examples(count: int, regions: int) -> list[AuditExample]:
    rng, examples = np.random.default_rng(0), []
    for image in range(count):
        words = rng.choice(VOCABULARY[5:], WORDS).tolist()
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])
        boxes, size = _boxes(regions, image), WORDS // PHRASES
        phrases = tuple(
            Phrase("", int(starts[n * size]), int(starts[n * size + 3]) - 1, boxes=boxes[n : n + 1])
            for n in range(PHRASES)
        )
        examples.append(AuditExample(str(image), " ".join(words), phrases))
    return examples


def _process(model: Any, examples: list[AuditExample], regions: int) -> HeadBatch:
    processor = VLBertProcessor(
        BertTokenizer(vocab={word: number for number, word in enumerate(VOCABULARY)}), max_regions=regions
    )
    features = np.random.default_rng(1).standard_normal((len(examples), regions, FEATURES)).astype(np.float32)
    records = {
        example.image_id: SimpleNamespace(boxes=_boxes(regions, image), features=features[image])
        for image, example in enumerate(examples)
    }
    return RegionInputs(model, processor, records, Rules()).make(examples)


def differences(regions: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """By how many right answers of heads and by how much attention at most the two ways differ."""
    return count_differences(*(Audit(way, regions, options).step() for way in WAYS))


def count_differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, list[float]]:
    """The same of what the steps of both returned."""
    pairs = [(one[name], other[name]) for name in one]
    answers = sum(int(np.abs(np.subtract(a["correct"], b["correct"])).sum()) for a, b in pairs)
    share = max(float(np.abs(np.subtract(a["share"], b["share"])).max()) for a, b in pairs)
    return {"answers apart": [answers], "share apart": [share]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("audit", __doc__, rounds=3)
    parser.add_argument("--regions", type=int, nargs="+", help="regions per image (100 300)")
    parser.add_argument("--batch", type=int, default=8, help="captions per step (8)")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    ratios = {}
    for regions in options.regions or ([20] if options.quick else [100, 300]):
        found = compare(Audit, WAYS, [("audit", "plain")], regions, options)
        ratios[f"{regions} regions"] = found | run_apart(differences, regions, options)
    return report(ratios, options.json, "memory, audit / plain <= 0.33, time, audit / plain <= 1, the same answers")


if __name__ == "__main__":
    sys.exit(main())
