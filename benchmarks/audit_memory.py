# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What grows with the images of an audit: memory of the process itself, and files that are mapped into memory.

A tiny untrained model is audited on the captions of more and more scenes, in this process. After each audit the two
kinds of resident memory are read from /proc/self/status (Linux): `RssAnon`, which the process has allocated, and
pages of files, `RssFile` and `RssShmem` (files of a file system in memory). The system takes pages of files on a disk
back when it needs them.

examples:
  OMP_NUM_THREADS=1 python -m benchmarks.audit_memory
  OMP_NUM_THREADS=1 python -m benchmarks.audit_memory --images 600 --json
"""

import argparse
import contextlib
import gc
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grounded_attention.commands.command_line import make_parser, run

from grounded_attention.commands.number_options import count

from .growth import build_rows, draw_scenes, load_audit

STEPS = 4  # audits, each of twice the images of the one before
LEAST = 2**STEPS * 2  # training images


def resident() -> tuple[float, float]:
    """Returns the allocated memory of this process, and its mapped files, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return int(sizes["RssAnon"]) / 1024, (int(sizes["RssFile"]) + int(sizes["RssShmem"])) / 1024


def measure(folder: Path, images: int) -> list[tuple[int, float, float]]:
    """Returns for each audit its images and the two sizes after it, in MB."""
    from grounded_attention import audit
    from grounded_attention.heads.examples import entity_examples

    with contextlib.redirect_stdout(io.StringIO()):
        draw_scenes(folder, images)
        build_rows(folder, images)
    model, processor, rows, table = load_audit(folder)
    found = []
    for share in reversed(range(STEPS)):
        some = len(rows) // 2**share
        audit(model, processor, entity_examples(rows.select(range(some))), table, progress=False)
        gc.collect()
        found.append((some, *resident()))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.audit_memory", __doc__)
    parser.add_argument("--images", type=count, default=600, metavar="N", help="scenes to draw (default: 600)")
    parser.add_argument("--json", action="store_true", help="print the sizes as JSON instead")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    """The sizes after each audit, and the growth of the last one."""
    if options.images < LEAST:
        raise ValueError(f"--images {options.images}: give at least {LEAST}")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.images)
        bytes_of_rows = sum(file.stat().st_size for file in Path(folder, "scenes", "regions").iterdir())
    if options.json:
        return json.dumps(found)
    lines = [
        f"{images:>6} images: {own:>6.1f} MB allocated, {mapped:>6.1f} MB of files" for images, own, mapped in found
    ]
    (first, own, mapped), (last, own_after, mapped_after) = found[-2:]
    added, table = last - first, bytes_of_rows / options.images / 1024
    lines.append(f"an image more: {(own_after - own) / added * 1024:.0f} kB allocated, ")
    lines[-1] += f"{(mapped_after - mapped) / added * 1024:.0f} kB of files; its row in the table has {table:.0f} kB"
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
