# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time to write the rows of the builders: many rows at a time, against `datasets`' own writer, row by row.

Both write the same rows to Arrow files in a temporary folder. Their contents must be equal. Rounds alternate; the
ratio is that of CPU seconds, ours over the other's: median and range.

examples:
  OMP_NUM_THREADS=1 python -m benchmarks.row_tables
  OMP_NUM_THREADS=1 python -m benchmarks.row_tables --images 50 --rounds 15
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import make_parser, run

import datasets
import numpy as np

from grounded_attention.commands.number_options import count
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


def measure(name: str, scenes: Path, cache: Path) -> tuple[float, float]:
    """Returns the CPU seconds of the builder, and of `datasets`' writer, for the same rows.

    Raises:
        ValueError: The rows differ.
    """
    options = {"regions": str(scenes / "regions")} if name == "vgp" else {}
    ours = BUILDERS[name](data_dir=str(scenes), cache_dir=str(cache / "ours"), **options)
    other = RowByRow(ours, cache_dir=str(cache / "other"))
    seconds, found = [], []
    for builder in (ours, other):
        begin = time.process_time()
        builder.download_and_prepare()
        seconds.append(time.process_time() - begin)
        found.append(builder.as_dataset())
    for split, rows in found[0].items():
        if not rows.data.equals(found[1][split].data):
            raise ValueError(f"{name}: the rows of {split} differ")
    return seconds[0], seconds[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.row_tables", __doc__)
    parser.add_argument("--images", type=count, default=200, metavar="N", help="scenes to draw (default: 200)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="rounds (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the ratios of every round as JSON instead")
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
            rounds = [measure(name, place / "scenes", place / f"{name}-{number}") for number in range(options.rounds)]
            ratios[name] = [ours / other for ours, other in rounds]
    return json.dumps(ratios) if options.json else "\n".join(map(_line, ratios, ratios.values()))


def _line(name: str, ratios: Sequence[float]) -> str:
    return f"{name:<20} {np.median(ratios):.2f} of row by row ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    sys.exit(main())
