# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import errno
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.manifests import ManifestKind
from grounded_attention.dataset_scripts.regions.rows import validate_regions
from grounded_attention.dataset_scripts.regions.table import RegionTable, RegionTableWriter, normalise_boxes
from grounded_attention.utils.processes import FolderInUse
from tests.helpers.region_samples import PROVENANCE, sample, write_table

# A value with fewer dimensions than its array is that of the second region alone.
BAD_ROWS = {
    "nan feature": ("features", np.nan, "features contain a value.*found nan"),
    "beyond float16": ("features", 70000.0, "region 1: features contain a value that float16.*found 70000"),
    "nan box": ("boxes", np.nan, "boxes contain a value"),
    "outside": ("boxes", [0.1, 0.1, 1.02, 0.5], "region 1: box outside the image"),
    "inverted": ("boxes", [0.5, 0.1, 0.4, 0.5], "region 1: box inverted"),
    "three coordinates": ("boxes", np.zeros((3, 3), np.float32), "boxes have a wrong shape"),
    "no boxes": ("boxes", np.zeros((0, 4), np.float32), "wrong shape"),
    "negative class": ("classes", -1, "classes out of range"),
    "fewer features": ("features", np.zeros((2, 8)), r"features have a wrong shape: found \(2, 8\)"),
    "other width": ("features", np.zeros((3, 9)), "arrays differ from those of the first row.*'features': 9"),
    "absent scores": ("scores", None, "arrays differ from those of the first row"),
    "same id": ("image_id", "first", "image id occurs twice"),
    "no id": ("image_id", "", "image id is not a text"),
    "number as id": ("image_id", 7, "image id is not a text"),
    "no width": ("width", 0, "image size is not positive"),
    "width beyond 32 bits": ("width", 2**31, "image size is too large"),
}


@pytest.mark.parametrize("name, value, message", BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_row_is_refused_and_leaves_no_trace(tmp_path, name, value, message):
    bad = sample("bad")
    array = getattr(bad, name)
    if value is not None and np.ndim(value) < np.ndim(array):
        array[1] = value
    else:
        setattr(bad, name, value)
    with RegionTableWriter(tmp_path, PROVENANCE) as writer:
        writer.write(sample("first"))
        with pytest.raises(DataError, match=f"image {bad.image_id}: .*{message}"):
            writer.write(bad)
        writer.write(sample("last"))
    table = RegionTable.open(tmp_path)
    table.verify()
    assert table.ids == ["first", "last"]


def test_pixel_boxes():
    pixels = np.loadtxt(["0 0 50 40", "25 10 25 20", "-0.9 -1 51 40.5"])
    boxes = normalise_boxes(pixels, width=50, height=40)
    assert boxes.dtype == np.float32
    assert_allclose(boxes, np.loadtxt(["0 0 1 1", "0.5 0.25 0.5 0.5", "0 0 1 1"]))


@pytest.mark.parametrize("box", ["0 0 51.1 40", "0 -1.1 50 40", "30 0 20 40", "0 30 20 20", "0 0 nan 20"])
def test_pixel_boxes_that_are_refused(box):
    boxes = np.loadtxt(["0 0 1 1", box])
    with pytest.raises(DataError, match="region 1"):
        normalise_boxes(boxes, width=50, height=40)


def test_normalised_boxes_are_no_pixel_boxes():
    with pytest.raises(DataError, match=r"normalised.*50 x 40"):
        normalise_boxes([[0.1, 0.1, 0.9, 0.5]], 50, 40)


def test_finished_and_unfinished_tables_are_not_overwritten(tmp_path):
    write_table(tmp_path / "done", ["a"])
    for resume in (False, True):
        with pytest.raises(DataError, match="already holds a finished region table"):
            RegionTableWriter(tmp_path / "done", PROVENANCE, resume=resume)
    writer = RegionTableWriter(tmp_path / "half", PROVENANCE)
    writer.write(sample("a"))
    with pytest.raises(FolderInUse, match="another process is writing"):
        RegionTableWriter(tmp_path / "half", PROVENANCE, resume=True)
    writer.close()
    with pytest.raises(DataError, match=r"unfinished region table.*--resume"):
        RegionTableWriter(tmp_path / "half", PROVENANCE)
    with pytest.raises(DataError, match="an unfinished table of another source"):
        RegionTableWriter(tmp_path / "half", {"detector": "other"}, resume=True)


def test_a_table_without_rows_is_no_table(tmp_path):
    with pytest.raises(DataError, match="no image was written"):
        RegionTableWriter(tmp_path / "empty", PROVENANCE).finish()
    with pytest.raises(ValueError, match="mine"), RegionTableWriter(tmp_path / "failed", PROVENANCE):
        raise ValueError("mine")
    # A failure before the first row leaves nothing that a second try would have to remove.
    write_table(tmp_path / "failed", ["a"])


def test_error_inside_leaves_a_table_to_resume(tmp_path):
    with pytest.raises(ValueError, match="mine"), RegionTableWriter(tmp_path, PROVENANCE) as writer:
        writer.write(sample("a"))
        raise ValueError("mine")
    with RegionTableWriter(tmp_path, PROVENANCE, resume=True) as writer:
        assert writer.written == {"a"}
        with pytest.raises(DataError, match="image id occurs twice"):
            writer.write(sample("a"))
        with pytest.raises(DataError, match="arrays differ"):
            writer.write(sample("b", size=9))
        writer.write(sample("b"))
    assert RegionTable.open(tmp_path).ids == ["a", "b"]


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_a_table_to_resume(tmp_path, monkeypatch):
    """Of the shard that does not fit nothing is left; the one before is whole."""
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        with RegionTableWriter(tmp_path, PROVENANCE, shard_bytes=1) as writer:
            writer.write(sample("a"))
            patch.setattr("pyarrow.RecordBatchStreamWriter.write_batch", full_disk)
            writer.write(sample("b"))
    assert sorted(path.name for path in tmp_path.glob("regions*")) == ["regions-00000.arrow", "regions.partial.json"]
    with RegionTableWriter(tmp_path, PROVENANCE, resume=True) as writer:
        assert list(writer.written) == ["a"]
        writer.write(sample("b"))
    RegionTable.open(tmp_path).verify()


KILLED = """
import os, sys
from grounded_attention.dataset_scripts.regions.table import RegionTableWriter
from tests.helpers.region_samples import PROVENANCE, sample
writer = RegionTableWriter(sys.argv[1], PROVENANCE, shard_bytes=int(sys.argv[2]))
for image_id in "abc":
    writer.write(sample(image_id))
if sys.argv[3] == "draft":  # killed while a shard is written
    open(f"{sys.argv[1]}/regions-00009.arrow.7.partial", "wb").write(b"a part")
os.kill(os.getpid(), 9)
"""


def write_all(writer):
    for image_id in "abc":
        if image_id not in writer.written:
            writer.write(sample(image_id))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The table without a kill."""
    folder = tmp_path_factory.mktemp("straight")
    with RegionTableWriter(folder, PROVENANCE) as writer:
        write_all(writer)
    return RegionTable.open(folder)


@pytest.mark.parametrize("size, kept", {1: "abc", 200: "ab", 10_000: ""}.items())
@pytest.mark.parametrize("when", ["draft", "between"])
def test_a_kill_costs_the_shard_that_is_not_written(tmp_path, straight, size, kept, when):
    script = [sys.executable, "-c", KILLED, str(tmp_path), str(size), when]
    assert subprocess.run(script, check=False).returncode == -9
    with RegionTableWriter(tmp_path, PROVENANCE, resume=True) as writer:
        assert writer.written == set(kept)
        write_all(writer)
    resumed = RegionTable.open(tmp_path)
    resumed.verify()
    assert resumed.ids == ["a", "b", "c"]
    assert not list(tmp_path.glob("*.partial"))
    assert resumed.info["checksum"] == straight.info["checksum"]


def test_arrays_of_the_caller_may_change_after_a_write(tmp_path):
    row = validate_regions(sample("a"))
    boxes = row.boxes.copy()
    with RegionTableWriter(tmp_path, PROVENANCE) as writer:
        writer.write(row)
        row.boxes[:] = 0
    assert_array_equal(RegionTable.open(tmp_path)["a"].boxes, boxes)


def test_a_disk_full_at_the_end_releases_the_table(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as caught:
        with RegionTableWriter(tmp_path, PROVENANCE) as writer:
            writer.write(sample("a"))
            patch.setattr(ManifestKind, "write", full_disk)
    assert caught.value.errno == errno.ENOSPC
    with RegionTableWriter(tmp_path, PROVENANCE, resume=True) as writer:
        assert list(writer.written) == ["a"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_systems_without_locks_hold_tables_too(tmp_path, monkeypatch, number):
    def flock(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", flock)
    assert len(RegionTable.open(write_table(tmp_path, ["a"]))) == 1


def test_shards(tmp_path):
    ids = [str(number) for number in range(7)]
    table = RegionTable.open(write_table(tmp_path, ids, shard_bytes=300))
    assert 1 < len(table.info["shards"]) < 7
    assert table.ids == ids
    table.verify()


def test_a_copy_with_hard_links_stays_when_the_table_is_continued(tmp_path):
    """Such as a backup of an unfinished table, whose files are those of the table."""
    table = tmp_path / "table"
    writer = RegionTableWriter(table, PROVENANCE)
    writer.write(sample("a"))
    writer.close()
    (table / "regions.index.arrow").write_bytes(b"years of work")
    shutil.copytree(table, tmp_path / "copy", copy_function=os.link)
    before = {path: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    with RegionTableWriter(table, PROVENANCE, resume=True) as writer:
        writer.write(sample("b"))
    RegionTable.open(table).verify()
    for path, content in before.items():
        assert path.read_bytes() == content
