# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reading the features of one image, side by side: region table, NumPy memory map, base64 text as in the tsv files.

Everything is warm in the page cache and read in the same random order, turn by turn, so that noise of the machine hits
all alike; what counts is the ratios. "looked up" touches no feature: the table finds a row by its id, with boxes and
size, the memory map only computes where features number i begin. The other lines end with the features in memory.

examples:
  python -m benchmarks.region_table
  python -m benchmarks.region_table --images 500 --boxes 100
"""

import argparse
import base64
import binascii
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dataset_scripts.region_table import Regions, RegionTable, RegionTableWriter

FEATURE_SIZE = 2048
Read = Callable[[int], object]


def build(folder: Path, images: int, boxes: int) -> tuple[RegionTable, np.memmap, list[bytes]]:
    """The same random features as a region table, as one float16 memory map, and as base64 of float32."""
    random = np.random.default_rng(0)
    shape = (images, boxes, FEATURE_SIZE)
    mapped = np.memmap(folder / "features.npy", dtype=np.float16, mode="w+", shape=shape)
    texts = []
    corners = np.sort(random.random((boxes, 2, 2), dtype=np.float32), axis=1).reshape(boxes, 4)
    with RegionTableWriter(folder / "regions", {"source": "random numbers"}) as writer:
        for image in range(images):
            features = np.maximum(random.standard_normal(shape[1:], dtype=np.float32), 0)
            writer.write(Regions(str(image), 640, 480, corners, features))
            mapped[image] = features
            texts.append(base64.b64encode(features.tobytes()))
    mapped.flush()
    readable = np.memmap(folder / "features.npy", dtype=np.float16, mode="r", shape=shape)
    return RegionTable.open(folder / "regions"), readable, texts


def readers(table: RegionTable, mapped: np.memmap, texts: list[bytes]) -> dict[str, dict[str, Read]]:
    """For each question, who answers it how."""
    ids = table.ids

    def decoded(image: int) -> np.ndarray:
        return np.frombuffer(binascii.a2b_base64(texts[image]), np.float32).reshape(mapped.shape[1:])

    return {
        "looked up": {"table": lambda i: table[ids[i]], "memory map": lambda i: mapped[i]},
        "copied as float16": {
            "table": lambda i: table[ids[i]].features.copy(),
            "memory map": lambda i: np.array(mapped[i]),
            "base64": lambda i: decoded(i).astype(np.float16),
        },
        "copied as float32": {
            "table": lambda i: table[ids[i]].features.astype(np.float32),
            "memory map": lambda i: np.asarray(mapped[i]).astype(np.float32),
            "base64": decoded,
        },
    }


def seconds(read: Read, order: Sequence[int]) -> float:
    """Time to read these images."""
    begin = time.perf_counter()
    for image in order:
        read(image)
    return time.perf_counter() - begin


def ratios(ways: dict[str, Read], images: int, rounds: int) -> dict[str, list[float]]:
    """The table's time divided by each other way's, one ratio a round."""
    random = np.random.default_rng(1)
    found: dict[str, list[float]] = {name: [] for name in ways if name != "table"}
    for _ in range(rounds):
        order = random.permutation(images).tolist()
        taken = {name: seconds(read, order) for name, read in ways.items()}
        for name, values in found.items():
            values.append(taken["table"] / taken[name])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the ratios: median, and smallest to largest of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=300, help="images in the table: %(default)s")
    parser.add_argument("--boxes", type=int, default=36, help="boxes of an image: %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each: %(default)s")
    options = parser.parse_args(arguments)
    print(f"reading [{options.boxes}, {FEATURE_SIZE}], {options.images} images, {options.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        for question, ways in readers(*build(Path(folder), options.images, options.boxes)).items():
            for name, values in ratios(ways, options.images, options.rounds).items():
                spread = f"{min(values):.3f} to {max(values):.3f}"
                print(f"{question:>18}: table / {name:<10} = {statistics.median(values):7.3f} x  ({spread})")


if __name__ == "__main__":
    main()
