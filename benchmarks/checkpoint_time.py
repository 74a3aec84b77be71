# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the guarantees of a checkpoint cost: its checksums, and the wait for the disk (fsync).

The output contains ratios only, because seconds depend on the machine. A checkpoint has the bytes of BERT-base three
times (weights and the two moments of AdamW). Each round writes it, writes and seals it (SHA-256 of each file) with
`fsync` replaced by nothing, and writes and seals it. Give the disk of your runs with --folder.

examples:
  python -m benchmarks.checkpoint_time
  python -m benchmarks.checkpoint_time --megabytes 100 --rounds 3 --folder runs
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from grounded_attention.commands.command_line import make_parser, run

from grounded_attention.training.loop.checkpoint import seal

FILES = 3
MEGABYTE = 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the ratios."""
    parser = make_parser("python -m benchmarks.checkpoint_time", __doc__)
    parser.add_argument("--megabytes", type=int, default=440, help="size of each of the three files")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements, of which the median counts")
    parser.add_argument("--folder", type=Path, help="where to write; default: the folder of temporary files")
    parser.add_argument("--json", action="store_true", help="print the ratios as JSON")
    return run(parser, _measure, arguments)


def _measure(options: argparse.Namespace) -> str:
    seconds: dict[str, list[float]] = {"write": [], "with checksums": [], "with fsync too": []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for _ in range(options.rounds):
            for kind, times in seconds.items():
                times.append(_timed(lambda kind=kind: _checkpoint(Path(folder), options.megabytes, kind)))
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    ratios = {kind: time / medians["write"] for kind, time in medians.items()}
    if options.json:
        return json.dumps(ratios)
    lines = [f"{kind:15} {ratio:.2f}" for kind, ratio in ratios.items()]
    return "\n".join(["time of a checkpoint, compared to writing its files", *lines])


def _checkpoint(folder: Path, megabytes: int, kind: str) -> None:
    os.sync()  # what an earlier round wrote is not counted
    block = os.urandom(MEGABYTE)
    for number in range(FILES):
        with open(folder / str(number), "wb") as file:
            for _ in range(megabytes):
                file.write(block)
    if kind == "with checksums":
        with mock.patch("os.fsync"):
            seal(folder)
    elif kind == "with fsync too":
        seal(folder)


def _timed(action: Callable[[], None]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
