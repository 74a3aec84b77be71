# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Speed of reading region features in random order: the region table compared to the LMDB that it replaces.

Both have the same data, 10 to 100 regions per image: a region table (float16), and an LMDB of pickles with base64 text
(float32), the format of vilbert_beta. They are read into padded float32 batches (images, most regions, 2048), as input
of a model. All data is in the page cache. A round reads the same images in the same random order from both in turn.
The results are ratios of CPU seconds.

examples:
  python -m benchmarks.region_table
  python -m benchmarks.region_table --images 500 --rounds 9
"""

import argparse
import base64
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.measuring import benchmark_parser, quotients, report, take_turns
from grounded_attention.commands.command_line import run
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.processing.number_arrays import copy_as_float32

REGIONS = (10, 100)
FEATURE_SIZE = 2048
BATCH = 16
# Image number -> boxes (n, 4) and features (n, D), views or new arrays.
Read = Callable[[int], tuple[np.ndarray, np.ndarray]]


def make_images(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields boxes (n, 4) and features (n, D) of random images, float32; features are exact in float16."""
    random = np.random.default_rng(0)
    for _ in range(count):
        regions = int(random.integers(REGIONS[0], REGIONS[1] + 1))
        corners = np.sort(random.random((regions, 2, 2), dtype=np.float32), axis=1).reshape(regions, 4)
        features = np.maximum(random.standard_normal((regions, FEATURE_SIZE), dtype=np.float32), 0)
        yield corners, features.astype(np.float16).astype(np.float32)


def region_table(folder: Path, images: int) -> Read:
    """Writes a region table of the images; returns its reader."""
    with RegionTableWriter(folder / "regions", {"source": "random numbers"}) as writer:
        for number, (boxes, features) in enumerate(make_images(images)):
            writer.write(Regions(str(number), 640, 480, boxes, features))
    table = RegionTable.open(folder / "regions")

    def read(number: int) -> tuple[np.ndarray, np.ndarray]:
        regions = table[str(number)]
        return regions.boxes, regions.features

    return read


def lmdb_of_base64(folder: Path, images: int) -> Read:
    """Writes an LMDB of the images; returns its reader."""
    import lmdb

    path = str(folder / "base64.lmdb")
    with lmdb.open(path, map_size=1 << 40) as environment, environment.begin(write=True) as transaction:
        for number, (boxes, features) in enumerate(make_images(images)):
            row = {"image_id": str(number), "image_w": 640, "image_h": 480, "num_boxes": len(boxes)}
            row |= {"boxes": base64.b64encode(boxes), "features": base64.b64encode(features)}
            transaction.put(str(number).encode(), pickle.dumps(row))
    opened = lmdb.open(path, readonly=True, lock=False, readahead=False)

    def decode(text: bytes, width: int) -> np.ndarray:
        return np.frombuffer(base64.b64decode(text), np.float32).reshape(-1, width)

    def read(number: int) -> tuple[np.ndarray, np.ndarray]:
        with opened.begin(buffers=True) as transaction:
            row = pickle.loads(transaction.get(str(number).encode()))  # safe, because it was written above
        return decode(row["boxes"], 4), decode(row["features"], FEATURE_SIZE)

    return read


def make_batch(read: Read, order: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Makes boxes (B, R, 4) and features (B, R, D) of images, float32, padded with zeros."""
    rows = [read(number) for number in order]
    most = max(len(boxes) for boxes, _ in rows)
    boxes = np.zeros((len(rows), most, 4), dtype=np.float32)
    features = np.zeros((len(rows), most, FEATURE_SIZE), dtype=np.float32)
    for place, (own_boxes, own_features) in enumerate(rows):
        copy_as_float32(boxes[place, : len(own_boxes)], own_boxes)
        copy_as_float32(features[place, : len(own_features)], own_features)
    return boxes, features


def make_batches(read: Read, order: Sequence[int]) -> None:
    """Makes batches of all images."""
    for start in range(0, len(order), BATCH):
        make_batch(read, order[start : start + BATCH])


FORMATS: dict[str, Callable[[Path, int], Read]] = {"table": region_table, "lmdb": lmdb_of_base64}


def _work(options: argparse.Namespace) -> str:
    order = np.random.default_rng(1).permutation(options.images).tolist()
    with tempfile.TemporaryDirectory() as folder:
        readers = {name: write(Path(folder), options.images) for name, write in FORMATS.items()}
        ways = {name: partial(make_batches, read, order) for name, read in readers.items()}
        take_turns(ways, 1)  # the warm-up
        times = take_turns(ways, options.rounds)
    speeds = {"speed, table / LMDB of base64": quotients(times["lmdb"], times["table"])}
    return report({"float32 batches": speeds}, options.json, ">= 1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("region_table", __doc__, rounds=9, quick=False)
    parser.add_argument("--images", type=int, default=192, help="images in the table: %(default)s")
    return run(parser, _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
