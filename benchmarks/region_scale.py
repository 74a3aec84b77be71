# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a region table of millions of images costs: it is compared with one of 10,000 images in the same run.

Both tables are written by `RegionTableWriter` with few and narrow regions, so that millions of rows fit on a
disk. Each measurement runs in its own process, on the two tables in turns: the time to open the table and its private
memory, the check that every caption has regions, and rows per second in order, at random, and with shuffled captions.
Memory is the private memory of the process (RssAnon), above that of the imports; mapped files are listed apart, since
the system can drop them at any time. Time is CPU time of the process. The files are in the page cache and are
deleted at the end. It needs Linux.

examples:
  python -m benchmarks.region_scale --images 100000
  python -m benchmarks.region_scale --images 3318333
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import make_parser, run

import numpy as np
import pyarrow as pa
from tqdm.auto import tqdm

from benchmarks.apart import run_apart
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.files import INDEX
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.utils.quiet import is_quiet

SMALL = 10_000  # images of the table to compare with
REGIONS, FEATURE_SIZE = 2, 8
ROW_BYTES = 1_100  # of a row with its entry in the index and its caption; more than they take
BATCH = 64
CAPTIONS = "captions.arrow"


def image_id(number: int) -> str:
    """Returns the id of an image; the numbers of an id look random, as those of real images do."""
    return f"{number * 2654435761 % (1 << 32):010d}"  # an odd factor: no id occurs twice


def write_table(folder: Path, images: int) -> None:
    """Writes a table of random regions."""
    random = np.random.default_rng(0)
    features = random.random((997, REGIONS, FEATURE_SIZE), dtype=np.float32)  # drawn once: writing is what takes time
    boxes = np.tile(np.array([0.1, 0.2, 0.7, 0.9], dtype=np.float32), (REGIONS, 1))
    with RegionTableWriter(folder, {"source": "random numbers"}) as writer:
        for number in tqdm(
            range(images), desc=f"table of {images:,} images", unit="row", leave=False, disable=is_quiet()
        ):
            writer.write(Regions(image_id(number), 640, 480, boxes, features[number % 997]))


def write_captions(path: Path, images: int) -> None:
    """Writes one caption for each image, as `datasets` stores rows."""
    schema = pa.schema({"caption_id": pa.string(), "image_id": pa.string(), "text": pa.string()})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for start in range(0, images, 1000):
            numbers = range(start, min(start + 1000, images))
            texts = [f"a thing of kind {number % 997} on a street in the rain" for number in numbers]
            columns = [list(map(str, numbers)), list(map(image_id, numbers)), texts]
            writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema=schema))


# What a process measures


def memory() -> tuple[float, float]:
    """Returns the memory of this process in MiB: private, and pages of mapped files."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    private, mapped = (int(lines[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
    return private, mapped


def seconds(work: Callable[[], Any]) -> float:
    """Returns the CPU seconds of a function."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def read_rows(table: RegionTable, ids: Sequence[str]) -> None:
    """Reads rows; the sums touch every page."""
    for each in ids:
        regions = table[each]
        regions.boxes.sum()
        regions.features.sum(dtype=np.float32)


def read_captions(captions: Any, table: RegionTable) -> None:
    """Reads captions in batches, and the regions of their images."""
    for batch in captions.iter(batch_size=BATCH):
        read_rows(table, batch["image_id"])


def measure(folder: str, reads: int) -> dict[str, float]:
    """Measures a table in this process: name -> figure.

    Args:
        folder (`str`): the folder of the table and its captions.
        reads (`int`): number of rows to read in each way; of a small table each row is read several times.
    """
    import datasets

    from grounded_attention.training.loop.data import check_regions

    private, mapped = memory()
    begin = time.process_time()
    table = RegionTable.open(folder)
    found = {"open, seconds": time.process_time() - begin, "private memory after open, MiB": memory()[0] - private}
    found["index, bytes per row"] = (Path(folder) / INDEX).stat().st_size / len(table)
    found["shards, bytes per row"] = sum(shard["bytes"] for shard in table.info["shards"]) / len(table)
    drawn = np.random.default_rng(1).integers(len(table), size=reads).tolist()
    for name, numbers in (("in order", range(reads)), ("at random", drawn)):
        ids = [image_id(number % len(table)) for number in numbers]
        found[f"{name}, rows per second"] = reads / seconds(lambda ids=ids: read_rows(table, ids))  # type: ignore[misc]
    found["private memory after reading, MiB"] = memory()[0] - private
    found["mapped pages after reading, MiB"] = memory()[1] - mapped
    captions = datasets.Dataset.from_file(str(Path(folder) / CAPTIONS))
    found["check that captions have regions, seconds"] = seconds(lambda: check_regions([captions], table))
    begin = time.process_time()
    shuffled = captions.shuffle(seed=0, keep_in_memory=True)
    found["shuffle of captions, seconds"] = time.process_time() - begin
    chosen = shuffled.select(range(min(reads, len(captions))))
    found["shuffled captions joined, rows per second"] = len(chosen) / seconds(lambda: read_captions(chosen, table))
    return found


# Comparison


def compare(folders: Sequence[Path], rounds: int, reads: int) -> list[list[dict[str, float]]]:
    """Measures tables in turns, each time in a new process: table -> round -> figures."""
    found: list[list[dict[str, float]]] = [[] for _ in folders]
    for _ in tqdm(range(rounds), desc="rounds", leave=False, disable=is_quiet()):
        for place, folder in enumerate(folders):
            found[place].append(run_apart(measure, str(folder), reads))
    return found


def report(small: Sequence[Mapping[str, float]], large: Sequence[Mapping[str, float]], images: int) -> list[str]:
    """Makes one line for each figure: medians of both tables, and the ratio of each round with its range."""
    lines = [f"{'':<43}{SMALL:>11,}{images:>12,}{'ratio':>9}"]
    for name in small[0]:
        own, other = [each[name] for each in small], [each[name] for each in large]
        ratios = [b / a for a, b in zip(own, other, strict=True) if a > 0]
        middle = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"
        lines.append(f"{name:<43}{_number(own):>11}{_number(other):>12}   {middle}")
    return lines


def _number(values: Sequence[float]) -> str:
    value = statistics.median(values)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def check_disk(folder: Path, images: int, limit: float) -> None:
    """Checks before writing that the tables fit.

    Raises:
        DataError: They need more than `limit` GB, or than is free.
    """
    needed = (images + SMALL) * ROW_BYTES / 1e9
    free = shutil.disk_usage(folder).free / 1e9
    if needed > min(limit, free):
        hint = "give fewer --images, or a larger --disk if the disk has room"
        expected = f"at most {limit:g} GB (--disk), and {free:.1f} GB are free"
        raise DataError("the tables may not fit", file=folder, found=f"{needed:.1f} GB", expected=expected, hint=hint)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.region_scale", __doc__)
    parser.add_argument("--images", type=int, default=100_000, help="images in the large table: %(default)s")
    parser.add_argument("--reads", type=int, default=100_000, help="rows to read in each way: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each table: %(default)s")
    parser.add_argument("--disk", type=float, default=8, metavar="GB", help="most disk to use: %(default)s GB")
    parser.add_argument("--folder", type=Path, help="where to make the temporary folder (default: the system's)")
    parser.add_argument("--json", action="store_true", help="print the figures of all rounds as JSON instead")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    """The figures of both tables and their ratios."""
    if min(options.images, options.reads, options.rounds) < 1:
        raise ValueError("--images, --reads and --rounds are 1 or more")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        check_disk(Path(folder), options.images, options.disk)
        places = [Path(folder, name) for name in ("small", "large")]
        for place, images in zip(places, (SMALL, options.images), strict=True):
            write_table(place, images)
            write_captions(place / CAPTIONS, images)
        small, large = compare(places, options.rounds, options.reads)
    if options.json:
        return json.dumps({"small": small, "large": large})
    return "\n".join(report(small, large, options.images))


if __name__ == "__main__":
    sys.exit(main())
