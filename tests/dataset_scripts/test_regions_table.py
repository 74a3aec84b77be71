# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.regions.rows import make_batch
from grounded_attention.dataset_scripts.regions.shards import Shard, write_index
from grounded_attention.dataset_scripts.regions.table import (
    MissingRegionsError,
    Regions,
    RegionTable,
    RegionTableWriter,
)
from tests.helpers.region_samples import PROVENANCE, sample, write_table

IDS = ["7", "42", "dev-850-0-img0", "COCO_train2014_000000132417"]


@pytest.fixture
def table(tmp_path):
    return RegionTable.open(write_table(tmp_path / "regions", IDS))


def test_rows_come_back_in_half_precision(table):
    assert table.ids == list(table) == IDS
    assert table.feature_size == 8
    assert table.provenance == PROVENANCE
    assert "42" in table
    assert "43" not in table
    assert 42 not in table
    for image_id in IDS:
        expected = sample(image_id, count=1 + len(image_id) % 3)
        found = table[image_id]
        assert (found.image_id, found.width, found.height) == (image_id, 50, 40)
        for name, values in expected.arrays().items():
            dtype = {"features": np.float16, "classes": np.int32, "attributes": np.int32}.get(name, np.float32)
            assert_array_equal(getattr(found, name), values.astype(dtype), strict=True)
        assert found.class_probs is None


def test_only_boxes_and_features_are_needed(tmp_path):
    full = sample("a")
    probabilities = full.features / 30
    with RegionTableWriter(tmp_path, PROVENANCE) as writer:
        writer.write(Regions("a", 50, 40, full.boxes, full.features, class_probs=probabilities))
    found = RegionTable.open(tmp_path)["a"]
    assert set(found.arrays()) == {"boxes", "features", "class_probs"}
    assert_array_equal(found.class_probs, probabilities.astype(np.float16))


def test_features_are_views_of_the_mapped_file(table):
    before = pa.total_allocated_bytes()
    first = table["42"].features
    assert np.shares_memory(first, table["42"].features)
    assert not first.flags.writeable
    assert pa.total_allocated_bytes() == before


def test_other_arrow_software_reads_the_shards(tmp_path):
    table = RegionTable.open(write_table(tmp_path, IDS, shard_bytes=1))
    assert table.dataset["image_id"][:] == IDS
    for row in table.dataset.with_format("numpy"):
        for name, values in table[str(row["image_id"])].arrays().items():
            assert_array_equal(np.asarray(row[name]), values)
    first = pa.ipc.open_stream(pa.memory_map(str(tmp_path / "regions-00000.arrow"))).read_all()
    assert first["image_id"].to_pylist() == IDS[:1]


def test_opening_reads_no_shard(tmp_path):
    path = write_table(tmp_path, IDS)
    shard = path / "regions-00000.arrow"
    shard.write_bytes(bytes(shard.stat().st_size))
    table = RegionTable.open(path)
    assert table.ids == IDS
    assert table.counts(IDS).tolist() == [1 + len(image_id) % 3 for image_id in IDS]
    with pytest.raises(DataError, match=r"regions-00000\.arrow: damaged rows"):
        table["7"]


def test_a_missing_id_lists_known_ids(table):
    with pytest.raises(MissingRegionsError, match="no regions for this image: found '8', expected one of 4 ids such"):
        table["8"]
    with pytest.raises(KeyError, match="ids are strings"):
        table[7]
    with pytest.raises(MissingRegionsError):
        table.counts(["7", "8"])


@pytest.mark.parametrize(
    "array, place", [("boxes", 3), ("features", 0), ("features", 13), ("features", -9), ("features", -1)]
)
def test_verify_finds_a_changed_byte(tmp_path, array, place):
    path = write_table(tmp_path, ["only"])
    shard = path / "regions-00000.arrow"
    values = getattr(RegionTable.open(path)["only"], array).tobytes()
    changed = bytearray(values)
    changed[place] ^= 1
    shard.write_bytes(shard.read_bytes().replace(values, changed))
    with pytest.raises(DataError, match="damaged row"):
        RegionTable.open(path).verify()


def test_checksum_depends_on_content_and_not_on_order(tmp_path, monkeypatch):
    def changed(image_id, count):
        regions = sample(image_id, count)
        regions.scores[0] = np.nextafter(regions.scores[0], np.float32(2))
        return regions

    def checksum(name, ids, **options):
        return RegionTable.open(write_table(tmp_path / name, ids, **options)).info["checksum"]

    first = checksum("first", IDS)
    assert first == checksum("reversed", IDS[::-1])
    assert first == checksum("shards", IDS, shard_bytes=1)
    assert first != checksum("fewer", IDS[:3])
    monkeypatch.setattr("tests.helpers.region_samples.sample", changed)
    assert first != checksum("other", IDS)


def test_absent_unfinished_cut_and_foreign_tables_have_different_errors(tmp_path):
    with pytest.raises(MissingFileError, match=r"no region table here.*regions import"):
        RegionTable.open(tmp_path / "nothing")
    writer = RegionTableWriter(tmp_path / "half", PROVENANCE)
    writer.write(sample("a"))
    writer.close()
    with pytest.raises(DataError, match=r"unfinished.*--resume"):
        RegionTable.open(tmp_path / "half")
    path = write_table(tmp_path / "whole", IDS, shard_bytes=1)
    shard = path / "regions-00002.arrow"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"regions-00002\.arrow: the file is cut"):
        RegionTable.open(path)
    shard.unlink()
    with pytest.raises(MissingFileError, match=r"regions-00002\.arrow"):
        RegionTable.open(path)
    (path / "regions.json").write_text('{"rows": 3}')
    with pytest.raises(DataError, match="not the manifest of a region table"):
        RegionTable.open(path)


def test_pickled_table_opens_again(table, tmp_path, monkeypatch):
    monkeypatch.chdir(table.path.parent)
    content = pickle.dumps(RegionTable.open(table.path.name))
    monkeypatch.chdir("/")
    copy = pickle.loads(content)
    assert len(content) < 500
    assert copy.ids == IDS
    assert_array_equal(copy["42"].features, table["42"].features)


def test_forked_loader_workers_read_the_same(table):
    def total(image_id):
        return table[image_id].features.astype(np.float64).sum()

    loader = torch.utils.data.DataLoader(
        IDS, batch_size=None, collate_fn=total, num_workers=2, multiprocessing_context="fork"
    )
    assert list(loader) == list(map(total, IDS))


def test_mean_features(table):
    means = table.mean_features(iter(IDS[::-1]))
    expected = [table[image_id].features.astype(np.float64).mean(axis=0) for image_id in IDS[::-1]]
    assert means.dtype == np.float32
    assert means.shape == (4, 8)
    assert_allclose(means, expected, rtol=1e-6)
    assert table.mean_features([]).shape == (0, 8)
    with pytest.raises(MissingRegionsError):
        table.mean_features(["7", "8"])


@pytest.mark.parametrize("ids, more", [(IDS[1::-1] + IDS[2:], 0), (IDS, 1)], ids=["ids", "counts"])
def test_verify_finds_an_index_of_another_table(table, ids, more):
    table.verify()
    size = write_index(table.path / "regions.index.arrow", ids, table.counts(IDS) + more)
    manifest = table.path / "regions.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "index_bytes": size}))
    with pytest.raises(DataError, match=r"image (7|42): damaged row, or an index of another table"):
        RegionTable.open(table.path).verify()


def test_compressed_rows_are_refused(tmp_path):
    """A few bytes could fill the memory."""
    batch = make_batch([sample("a")])
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), batch.schema, options=options) as writer:
        writer.write_batch(batch)
    with pytest.raises(DataError, match="compressed rows"):
        Shard(tmp_path / "a.arrow")


@pytest.mark.parametrize("boxes, features", [([0, 1, 3], [0, 2, 3]), ([0, 0, 3], [0, 0, 3])])
def test_rows_whose_arrays_do_not_fit_are_refused(tmp_path, boxes, features):
    batch = make_batch([sample("a", 1), sample("b", 2)])
    for name, starts in {"boxes": boxes, "features": features}.items():
        place = batch.schema.get_field_index(name)
        column = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), batch.column(place).values)
        batch = batch.set_column(place, batch.schema.field(place), column)
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(DataError, match="not a shard of a region table"):
        Shard(tmp_path / "a.arrow")
