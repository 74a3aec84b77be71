# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The index finds what a dictionary finds, and keeps few bytes a row."""

import tracemalloc

import numpy as np
import pytest

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions import shards as module
from grounded_attention.dataset_scripts.regions.shards import read_index, write_index

IDS = ["7", "07", "", "größer", "COCO_train2014_000000132417", "日本", "a" * 300, "-1"]


def opened(path, ids):
    size = write_index(path, ids, np.arange(1, len(ids) + 1))
    return read_index(path, size, len(ids))


@pytest.mark.parametrize("chunk", [2, 1 << 16])
def test_it_finds_what_a_dictionary_finds(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    index = opened(tmp_path / "index", IDS)
    expected = {image_id: row for row, image_id in enumerate(IDS)}
    assert list(index) == IDS
    assert len(index) == len(IDS)
    for image_id in [*IDS, "8", "gr", "日", "\ud800", 7, None, b"7"]:
        assert index.row(image_id) == expected.get(image_id)
    assert index.counts.tolist() == list(range(1, len(IDS) + 1))


def test_ids_of_one_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "hash", len, raising=False)
    index = opened(tmp_path / "index", IDS)
    assert [index.row(image_id) for image_id in IDS] == list(range(len(IDS)))
    assert index.row("9") is None
    assert index.row("日x") is None


@pytest.mark.parametrize(
    "ids, rows, message",
    [
        (["a", "b", "a", "c", "a"], 5, "5 ids, of which 3 are different"),
        (["a", "b"], 3, "2 rows .* but 3 in the manifest"),
    ],
)
def test_ids_that_do_not_fit_are_refused(tmp_path, ids, rows, message):
    size = write_index(tmp_path / "index", ids, np.ones(len(ids), np.int64))
    with pytest.raises(DataError, match=message):
        read_index(tmp_path / "index", size, rows)


def test_a_row_takes_few_bytes(tmp_path):
    path = tmp_path / "index"
    size = write_index(path, [f"{number:010d}" for number in range(50_000)], np.ones(50_000, np.int64))
    tracemalloc.start()
    index = read_index(path, size, 50_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.row("0000012345") == 12345
    assert kept < 13 * 50_000
