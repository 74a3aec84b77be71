# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time to write the rows of the builders: many rows at a time, against `datasets`' own writer, row by row.

Both write the same rows to Arrow files in a temporary folder. Their contents must be equal. Rounds alternate; the
ratio is that of CPU seconds, ours over the other's: median and range.

examples:
  OMP_NUM_THREADS=1 python -m benchmarks.row_tables
  OMP_NUM_THREADS=1 python -m benchmarks.row_tables --images 50 --rounds 15
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets

from benchmarks.measuring import benchmark_parser, quotients, report, take_turns
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("row_tables", __doc__, rounds=5, quick=False)
    parser.add_argument("--images", type=positive, default=200, metavar="N", help="scenes to draw (default: 200)")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    """The ratio of each builder."""
    datasets.disable_progress_bars()
    ratios: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_scenes(place / "scenes", options.images, seed=0)
        for name in NAMES:
            measure(name, place / "scenes", place / f"{name}-first")  # imports modules
            turns = range(options.rounds)
            ours = [measure(name, place / "scenes", place / f"{name}-{number}") for number in turns]
            ratios[name] = {"time, ours / row by row": ours}
    return report(ratios, options.json)


if __name__ == "__main__":
    sys.exit(main())
