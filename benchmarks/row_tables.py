# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time to write the rows of the builders: many rows at a time, against `datasets`' own writer, row by row.

Then the seconds and the megabytes to open 100,000 rows of a Parquet file with `grounded_rows` and to read the first,
in a process of its own, beyond those of its imports.

Both write the same rows to Arrow files in a temporary folder. Their contents must be equal. Rounds alternate; the
ratio is that of CPU seconds, ours over the other's: median and range.

examples:
  OMP_NUM_THREADS=1 python -m benchmarks.row_tables
  OMP_NUM_THREADS=1 python -m benchmarks.row_tables --images 50 --rounds 15
"""

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.measuring import benchmark_parser, printed, quotients, spread, take_turns
from grounded_attention.commands.command_line import run
from grounded_attention.commands.number_options import positive
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.builders.local_builder import LocalBuilder
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes

NAMES = ("vgp", "flickr30k_entities", "refcoco", "vqa_v2")


class RowByRow(datasets.GeneratorBasedBuilder):
    """Writes the rows of another builder as `datasets` does by default."""

    def __init__(self, builder: LocalBuilder, **kwargs: Any) -> None:
        self.builder = builder
        super().__init__(**kwargs)

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=self.builder.info.features)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return self.builder._split_generators(dl_manager)

    def _generate_examples(self, **kwargs: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from enumerate(self.builder._generate_rows(**kwargs))


def measure(name: str, scenes: Path, cache: Path) -> float:
    """Returns the CPU seconds of the builder over those of `datasets`' writer, for the same rows.

    Raises:
        ValueError: The rows differ.
    """
    options = {"regions": str(scenes / "regions")} if name == "vgp" else {}
    ours = BUILDERS[name](data_dir=str(scenes), cache_dir=str(cache / "ours"), **options)
    other = RowByRow(ours, cache_dir=str(cache / "other"))
    times = take_turns({"ours": ours.download_and_prepare, "other": other.download_and_prepare}, 1)
    rows_of, expected = ours.as_dataset(), other.as_dataset()
    for split, rows in rows_of.items():
        if not rows.data.equals(expected[split].data):
            raise ValueError(f"{name}: the rows of {split} differ")
    return quotients(times["ours"], times["other"])[0]


def open_lazily(path: str) -> tuple[float, float]:
    """Seconds and megabytes until the first of many rows is there."""
    import resource
    import time

    from grounded_attention.dataset_scripts.rows import grounded_rows

    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    next(iter(grounded_rows(path)))
    return time.perf_counter() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def write_many(path: Path, count: int) -> None:
    """Rows with a drawn picture each, a sentence and a box."""
    content = io.BytesIO()
    Image.new("RGB", (64, 48), (200, 100, 50)).save(content, "JPEG")
    picture = {"bytes": content.getvalue(), "path": None}
    columns = {
        "image": [picture] * 1000,
        "text": ["a red ball on the left"] * 1000,
        "bbox": [[30, 20, 60, 40]] * 1000,
    }
    table = pa.table(columns)
    with pq.ParquetWriter(path, table.schema, use_dictionary=False, compression="none") as writer:
        for _ in range(count // 1000):
            writer.write_table(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("row_tables", __doc__, rounds=5, quick=False)
    parser.add_argument("--images", type=positive, default=200, metavar="N", help="scenes to draw (default: 200)")
    parser.add_argument("--rows", type=positive, default=100_000, metavar="N", help="rows to open (default: 100000)")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    """The ratio of each builder."""
    datasets.disable_progress_bars()
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_scenes(place / "scenes", options.images, seed=0)
        for name in NAMES:
            measure(name, place / "scenes", place / f"{name}-first")  # imports modules
            turns = range(options.rounds)
            ratios[name] = [measure(name, place / "scenes", place / f"{name}-{number}") for number in turns]
    with tempfile.TemporaryDirectory() as folder:
        many = Path(folder, "rows.parquet")
        write_many(many, options.rows)
        with ProcessPoolExecutor(1, get_context("spawn")) as other:
            seconds, megabytes = other.submit(open_lazily, str(many)).result()
    if not options.json:
        print(f"{options.rows:,} rows of Parquet opened: {seconds:.2f} s, {megabytes:.0f} MB")
    return printed(
        ratios, options.json, lambda found: (f"{n:<20} {spread(r)} of row by row" for n, r in found.items())
    )


if __name__ == "__main__":
    sys.exit(main())
