# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a region table of millions of images costs: it is compared with one of 10,000 images in the same run.

Both tables are written by `RegionTableWriter` with few and narrow regions, so that millions of rows fit on a disk. Each
measurement runs in its own process, on the two tables in turns: the time to open the table and its private memory, the
check that every caption has regions, and rows per second in order, at random, and joined with shuffled captions.
Memory is the private memory of the process (RssAnon), above that of the imports; mapped files are listed apart, since
the system can drop them at any time. Time is CPU time of the process. The files are in the page cache and are
deleted at the end. It needs Linux.

examples:
  python -m benchmarks.region_scale --images 100000
  python -m benchmarks.region_scale --images 3318333
"""

import argparse
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import make_parser, run

import numpy as np
from tqdm.auto import tqdm

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.files import INDEX
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter

SMALL = 10_000  # images of the table to compare with
REGIONS, FEATURE_SIZE = 2, 8
ROW_BYTES = 1_100  # of a row with its entry in the index and its caption; more than they take
BATCH = 64
CAPTIONS = "captions.arrow"
MEGABYTE = 1 << 20


def image_id(number: int) -> str:
    """Returns the id of an image; the numbers of an id look random, as those of real images do."""
    return f"{number * 2654435761 % (1 << 32):010d}"  # an odd factor: no id occurs twice


def write_table(folder: Path, images: int) -> None:
    """Writes a table of random regions."""
    random = np.random.default_rng(0)
    features = random.random((997, REGIONS, FEATURE_SIZE), dtype=np.float32)  # drawn once: writing is what takes time
    boxes = np.tile(np.array([0.1, 0.2, 0.7, 0.9], dtype=np.float32), (REGIONS, 1))
    with RegionTableWriter(folder, {"source": "random numbers"}) as writer:
        for number in tqdm(range(images), desc=f"table of {images:,} images", unit="row", leave=False):
            writer.write(Regions(image_id(number), 640, 480, boxes, features[number % 997]))


def write_captions(path: Path, images: int) -> None:
    """Writes one caption for each image, as `datasets` stores rows."""
    import pyarrow as pa

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
    return int(lines["RssAnon"].split()[0]) / 1024, int(lines["RssFile"].split()[0]) / 1024


def seconds(work: Callable[[], Any]) -> float:
    """Returns the CPU seconds of a function."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def read_rows(table: Any, ids: Sequence[str]) -> None:
    """Reads rows; the sums touch every page."""
    for each in ids:
        regions = table[each]
        regions.boxes.sum()
        regions.features.sum(dtype=np.float32)


def read_captions(captions: Any, table: Any, count: int) -> None:
    """Reads captions in batches, and the regions of their images."""
    for batch in captions.select(range(count)).iter(batch_size=BATCH):
        read_rows(table, batch["image_id"])


def measure(folder: str, reads: int) -> dict[str, float]:
    """Measures a table in this process; see the docstring of the file."""
    import datasets

    from grounded_attention.training.loop.data import check_regions

    before, held = memory(), {}
    begin = time.process_time()
    held["table"] = table = RegionTable.open(folder)
    found = {"open, seconds": time.process_time() - begin, "memory after open, MiB": memory()[0] - before[0]}
    found["index, bytes per row"] = (Path(folder) / INDEX).stat().st_size / len(table)
    numbers = np.random.default_rng(1).permutation(len(table))
    order = [int(numbers[place % len(table)]) for place in range(reads)]
    start = time.process_time()
    at_random = [image_id(number) for number in order]
    in_order = [image_id(place % len(table)) for place in range(reads)]
    del start, numbers, order
    found["in order, rows per second"] = reads / seconds(lambda: read_rows(table, in_order))
    found["at random, rows per second"] = reads / seconds(lambda: read_rows(table, at_random))
    del in_order, at_random
    private, mapped = memory()
    found["memory after reading, MiB"] = private - before[0]
    found["mapped after reading, MiB"] = mapped - before[1]
    captions = datasets.Dataset.from_file(str(Path(folder) / CAPTIONS))
    found["check of captions, seconds"] = seconds(lambda: check_regions([captions], table))
    shuffled: list[Any] = []
    found["shuffling captions, seconds"] = seconds(lambda: shuffled.append(captions.shuffle(seed=0, keep_in_memory=True)))
    count = min(reads, len(captions))
    found["captions joined, rows per second"] = count / seconds(lambda: read_captions(shuffled[0], table, count))
    return found
