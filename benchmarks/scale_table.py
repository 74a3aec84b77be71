# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The tables of docs/scale.md: disk, memory and time for data sets of up to 12 million images.

Bytes follow from the format of the region table. Operations are counted and samples per second of a CPU core are
measured by `--measure` (a minute of one core), whose figures stand in this file. Hours on a GPU are no measurement:
they are operations divided by a share of the peak of the card's data sheet. Give the samples per second that
`make bench-gpu` prints as `--gpu-samples`, and the table of training has measured hours instead.

examples:
  python -m benchmarks.scale_table
  python -m benchmarks.scale_table --gpu-samples 5000
  OMP_NUM_THREADS=1 python -m benchmarks.scale_table --measure
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from grounded_attention.commands.command_line import make_parser, run

from benchmarks.device import data_sheet_peak


class DataSet(NamedTuple):
    """Numbers of images and of published captions."""

    name: str
    images: int
    captions: int


DATA_SETS = (
    DataSet("Flickr30K", 31_783, 158_915),
    DataSet("COCO, train and validation", 123_287, 616_767),
    DataSet("COCO, test2015", 81_434, 0),
    DataSet("CC3M", 3_318_333, 3_318_333),
    DataSet("CC12M", 12_423_374, 12_423_374),
)
REGIONS, TOKENS = 36, 15  # regions of an image, tokens of a caption
WIDTH, CLASSES, BOX, HALF = 2048, 1601, 4, 2  # values of a region; bytes of a float16
# Bytes of a row besides its arrays, and of its entry in the index, as `benchmarks.region_scale` measures them.
ROW, INDEX, KEPT = 690, 38, 8
EPOCHS = 10  # of pre-training, as in recipes/vl_bert/pretrain_base.yaml
GPU, SHARES = "H100", (0.2, 0.4)  # shares of the data sheet's peak in bfloat16
GPUS, SCALING = 8, (0.8, 1.0)  # speed of several GPUs over so many times that of one
BATCH, ROUNDS = 8, 3  # of `--measure`


class Work(NamedTuple):
    """What a sample takes: operations of its matrix products, and samples per second of a core, from the slowest."""

    operations: float
    per_second: tuple[float, float]


# Printed by `--measure` on one thread of a busy Intel Xeon (AVX-512), float32, PyTorch 2.13.0.
STEP = Work(30.03e9, (3.25, 3.29))
FEATURES = Work(380.3e9, (0.290, 0.317))


def row_bytes(class_probabilities: bool = False) -> int:
    """Returns the bytes of an image's row."""
    values = WIDTH + (CLASSES if class_probabilities else 0)
    return REGIONS * (values * HALF + 4 * BOX) + ROW


def gpu_rates(work: Work, measured: float | None = None) -> tuple[float, float]:
    """Returns the samples per second of a GPU: estimated, slowest and fastest; or twice what was measured."""
    peak = data_sheet_peak(GPU)
    if measured is not None or peak is None:
        return (measured or 0, measured or 0)
    return (SHARES[0] * peak / work.operations, SHARES[1] * peak / work.operations)


def duration(samples: float, rates: tuple[float, float]) -> str:
    """Formats the time of so many samples, at the fastest and at the slowest rate; the unit is that of the slowest."""
    slow, fast = (samples / rate / 3600 for rate in rates)
    unit, name = (1 / 60, "min") if slow < 1 else (24.0, "days") if slow > 72 else (1.0, "h")
    shown = dict.fromkeys(_round(value / unit, 2) for value in (fast, slow))
    return f"{' to '.join(shown)} {name}"


def _round(value: float, digits: int) -> str:
    """A number with so many significant digits, and separators."""
    places = digits - 1 - math.floor(math.log10(value))
    return f"{round(value, places):,.{max(places, 0)}f}"


def _bytes(count: float) -> str:
    return f"{_round(count / 1e9, 3)} GB" if count >= 1e9 else f"{_round(count / 1e6, 2)} MB"


def size_rows() -> Iterator[list[str]]:
    """Yields what the region table of each data set takes, after the names of the columns."""
    yield ["data set", "images", "features", "table", "with class probabilities", "index", "kept in memory"]
    for name, images, _ in DATA_SETS:
        sizes = (REGIONS * WIDTH * HALF, row_bytes(), row_bytes(class_probabilities=True), INDEX, KEPT)
        yield [name, f"{images:,}", *(_bytes(images * size) for size in sizes)]


def training_rows(measured: float | None) -> Iterator[list[str]]:
    """Yields the time of pre-training on each data set, after the names of the columns."""
    one = gpu_rates(STEP, measured)
    yield [
        "data set",
        f"pairs in {EPOCHS} epochs",
        "one core, at the measured rate",
        *_cards(measured),
        "features read by one GPU",
    ]
    read = " to ".join(_round(rate * REGIONS * WIDTH * HALF / 1e9, 2) for rate in dict.fromkeys(one)) + " GB/s"
    for name, _, captions in DATA_SETS:
        if not captions:
            continue
        pairs = EPOCHS * captions
        yield [name, f"{pairs:,}", duration(pairs, STEP.per_second), *_hours_of_cards(pairs, one), read]


def extraction_rows() -> Iterator[list[str]]:
    """Yields the time of the features of each data set's images, after the names of the columns."""
    yield ["data set", "images", "one core, at the measured rate", *_cards(None)]
    for name, images, _ in DATA_SETS:
        times = _hours_of_cards(images, gpu_rates(FEATURES))
        yield [name, f"{images:,}", duration(images, FEATURES.per_second), *times]


def _cards(measured: float | None) -> list[str]:
    if measured is None:
        return [f"1 {GPU}, *estimated*", f"{GPUS} {GPU}, *estimated*"]
    return ["1 GPU, measured", f"{GPUS} GPUs, *estimated*"]


def _hours_of_cards(samples: float, one: tuple[float, float]) -> list[str]:
    several = (GPUS * SCALING[0] * one[0], GPUS * SCALING[1] * one[1])
    return [duration(samples, one), duration(samples, several)]


def markdown(rows: Iterator[list[str]]) -> str:
    """Returns a Markdown table; all columns but the first are aligned to the right."""
    head, *lines = rows
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---", *["--:"] * (len(head) - 1)], *lines))


def tables(measured: float | None = None) -> dict[str, str]:
    """Returns name -> table.

    Args:
        measured (`float`, *optional*): training samples per second of one GPU.
    """
    made = {"sizes": size_rows(), "training": training_rows(measured), "extraction": extraction_rows()}
    return {name: markdown(rows) for name, rows in made.items()}


# Measured


def training_step() -> Callable[[], Any]:
    """Returns a step of pre-training of VL-BERT base: forward, backward and AdamW on `BATCH` pairs of one length."""
    import torch

    from benchmarks import pretraining_step
    from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining

    torch.manual_seed(0)
    config = VLBertConfig(attn_implementation="sdpa")
    model = VLBertForPreTraining(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    examples = pretraining_step.make_examples(BATCH, config, (TOKENS, TOKENS), (REGIONS, REGIONS))
    [batch] = pretraining_step.make_batches(examples, BATCH, False, "cpu")

    def step() -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def image_features() -> Callable[[], Any]:
    """Returns a function that computes the features of one image's boxes with the ResNet-101 of `FastRCNNFeatures`."""
    import torch

    from grounded_attention import FastRCNNConfig, FastRCNNFeatures

    model = FastRCNNFeatures(FastRCNNConfig()).eval()
    pixels = torch.randn(1, 3, 600, 1000, generator=torch.Generator().manual_seed(0)) * 50
    boxes = torch.tensor([[[10.0 * n, 5.0 * n, 10.0 * n + 200, 5.0 * n + 200] for n in range(REGIONS)]])
    return torch.no_grad()(lambda: model(pixels, boxes))


def measure(work: Callable[[], Any], samples: int) -> Work:
    """Counts the operations of a function in its first call and times the others in CPU seconds."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    rates = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        rates.append(samples / (time.process_time() - begin))
    return Work(counter.get_total_flops() / samples, (min(rates), max(rates)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.scale_table", __doc__)
    parser.add_argument("--gpu-samples", type=float, metavar="N", help="training samples per second of one GPU")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--measure", action="store_true", help="count and measure again on this CPU, no tables")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    """The tables, or what was measured."""
    if options.gpu_samples is not None and not options.gpu_samples > 0:
        raise ValueError(f"--gpu-samples {options.gpu_samples}: expected samples per second, above 0")
    if not options.measure:
        made = tables(options.gpu_samples)
        return json.dumps(made) if options.json else "\n\n".join(f"{name}\n\n{made[name]}" for name in made)
    found = {"STEP": measure(training_step(), BATCH), "FEATURES": measure(image_features(), 1)}
    if options.json:
        return json.dumps({name: work._asdict() for name, work in found.items()})
    return "\n".join(f"{name} = {work}" for name, work in found.items())


if __name__ == "__main__":
    sys.exit(main())
