# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Speed of reading region features in random order: the region table compared to the formats that it replaces.

All formats contain the same data, 10 to 100 regions per image: a region table (float16); LMDB of pickles with base64
text and with arrays (float32); and a float16 NumPy memory map with known positions, a plain copy, which is the bound.
There are two measurements:

  as stored         the arrays of an image, copied to memory in the stored type
  float32 batches   a padded float32 batch (images, most regions, 2048), as input of a model

All data is in the page cache. A round reads the same images in the same random order from all formats in turn, so
other load on the machine affects all formats. The results are ratios of CPU seconds.

examples:
  python -m benchmarks.region_table
  python -m benchmarks.region_table --images 500 --rounds 9
"""

import argparse
import base64
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import benchmark_parser, printed, quotients, spread, take_turns
from grounded_attention.commands.command_line import run
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.processing.number_arrays import copy_as_float32

REGIONS = (10, 100)
FEATURE_SIZE = 2048
BATCH = 16
AIMS = {
    "as stored": {"lmdb, base64 pickles": 20.0, "lmdb, array pickles": 1.5, "memory map": 0.75},
    "float32 batches": {"lmdb, base64 pickles": 1.0, "lmdb, array pickles": 1.0, "memory map": 0.75},
}
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


# One function per format: it writes the images and returns a function that reads one image.


def region_table(folder: Path, images: int) -> Read:
    """The region table of this project."""
    with RegionTableWriter(folder / "regions", {"source": "random numbers"}) as writer:
        for number, (boxes, features) in enumerate(make_images(images)):
            writer.write(Regions(str(number), 640, 480, boxes, features))
    table = RegionTable.open(folder / "regions")

    def read(number: int) -> tuple[np.ndarray, np.ndarray]:
        regions = table[str(number)]
        return regions.boxes, regions.features

    return read


def memory_map(folder: Path, images: int) -> Read:
    """Features of all images in one float16 array; the start of each image is known."""
    boxes, counts = [], []
    with open(folder / "features.bin", "wb") as file:
        for corners, features in make_images(images):
            file.write(features.astype(np.float16).tobytes())
            boxes.append(corners)
            counts.append(len(corners))
    mapped = np.memmap(folder / "features.bin", np.float16, "r", shape=(sum(counts), FEATURE_SIZE))
    starts = [0, *np.cumsum(counts).tolist()]
    return lambda number: (boxes[number], mapped[starts[number] : starts[number + 1]])


def lmdb_of_base64(folder: Path, images: int) -> Read:
    """Pickled rows of a tsv file, the format of vilbert_beta."""

    def encode(boxes: np.ndarray, features: np.ndarray) -> dict[str, Any]:
        return {"boxes": base64.b64encode(boxes), "features": base64.b64encode(features)}

    def decode(row: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        return _from_base64(row["boxes"], 4), _from_base64(row["features"], FEATURE_SIZE)

    return _lmdb(folder / "base64.lmdb", images, encode, decode)


def lmdb_of_arrays(folder: Path, images: int) -> Read:
    """Pickled arrays, the format of the multi-task ViLBERT."""

    def encode(boxes: np.ndarray, features: np.ndarray) -> dict[str, Any]:
        return {"boxes": boxes, "features": features}

    return _lmdb(folder / "arrays.lmdb", images, encode, lambda row: (row["boxes"], row["features"]))


def _lmdb(path: Path, images: int, encode: Callable, decode: Callable) -> Read:
    import lmdb

    with lmdb.open(str(path), map_size=1 << 40) as environment, environment.begin(write=True) as transaction:
        for number, arrays in enumerate(make_images(images)):
            row = {"image_id": str(number), "image_w": 640, "image_h": 480, "num_boxes": len(arrays[0])}
            transaction.put(str(number).encode(), pickle.dumps({**row, **encode(*arrays)}))
    opened = lmdb.open(str(path), readonly=True, lock=False, readahead=False)

    def read(number: int) -> tuple[np.ndarray, np.ndarray]:
        with opened.begin(buffers=True) as transaction:
            return decode(pickle.loads(transaction.get(str(number).encode())))  # safe, because it was written above

    return read


def _from_base64(text: bytes, width: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.float32).reshape(-1, width)


FORMATS: dict[str, Callable[[Path, int], Read]] = {
    "table": region_table,
    "memory map": memory_map,
    "lmdb, base64 pickles": lmdb_of_base64,
    "lmdb, array pickles": lmdb_of_arrays,
}


def build(folder: Path, images: int) -> dict[str, Read]:
    """Writes all formats; returns their readers."""
    return {name: write(folder, images) for name, write in FORMATS.items()}


# Measured functions


def copy_rows(read: Read, order: Sequence[int]) -> None:
    """Copies the arrays of each image, unless the reader returns new arrays."""
    views = read.__qualname__.split(".")[0] in (region_table.__name__, memory_map.__name__)
    for number in order:
        for array in read(number):
            if views:
                array.copy()


def make_batch(read: Read, order: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Makes boxes (B, R, 4) and features (B, R, D) of images, float32, padded with zeros."""
    rows = [read(number) for number in order]
    most = max(len(boxes) for boxes, _ in rows)
    boxes = np.zeros((len(rows), most, 4), dtype=np.float32)
    features = np.zeros((len(rows), most, FEATURE_SIZE), dtype=np.float32)
    for place, (given_boxes, given_features) in enumerate(rows):
        copy_as_float32(boxes[place, : len(given_boxes)], given_boxes)
        copy_as_float32(features[place, : len(given_features)], given_features)
    return boxes, features


def make_batches(read: Read, order: Sequence[int]) -> None:
    """Makes batches of all images."""
    for start in range(0, len(order), BATCH):
        make_batch(read, order[start : start + BATCH])


MEASUREMENTS = {"as stored": copy_rows, "float32 batches": make_batches}


def measure(readers: Mapping[str, Read], images: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Returns measurement -> format -> CPU seconds of each round over all images."""
    order = np.random.default_rng(1).permutation(images).tolist()
    by_kind = {}
    for kind, function in MEASUREMENTS.items():
        ways = {name: partial(function, read, order) for name, read in readers.items()}
        take_turns(ways, 1)  # the warm-up
        by_kind[kind] = take_turns(ways, rounds, label=kind)
    return by_kind


def report(times: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    """Yields one line per format: the relative speed of the table, median and range of the rounds, and the aim."""
    for kind, taken in times.items():
        for name, values in taken.items():
            if name != "table":
                speed = spread(quotients(values, taken["table"]))
                yield f"{kind:<16}{name:<22}{speed:>28}   aim >= {AIMS[kind][name]:g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("region_table", __doc__, rounds=9, quick=False)
    parser.add_argument("--images", type=int, default=192, help="images in the table: %(default)s")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    """The speed of the table relative to each other format."""
    with tempfile.TemporaryDirectory() as folder:
        times = measure(build(Path(folder), options.images), options.images, options.rounds)
    return printed(times, options.json, report)


if __name__ == "__main__":
    sys.exit(main())
