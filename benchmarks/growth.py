# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How time and memory grow with the number of drawn rows: of `grounded_rows`, of its first row, and of `rank_heads`.

Rows have two phrases with a box each, and an image id of their own; all name one small picture. `grounded_rows` reads
them from JSON lines and from Parquet. `rank_heads` has a VL-BERT in small (2 layers of width 16, 2 heads) read texts
of four words with four regions; rows and regions are drawn when they are asked for, and read twice. Every size has a
process of its own, which has done the same with few rows: CPU seconds, and the peak above what the process has when it
begins, of 1 MiB or more. An exponent is the slope of a line through the logarithms of sizes and numbers: 1 is linear,
0 is constant.

examples:
  python -m benchmarks.growth
  python -m benchmarks.growth --rows 1000 10000 --ranked 500 5000
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.measuring import clock, peak_memory, run_apart
from grounded_attention import (
    VLBertConfig,
    VLBertForVGP,
    VLBertProcessor,
    grounded_examples,
    grounded_rows,
    rank_heads,
)
from grounded_attention.commands.command_line import make_parser, run
from grounded_attention.utils.named_types import Fields

ROWS = (1_000, 10_000, 100_000, 1_000_000)
RANKED = (1_000, 10_000, 100_000)
WORDS = ("the", "dog", "a", "ball")
TEXT = " ".join(WORDS)
SIDES = (640, 480)
FEATURES = 8
REGIONS = 4
PART = 10_000  # rows of a group of a Parquet file
FEW = 10
LEAST = 2**20  # bytes; less says little


@dataclass(frozen=True)
class DrawnRows:
    """Rows that are made when they are read, as `grounded_rows` takes them."""

    count: int
    picture: str

    def __iter__(self) -> Iterator[Fields]:
        for number in range(self.count):
            left = number % 300
            phrases = []
            for place, text in enumerate(("the dog", "a ball")):
                corner = [left, 100 * place]
                phrases.append({"text": text, "boxes": [[*corner, left + 300, 100 * place + 200]]})
            yield {"image": self.picture, "image_id": str(number), "text": TEXT, "phrases": phrases}


@dataclass(frozen=True)
class DrawnRegions:
    """The regions of one image."""

    boxes: np.ndarray
    features: np.ndarray


class DrawnTable(dict):
    """Image id -> four regions, drawn by the number of the image."""

    def __getitem__(self, image_id: str) -> DrawnRegions:
        rng = np.random.default_rng(int(image_id))
        corners = rng.uniform(0, 0.5, (REGIONS, 2))
        boxes = np.concatenate([corners, corners + 0.5], 1).astype(np.float32)
        return DrawnRegions(boxes, rng.standard_normal((REGIONS, FEATURES), dtype=np.float32))


def write_lines(rows: DrawnRows, folder: Path) -> str:
    """Writes rows as JSON lines; returns the file."""
    path = folder / f"{rows.count}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    return str(path)


def write_parquet(rows: DrawnRows, folder: Path) -> str:
    """Writes rows as Parquet, in groups; returns the file."""
    path = folder / f"{rows.count}.parquet"
    schema = pa.Table.from_pylist([*islice(rows, 1)]).schema
    read = iter(rows)
    with pq.ParquetWriter(path, schema) as writer:
        while part := [*islice(read, PART)]:
            writer.write_table(pa.Table.from_pylist(part, schema))
    return str(path)


SOURCES: dict[str, Callable[[DrawnRows, Path], str]] = {
    "JSON lines": write_lines,
    "Parquet": write_parquet,
}


def read_all(source: Any) -> int:
    """Reads all rows; returns their number of boxes."""
    rows = grounded_rows(source, boxes="xyxy pixels").decode(False)
    return sum(len(phrase["boxes"]) for row in rows for phrase in row["phrases"])


def read_first(source: Any) -> Any:
    """Reads the first row alone."""
    return next(iter(grounded_rows(source, boxes="xyxy pixels").decode(False)))


def rank(rows: DrawnRows) -> Any:
    """Chooses and reports heads of the small model on rows."""
    from transformers import BertTokenizer

    vocabulary = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(vocabulary)})
    processor = VLBertProcessor(tokenizer, region_feature_size=FEATURES)
    sizes: Fields = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = VLBertForVGP(VLBertConfig(**sizes, vocab_size=len(vocabulary), region_feature_size=FEATURES))
    read = grounded_rows(rows, boxes="xyxy pixels").decode(False)
    return rank_heads(model, processor, grounded_examples(read), {}, regions=DrawnTable(), count=1, words="last")


def measured(work: Callable[[Any], Any], few: Any, source: Any) -> tuple[float, float]:
    """CPU seconds and bytes of some work, in the process that calls it; what is made once is made with few rows."""
    work(few)
    begin = clock()
    memory = peak_memory(partial(work, source), times=1)
    return clock() - begin, max(memory, LEAST)


def exponent(sizes: Sequence[int], numbers: Sequence[float]) -> float:
    """The slope of a line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(numbers), 1)[0])


def measure(options: argparse.Namespace) -> dict[str, dict[int, tuple[float, float]]]:
    """What is measured -> number of rows -> CPU seconds and bytes."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder, "picture.png")
        Image.new("RGB", SIDES).save(picture)
        for name, write in SOURCES.items():
            few = write(DrawnRows(FEW, str(picture)), Path(folder))
            for count in options.rows:
                source = write(DrawnRows(count, str(picture)), Path(folder))
                for work, title in ((read_all, "all rows"), (read_first, "first row")):
                    found.setdefault(f"{name}, {title}", {})[count] = run_apart(measured, work, few, source)
                Path(source).unlink()
        for count in options.ranked:
            ranked = found.setdefault("rank_heads", {})
            ranked[count] = run_apart(measured, rank, *(DrawnRows(each, str(picture)) for each in (FEW, count)))
    return found


def table(found: Mapping[str, Mapping[int, tuple[float, float]]]) -> str:
    """A line for each size, and one with the exponents."""
    lines = []
    for name, by_size in found.items():
        sizes = list(by_size)
        seconds = [each[0] for each in by_size.values()]
        memory = [each[1] for each in by_size.values()]
        for size, second, size_of in zip(sizes, seconds, memory, strict=True):
            lines.append(f"{name:<24}{size:>10,} rows {second:>9.3f} s {size_of / 2**20:>8.1f} MiB")
        if len(sizes) > 1:
            slopes = f"time {exponent(sizes, seconds):.2f}, memory {exponent(sizes, memory):.2f}"
            lines.append(f"{name:<24}exponents: {slopes}")
    return "\n".join(lines)


def _work(options: argparse.Namespace) -> str:
    found = measure(options)
    return json.dumps(found) if options.json else table(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.growth", __doc__)
    for name, sizes in (("--rows", ROWS), ("--ranked", RANKED)):
        parser.add_argument(name, type=int, nargs="*", default=sizes, metavar="N", help="numbers of rows: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    return run(parser, _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
