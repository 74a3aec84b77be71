# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Small regions for tests, and the same regions as rows of legacy files, encoded independently of the readers."""

import base64
import struct

import numpy as np

from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter

WIDTH = 50
HEIGHT = 40
SIZE = 8
PROVENANCE = {"detector": "none"}


def sample(image_id, count=3, seed=None, size=SIZE):
    """Makes `count` regions with all optional arrays except class_probs, different for each id."""
    random = np.random.default_rng(sum(map(ord, image_id)) if seed is None else seed)
    corners = np.sort(random.random((count, 2, 2), dtype=np.float32), axis=1).reshape(count, 4)
    return Regions(
        image_id,
        WIDTH,
        HEIGHT,
        boxes=corners,
        features=random.random((count, size), dtype=np.float32) * 30,
        classes=random.integers(0, 1600, count),
        scores=random.random(count, dtype=np.float32),
        attributes=random.integers(0, 400, count),
        attribute_scores=random.random(count, dtype=np.float32),
    )


def write_table(path, ids, **options):
    """Writes a table with `sample(id)` for each id."""
    with RegionTableWriter(path, PROVENANCE, **options) as writer:
        for image_id in ids:
            writer.write(sample(image_id, count=1 + len(image_id) % 3))
    return path


def copy_table(source, target, change):
    """Copies a table; `change` makes of the regions of an image those to write, or None to leave it out."""
    whole = RegionTable.open(source)
    with RegionTableWriter(target, PROVENANCE) as writer:
        for image_id in whole.ids:
            changed = change(whole[image_id])
            if changed is not None:
                writer.write(changed)
    return target


def without(image):
    """A change for `copy_table` that leaves an image out."""
    return lambda regions: None if regions.image_id == image else regions


def floats(values):
    """Encodes little-endian float32 as base64, with `struct`."""
    flat = np.ravel(values).tolist()
    return base64.b64encode(struct.pack(f"<{len(flat)}f", *flat)).decode()


def integers(values):
    """Encodes little-endian int64 as base64, with `struct`."""
    return base64.b64encode(struct.pack(f"<{len(values)}q", *np.ravel(values).tolist())).decode()


def pixels(regions):
    """Returns the boxes in pixels, float64."""
    return regions.boxes.astype(float) * [regions.width, regions.height, regions.width, regions.height]


def butd_fields(regions):
    """Returns the six fields of a bottom-up-attention row: width comes before height."""
    size = [str(regions.width), str(regions.height), str(len(regions))]
    return [regions.image_id, *size, floats(pixels(regions)), floats(regions.features)]


def lxmert_fields(regions):
    """Returns the ten fields of an LXMERT row: height comes before width."""
    return [
        regions.image_id,
        str(regions.height),
        str(regions.width),
        integers(regions.classes),
        floats(regions.scores),
        integers(regions.attributes),
        floats(regions.attribute_scores),
        str(len(regions)),
        floats(pixels(regions)),
        floats(regions.features),
    ]


def write_tsv(path, rows, end="\r\n"):
    """Writes a tsv file of these rows."""
    path.write_bytes("".join("\t".join(row) + end for row in rows).encode())
    return path
