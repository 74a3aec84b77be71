# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Damaged Arrow files of region features: always one error, never the end of the interpreter, never other values."""

import json
import os
import random
import struct

import h5py
import numpy as np
import pytest

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.files import KIND
from grounded_attention.dataset_scripts.regions.reader_h5 import read_h5
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter

BAD = (-1, -(2**31), 2**31 - 1, 0, 1, 255, 65536, -8, 2**28)
BAD_LONG = (-1, -(2**63), 2**63 - 1, 0, 1, 2**40, -8, 2**62)


def write_table(folder):
    rng = np.random.default_rng(0)
    with RegionTableWriter(folder, provenance={"source": "a test"}) as writer:
        for number in range(3):
            count = number + 2
            boxes = np.sort(rng.random((count, 2, 2)), axis=1).reshape(count, 4)
            features = rng.random((count, 8)).astype(np.float16)
            writer.write(Regions(f"image{number}", 10, 10, boxes, features, np.arange(count), rng.random(count)))
    return folder


def damaged(content, source):
    """The content with one byte, one integer or one long integer replaced, or without its end."""
    changed = bytearray(content)
    kind = source.choice(("byte", "int", "int", "long", "cut"))
    if kind == "cut":
        return content[: source.randrange(len(content))]
    size = {"byte": 1, "int": 4, "long": 8}[kind]
    place = size * source.randrange(len(content) // size)
    value = {"byte": range(256), "int": BAD, "long": BAD_LONG}[kind]
    struct.pack_into({"byte": "<B", "int": "<i", "long": "<q"}[kind], changed, place, source.choice(value))
    return bytes(changed)


def outcomes(path, count, seed, work):
    """What `work` ends with for each damaged content of a file: "ok", "DataError" or another error.

    All of it is in one process of its own; the last is "died" if this process did.
    """
    whole = path.read_bytes()
    source = random.Random(seed)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for _ in range(count):
            path.unlink()  # a table of the damage before may still have it in memory
            path.write_bytes(damaged(whole, source))
            try:
                work()
                said = "ok"
            except BaseException as error:
                said = type(error).__name__
            os.write(writer, f"{said}\n".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = told.read().split()
    if os.waitpid(child, 0)[1] == 0:
        return said
    return [*said, "died"]


def read_all(folder, expected):
    table = RegionTable(folder)
    assert len(table.counts(table.ids)) == 3
    for image_id in table.ids:
        assert table[image_id].features.dtype == np.float16
    table.verify()
    for image_id, features in expected.items():  # what `verify` accepts is what was written
        assert table[image_id].features.tobytes() == features


@pytest.mark.parametrize("file", ["regions-00000.arrow", "regions.index.arrow"])
def test_a_damaged_table_is_an_error_and_nothing_else(tmp_path, file):
    folder = write_table(tmp_path / "table")
    table = RegionTable(folder)
    expected = {image_id: table[image_id].features.tobytes() for image_id in table.ids}
    said = outcomes(folder / file, 150, 3, lambda: read_all(folder, expected))
    assert len(said) == 150 and set(said) <= {"ok", "DataError", "MissingRegionsError"}, said
    assert {"ok", "DataError"} <= set(said)


@pytest.mark.parametrize(
    "change",
    [
        {"shards": [{"file": "../secret", "bytes": 4, "rows": 3}]},
        {"shards": None},
        {"shards": []},
        {"shards": [{"file": "regions-00000.arrow", "bytes": "4", "rows": 3}]},
        {"arrays": {"boxes": "4", "features": 8, "classes": None, "scores": None}},
        {"arrays": {"boxes": 4, "features": 8, "classes": 1, "scores": None}},
        {"arrays": {"boxes": 4, "features": 10**12, "classes": None, "scores": None}, "feature_size": 10**12},
        {"images": 10**30},
        {"index_bytes": 4.0},
        {"provenance": []},
        {"arrays": {"boxes": 4, "evil": 3, "features": 8}},
        {"arrays": {"boxes": None, "features": 8}},
        {"images": 2},
        {"feature_size": 9},
        {"provenance": None},
        {"checksum": None},
    ],
)
def test_a_damaged_manifest_is_an_error(tmp_path, change):
    folder = write_table(tmp_path / "table")
    (tmp_path / "secret").write_text("data")
    content = json.loads((folder / "regions.json").read_text())
    (folder / "regions.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(ValueError, match=r"damaged|inside this folder"):
        RegionTable(folder)


@pytest.mark.parametrize(
    "provenance", [{"classes": 5}, {"classes": "dog"}, {"classes": [5]}, {"detector": {"label_names": 5}}]
)
def test_class_names_that_are_no_list_of_texts(tmp_path, provenance):
    folder = write_table(tmp_path / "table")
    content = json.loads((folder / "regions.json").read_text())
    (folder / "regions.json").write_text(json.dumps({**content, "provenance": provenance}))
    with pytest.raises(DataError, match=r"regions\.json: the class names of the detector are no list of texts"):
        _ = RegionTable(folder).class_names


@pytest.mark.parametrize("provenance", [{}, {"provenance": None}, {"provenance": []}, {"provenance": 5}])
@pytest.mark.parametrize("file", ["regions.json", "regions.partial.json"])
def test_a_manifest_without_provenance_is_an_error(tmp_path, file, provenance):
    content = {"format": "grounded-attention region table", "version": 1, **provenance}
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"{file}: the manifest is damaged: no provenance.*copy the folder again"):
        KIND.read(tmp_path / file)


def test_an_entry_of_hdf5_without_its_link_is_refused(tmp_path, monkeypatch):
    """What h5py says of a name whose bytes are damaged; the error is that of a damaged file."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_group("7")
    monkeypatch.setattr(h5py.Group, "get", lambda *_, **__: None)
    with pytest.raises(DataError, match=r"a\.h5: damaged HDF5 file"):
        list(read_h5(path))
