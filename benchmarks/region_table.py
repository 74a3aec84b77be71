# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Speed of reading region features in random order: the region table compared to the formats that it replaces.

All formats contain the same data, 10 to 100 regions per image: a region table (float16); float32 as users store it:
LMDB of pickles with base64 text, LMDB of pickles with arrays, HDF5, and tsv with base64 text and an index of lines;
and a float16 NumPy memory map with known positions, a plain copy, which is the bound. There are two measurements:

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
import binascii
import json
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import make_parser, run

import numpy as np

from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.processing.float32_copy import copy_as_float32

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


def hdf5(folder: Path, images: int) -> Read:
    """One array of all regions and the positions of each image, the format of the adaptive features of BAN."""
    import h5py

    rows = list(make_images(images))
    ends = np.cumsum([len(boxes) for boxes, _ in rows]).tolist()
    with h5py.File(folder / "features.h5", "w") as file:
        for name, width in (("image_bb", 4), ("image_features", FEATURE_SIZE)):
            stored = file.create_dataset(name, (ends[-1], width), np.float32)
            for end, arrays in zip(ends, rows, strict=True):
                array = arrays[0] if width == 4 else arrays[1]
                stored[end - len(array) : end] = array
    opened, starts = h5py.File(folder / "features.h5"), [0, *ends]
    stored_boxes, stored_features = opened["image_bb"], opened["image_features"]

    def read(number: int) -> tuple[np.ndarray, np.ndarray]:
        place = slice(starts[number], starts[number + 1])
        return stored_boxes[place], stored_features[place]

    return read


def tsv(folder: Path, images: int) -> Read:
    """Rows of base64 text; the start of each line is known."""
    starts = []
    with open(folder / "features.tsv", "wb") as file:
        for number, (boxes, features) in enumerate(make_images(images)):
            starts.append(file.tell())
            head = f"{number}\t640\t480\t{len(boxes)}\t".encode()
            file.write(head + base64.b64encode(boxes) + b"\t" + base64.b64encode(features) + b"\r\n")
    opened = open(folder / "features.tsv", "rb")

    def read(number: int) -> tuple[np.ndarray, np.ndarray]:
        opened.seek(starts[number])
        fields = opened.readline().split(b"\t")
        return _from_base64(fields[4], 4), _from_base64(fields[5], FEATURE_SIZE)

    return read


def _from_base64(text: bytes, width: int) -> np.ndarray:
    return np.frombuffer(binascii.a2b_base64(text), np.float32).reshape(-1, width)


FORMATS: dict[str, Callable[[Path, int], Read]] = {
    "table": region_table,
    "memory map": memory_map,
    "lmdb, base64 pickles": lmdb_of_base64,
    "lmdb, array pickles": lmdb_of_arrays,
    "hdf5": hdf5,
    "tsv": tsv,
}


def build(folder: Path, images: int) -> tuple[dict[str, Read], list[str]]:
    """Returns the formats whose package is installed, and the names of the others."""
    readers, absent = {}, []
    for name, write in FORMATS.items():
        try:
            readers[name] = write(folder, images)
        except ImportError:
            absent.append(name)
    return readers, absent


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
    random = np.random.default_rng(1)
    times: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in readers} for kind in MEASUREMENTS}
    for turn in range(-1, rounds):
        order = random.permutation(images).tolist()
        for kind, function in MEASUREMENTS.items():
            for name in list(readers)[:: 1 if turn % 2 else -1]:
                begin = time.process_time()
                function(readers[name], order)
                if turn >= 0:  # the round before is the warm-up
                    times[kind][name].append(time.process_time() - begin)
    return times


def report(times: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """Makes one line per format: the relative speed of the table, median and range of the rounds, and the aim."""
    lines = []
    for kind, taken in times.items():
        for name, values in taken.items():
            if name == "table":
                continue
            ratios = [other / own for other, own in zip(values, taken["table"], strict=True)]
            aim = AIMS[kind].get(name)
            note = "" if aim is None else f"   aim >= {aim:g}"
            spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
            lines.append(f"{kind:<16}{name:<22}{statistics.median(ratios):>8.2f} x  {spread:<20}{note}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.region_table", __doc__)
    parser.add_argument("--images", type=int, default=192, help="images in the table: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each format: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the seconds of all rounds as JSON instead")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    """The speed of the table relative to each other format."""
    with tempfile.TemporaryDirectory() as folder:
        readers, absent = build(Path(folder), options.images)
        times = measure(readers, options.images, options.rounds)
    if options.json:
        return json.dumps(times)
    head = f"speed of the table / speed of ..., {options.images} images with {REGIONS[0]} to {REGIONS[1]} regions"
    lines = [head, *report(times)]
    if absent:
        lines.append(f"not measured, because a package is missing (pip install lmdb h5py): {'; '.join(absent)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
