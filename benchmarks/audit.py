# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time and peak memory of the audit, compared to a simple implementation with eager maps of all layers.

The output contains ratios only, because seconds depend on the machine. A step audits both directions of a batch of
captions with 32 words, 4 phrases and the given number of regions, with VL-BERT (12 layers of 12 heads, base width).
The output also contains the number of answers and the attention by which the two implementations differ.

Times are medians over rounds; each round runs both implementations in turn. On a CPU they are CPU seconds of the
process. Memory is the peak above weights and inputs, each implementation in a separate process, after one caption, so
memory that libraries allocate once is not counted.

examples:
  python -m benchmarks.audit
  python -m benchmarks.audit --quick
  python -m benchmarks.audit --device cuda --batch 32
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import BertTokenizer

from benchmarks.measuring import benchmark_parser, peak_memory, printed, quotients, run_apart, take_turns
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


class Workload:
    """A model, a batch and its queries; `step()` runs them and returns the counts."""

    def __init__(self, way: str, regions: int, options: argparse.Namespace):
        torch.manual_seed(0)
        width = 48 if options.quick else 768
        config = VLBertConfig(
            hidden_size=width,
            visual_size=width,
            num_hidden_layers=2 if options.quick else 12,
            num_attention_heads=12,
            intermediate_size=4 * width,
            vocab_size=len(VOCABULARY),
            max_position_embeddings=128,
            # With the default of 0, a new model does not distinguish regions, and all heads give equal results.
            visual_scale_text_init=0.5,
            visual_scale_region_init=0.5,
            initializer_range=0.3 if options.quick else 0.05,
        )
        model = VLBertModel._from_config(config, attn_implementation="eager" if way == "plain" else "sdpa")
        model = model.to(options.device).eval()
        self.observer = PlainObserver(model) if way == "plain" else get_observer(model)
        self.examples = _examples(options.batch, regions)
        batch = _process(model, self.examples, regions)
        grounded = ground(batch, self.examples)
        self.items = {
            "text_to_region": text_items(grounded, batch, DEFAULT_WORD),
            "region_to_text": region_items(grounded, batch),
        }
        self.batch = {name: tensor.to(options.device) for name, tensor in batch.inputs.items()}
        self.queries = {
            name: (items.rows.to(options.device), items.columns.to(options.device))
            for name, items in self.items.items()
        }

    def observe_one(self) -> None:
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


def measure_times(regions: int, options: argparse.Namespace) -> dict[str, Any]:
    """Returns way -> seconds of each round, and the differences between both."""
    workloads = {way: Workload(way, regions, options) for way in WAYS}
    counted = {way: workload.step() for way, workload in workloads.items()}
    times = take_turns({way: each.step for way, each in workloads.items()}, options.rounds, options.device)
    return {**times, **_differences(counted["audit"], counted["plain"])}


def _differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    pairs = [(one[name], other[name]) for name in one]
    answers = sum(int(np.abs(np.subtract(a["correct"], b["correct"])).sum()) for a, b in pairs)
    share = max(float(np.abs(np.subtract(a["share"], b["share"])).max()) for a, b in pairs)
    return {"answers": answers, "share": share}


def measure_memory(way: str, regions: int, options: argparse.Namespace) -> float:
    """The peak memory of two steps in bytes, without the model, the batch and libraries."""
    workload = Workload(way, regions, options)
    workload.observe_one()
    return peak_memory(workload.step, options.device)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("audit", __doc__, rounds=3, device=True)
    parser.add_argument("--regions", type=int, nargs="+", help="regions per image (100 300)")
    parser.add_argument("--batch", type=int, default=8, help="captions per step (8)")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    by_regions = {}
    for regions in options.regions or ([20] if options.quick else [100, 300]):
        memory = {way: run_apart(measure_memory, way, regions, options) for way in WAYS}
        measured = run_apart(measure_times, regions, options)
        by_regions[regions] = {
            "memory plain/audit": memory["plain"] / memory["audit"],
            "time audit/plain": statistics.median(quotients(measured["audit"], measured["plain"])),
            "answers apart": measured["answers"],
            "share apart": measured["share"],
        }
    return printed(by_regions, options.json, _lines)


def _lines(by_regions: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    yield f"{'regions':>7}{'memory plain/audit':>20}{'time audit/plain':>18}{'answers apart':>15}{'share apart':>13}"
    for regions, (memory, time, answers, share) in ((each, row.values()) for each, row in by_regions.items()):
        yield f"{regions:>7}{memory:>20.2f}{time:>18.2f}{answers:>15}{share:>13.1e}"
    yield "aims: memory plain/audit >= 3, time audit/plain <= 1, the same answers"


if __name__ == "__main__":
    sys.exit(main())
