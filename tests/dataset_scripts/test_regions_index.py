# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The index finds what a dictionary finds, in any layout of the file, and keeps few bytes a row."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions import index as module
from grounded_attention.dataset_scripts.regions.index import RegionIndex, read_index

IDS = ["7", "07", "", "größer", "COCO_train2014_000000132417", "日本", "a" * 300, "-1"]


def write_index(path: Path, ids: list[str], batch: int) -> dict:
    """Writes an index of rows of 10 bytes, in record batches of `batch` rows; returns its manifest."""
    columns = {"image_id": ids, "shard": [0] * len(ids), "offset": [10 * n for n in range(len(ids))]}
    table = pa.table({**columns, "length": [10] * len(ids)})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return {"images": len(ids), "index_bytes": path.stat().st_size, "shards": [{"bytes": 10 * len(ids)}]}


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize("chunk", [2, 1 << 16])
def test_it_finds_what_a_dictionary_finds(tmp_path, monkeypatch, batch, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    index = read_index(tmp_path / "index", write_index(tmp_path / "index", IDS, batch))
    expected = {image_id: row for row, image_id in enumerate(IDS)}
    assert list(index) == IDS and len(index) == len(IDS)
    for image_id in [*IDS, "8", "gr", "日", "\ud800", 7, None, b"7"]:
        assert index.row(image_id) == expected.get(image_id)
    assert [index.place(row) for row in range(len(IDS))] == [(0, 10 * row, 10) for row in range(len(IDS))]


def test_ids_of_one_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "hash", len, raising=False)
    index = read_index(tmp_path / "index", write_index(tmp_path / "index", IDS, 100))
    assert [index.row(image_id) for image_id in IDS] == list(range(len(IDS)))
    assert index.row("9") is None and index.row("日x") is None


@pytest.mark.parametrize(
    ("ids", "images", "message"),
    [
        (["a", "b", "a", "c", "a"], 5, "3 different ids of 5, but 5 in the manifest"),
        (["a", "b"], 3, "2 different ids of 2, but 3 in the manifest"),
    ],
)
def test_ids_that_do_not_fit_are_refused(tmp_path, ids, images, message):
    manifest = write_index(tmp_path / "index", ids, 100) | {"images": images}
    with pytest.raises(DataError, match=message):
        read_index(tmp_path / "index", manifest)


def test_numbers_that_are_not_aligned_are_read(tmp_path):
    places = [np.frombuffer(b"x" + np.array([0, 5], np.int64).tobytes(), np.int64, 2, 1) for _ in range(3)]
    offsets = np.frombuffer(b"x" + np.array([0, 1, 3], np.int32).tobytes(), np.int32, 3, 1)
    index = RegionIndex(memoryview(b"abc"), offsets, places)
    assert (list(index), index.row("bc"), index.place(1)) == (["a", "bc"], 1, (5, 5, 5))


def test_a_row_takes_few_bytes(tmp_path):
    manifest = write_index(tmp_path / "index", [f"{number:010d}" for number in range(50_000)], 1 << 20)
    tracemalloc.start()
    index = read_index(tmp_path / "index", manifest)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.row("0000012345") == 12345 and kept < 10 * 50_000
