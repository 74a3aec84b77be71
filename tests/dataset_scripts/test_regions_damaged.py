# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Damaged Arrow files of region features: always one error, never the end of the interpreter, never other values."""

import json
import random
import struct

import h5py
import numpy as np
import pytest

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.reader_h5 import read_h5
from grounded_attention.dataset_scripts.regions.shards import KIND
from grounded_attention.dataset_scripts.regions.table import RegionTable
from tests.campaign.sandbox import run_apart
from tests.helpers.region_samples import write_table

# Integers by the format that `struct` writes them in.
INTEGERS = {
    "<B": range(256),
    "<i": (-1, -(2**31), 2**31 - 1, 0, 1, 255, 65536, -8, 2**28),
    "<q": (-1, -(2**63), 2**63 - 1, 0, 1, 2**40, -8, 2**62),
}
CUT = "cut"


@pytest.fixture
def folder(tmp_path):
    return write_table(tmp_path / "table", ["image0", "image01", "image012"])


def damaged(content, rng):
    """The content with one byte, one integer or one long integer replaced, or without its end."""
    kind = rng.choice((CUT, "<B", "<i", "<i", "<q"))
    if kind == CUT:
        return content[: rng.randrange(len(content))]
    changed = bytearray(content)
    size = struct.calcsize(kind)
    place = size * rng.randrange(len(content) // size)
    struct.pack_into(kind, changed, place, rng.choice(INTEGERS[kind]))
    return bytes(changed)


def read_all(folder, expected):
    table = RegionTable(folder)
    assert len(table.counts(table.ids)) == 3
    for image_id in table.ids:
        assert table[image_id].features.dtype == np.float16
    table.verify()
    for image_id, features in expected.items():  # what `verify` accepts is what was written
        assert table[image_id].features.tobytes() == features


@pytest.mark.parametrize("file", ["regions-00000.arrow", "regions.index.arrow"])
def test_a_damaged_table_is_an_error_and_nothing_else(folder, tmp_path, file):
    table = RegionTable(folder)
    expected = {image_id: table[image_id].features.tobytes() for image_id in table.ids}
    path = folder / file
    sound = path.read_bytes()
    rng = random.Random(3)

    def read_damaged():
        for _ in range(150):
            path.unlink()  # a table of the damage before may still have it in memory
            path.write_bytes(damaged(sound, rng))
            try:
                read_all(folder, expected)
                print("ok")
            except Exception as error:
                print(type(error).__name__)

    ended = run_apart(read_damaged, tmp_path / "work")
    assert ended.status == 0, ended.err
    outcomes = ended.out.split()
    assert len(outcomes) == 150
    assert {"ok", "DataError"} <= set(outcomes) <= {"ok", "DataError", "MissingRegionsError"}


def change_manifest(folder, change):
    path = folder / "regions.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **json.loads(change)}))


CHANGES = """
{"shards": [{"file": "../secret", "bytes": 4, "rows": 3}]}
{"shards": null}
{"shards": []}
{"shards": [{"file": "regions-00000.arrow", "bytes": "4", "rows": 3}]}
{"arrays": {"boxes": "4", "features": 8, "classes": null, "scores": null}}
{"arrays": {"boxes": 4, "features": 8, "classes": 1, "scores": null}}
{"arrays": {"boxes": 4, "features": 1000000000000, "classes": null, "scores": null}, "feature_size": 1000000000000}
{"images": 1000000000000000000000000000000}
{"index_bytes": 4.0}
{"provenance": []}
{"arrays": {"boxes": 4, "evil": 3, "features": 8}}
{"arrays": {"boxes": null, "features": 8}}
{"images": 2}
{"feature_size": 9}
{"provenance": null}
{"checksum": null}
"""


@pytest.mark.parametrize("change", CHANGES.strip().splitlines())
def test_a_damaged_manifest_is_an_error(folder, change):
    (folder.parent / "secret").write_text("data")
    change_manifest(folder, change)
    with pytest.raises(ValueError, match=r"damaged|inside this folder"):
        RegionTable(folder)


@pytest.mark.parametrize(
    "provenance", ['{"classes": 5}', '{"classes": "dog"}', '{"classes": [5]}', '{"detector": {"label_names": 5}}']
)
def test_class_names_that_are_no_list_of_texts(folder, provenance):
    change_manifest(folder, f'{{"provenance": {provenance}}}')
    with pytest.raises(DataError, match=r"regions\.json: the class names .* no list of texts"):
        _ = RegionTable(folder).class_names


@pytest.mark.parametrize("provenance", ["", ', "provenance": null', ', "provenance": []', ', "provenance": 5'])
def test_a_manifest_without_provenance_is_an_error(tmp_path, provenance):
    path = tmp_path / "regions.partial.json"
    path.write_text(f'{{"format": "grounded-attention region table", "version": 1{provenance}}}')
    with pytest.raises(DataError, match=r"regions\.partial\.json: .*damaged: no provenance.*copy the folder again"):
        KIND.read(path)


def test_an_entry_of_hdf5_without_its_link_is_refused(tmp_path, monkeypatch):
    """What h5py says of a name whose bytes are damaged; the error is that of a damaged file."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_group("7")
    monkeypatch.setattr(h5py.Group, "get", lambda *_, **__: None)
    with pytest.raises(DataError, match=r"a\.h5: damaged HDF5 file"):
        list(read_h5(path))
