# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import base64
import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from grounded_attention.commands.import_regions import import_regions, main
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.regions.readers import read_regions, source_records
from grounded_attention.dataset_scripts.regions.table import RegionTable
from tests.helpers.region_samples import SIZE, butd_fields, floats, lxmert_fields, pixels, sample, write_tsv

IDS = ["300104", "147295", "321486", "9"]


def lxmert_rows(ids=IDS):
    return [lxmert_fields(sample(image_id)) for image_id in ids]


@pytest.fixture
def output(tmp_path):
    return tmp_path / "regions"


def run(source, output, **options):
    arguments = {"format": "lxmert_tsv", "feature_size": SIZE, "progress": False, **options}
    return import_regions([source], output=output, **arguments)


@pytest.fixture
def source(tmp_path):
    return write_tsv(tmp_path / "obj36.tsv", lxmert_rows())


def test_lines_may_end_with_a_line_feed_alone(tmp_path):
    source = write_tsv(tmp_path / "obj36.tsv", [*lxmert_rows(), []], "\n")
    found = list(read_regions(source, "lxmert_tsv", SIZE))
    assert [regions.image_id for regions in found] == IDS
    assert_array_equal(found[3].features, sample("9").features.astype(np.float16))


def test_a_byte_order_mark_is_not_part_of_an_id(source, tmp_path):
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    run(source, tmp_path / "table")
    assert RegionTable.open(tmp_path / "table").ids == IDS


def test_butd_class_probabilities_begin_with_background(tmp_path):
    probabilities = np.array([[0.9, 0.01, 0.09], [0.1, 0.7, 0.2], [0.2, 0.2, 0.6]])
    source = write_tsv(tmp_path / "cc.tsv", [[*butd_fields(sample("9")), floats(probabilities)]])
    (found,) = read_regions(source, "butd_tsv", SIZE)
    # Background is the most likely for the first region; its class is the most likely object nevertheless.
    assert found.classes.tolist() == [1, 0, 1]
    assert_allclose(found.scores, [0.09, 0.7, 0.6], rtol=1e-6)
    assert_array_equal(found.class_probs, probabilities.astype(np.float32).astype(np.float16))


def with_field(position, value):
    row = lxmert_rows(["bad"])[0]
    row[position] = value
    return row


ROW = lxmert_rows(["bad"])[0]
PIXELS = pixels(sample("bad"))
FEATURES = sample("bad").features
# What the table itself refuses is in test_regions_writer.py.
BAD_ROWS = {
    "torn": (ROW[:6], "wrong number of fields: found 6, expected 10"),
    "torn features": (with_field(9, ROW[9][:-6]), "features is not base64"),
    "short features": (with_field(9, floats(FEATURES[:, 1:])), "features .*found 21, expected values for 3 boxes x 8"),
    "other count": (with_field(7, "4"), "objects_id has a wrong length|boxes has a wrong length"),
    "no number": (with_field(1, "4e1"), "img_h is not a positive whole number: found '4e1'"),
    "not base64": (with_field(3, "$$$$"), "objects_id is not base64"),
    "no number in a box": (with_field(8, floats(PIXELS * np.nan)), "box is not a number"),
    "outside": (with_field(8, floats(np.add(PIXELS, [0, 0, 52, 0]))), "region 0: box outside the image"),
    "no id": (with_field(0, ""), "image id is not a text"),
}


@pytest.mark.parametrize("row, message", BAD_ROWS.values(), ids=BAD_ROWS)
def test_damaged_row_is_skipped_or_refused(tmp_path, output, row, message):
    rows = lxmert_rows()
    source = write_tsv(tmp_path / "obj36.tsv", [*rows[:2], row, *rows[2:]])
    with pytest.raises(DataError, match=rf"obj36.tsv, row 3: .*({message}).*--on-error skip"):
        run(source, output)
    info = run(source, output, on_error="skip", resume=True)
    assert (info["summary"]["rows"], info["summary"]["skipped"], info["images"]) == (5, 1, 4)
    (problem,) = info["summary"]["problems"]
    assert problem.startswith(f"{source}, row 3: ")
    table = RegionTable.open(output)
    table.verify()
    assert table.ids == IDS
    assert table.info == info


@pytest.mark.parametrize("cut", [3, 40, 150])
def test_torn_last_row(source, output, cut):
    source.write_bytes(source.read_bytes()[:-cut])
    info = run(source, output, on_error="skip")
    assert info["images"] == 3
    assert "row 4" in info["summary"]["problems"][0]


def test_last_row_without_line_end_is_whole(source, tmp_path, output, caplog):
    """But the rows behind it may be cut off."""
    run(source, tmp_path / "whole")
    assert "no end" not in caplog.text
    source.write_bytes(source.read_bytes()[:-2])
    assert run(source, output)["images"] == 4
    assert "obj36.tsv: the last line has no end, so the file may be cut" in caplog.text


def test_several_files_make_one_table(tmp_path, output):
    first = write_tsv(tmp_path / "a.tsv", lxmert_rows(IDS[:2]))
    second = write_tsv(tmp_path / "b.tsv", lxmert_rows([IDS[0], *IDS[2:]]))
    options = {"on_error": "skip", "feature_size": SIZE, "detector": "a name", "progress": False}
    info = import_regions([first, second], "lxmert_tsv", output, **options)
    assert RegionTable.open(output).ids == IDS
    [problem] = info["summary"]["problems"]
    assert problem.startswith(f"{second}, row 1: ")
    provenance = info["provenance"]
    assert provenance["sources"] == [{"file": path.name, "bytes": path.stat().st_size} for path in (first, second)]
    assert (provenance["format"], provenance["detector"]) == ("lxmert_tsv", "a name")


@pytest.mark.parametrize(
    "options, message",
    {
        '{"format": "csv"}': "unknown format.*found 'csv', expected one of butd_tsv, h5",
        '{"format": "butd_tsv"}': "wrong number of fields: found 10, expected 6",
        '{"format": "butd_tsv", "on_error": "skip"}': "wrong number of fields: found 10, expected 6",
        '{"feature_size": 2048}': "features has a wrong length",
    }.items(),
)
def test_options_that_do_not_fit_a_source(source, output, options, message):
    with pytest.raises(DataError, match=message):
        run(source, output, **json.loads(options))
    assert run(source, output)["images"] == 4


def test_a_finished_table_is_imported_again_only_to_resume(source, tmp_path, output):
    with pytest.raises(MissingFileError, match=r"absent\.tsv: no such file"):
        run(tmp_path / "absent.tsv", output)
    info = run(source, output)
    with pytest.raises(DataError, match="already holds a finished region table"):
        run(source, output)
    assert run(source, output, resume=True) == info


def test_resume_beside_a_damaged_manifest(source, tmp_path):
    info = run(source, tmp_path)
    path = tmp_path / "regions.json"
    path.write_text(json.dumps({"format": info["format"], "version": 1, "provenance": info["provenance"]}))
    with pytest.raises(DataError, match=r"regions\.json: the manifest is damaged; copy the folder again"):
        run(source, tmp_path, resume=True)


def test_resume_notices_another_source(tmp_path, output):
    rows = lxmert_rows()
    source = write_tsv(tmp_path / "obj36.tsv", [*rows, rows[0]])
    with pytest.raises(DataError, match="row 5"):
        run(source, output)
    write_tsv(source, [rows[0], rows[2], rows[0], rows[3], rows[0]])
    with pytest.raises(DataError, match=r"the source changed.*found {'147295'}"):
        run(source, output, resume=True, on_error="skip")
    write_tsv(source, rows)
    with pytest.raises(DataError, match="an unfinished table of another source"):
        run(source, output, resume=True)


def test_command_reports_and_exits(tmp_path, output, capsys, monkeypatch):
    source = write_tsv(tmp_path / "obj36.tsv", [*lxmert_rows(), ["9", "torn"]])
    command = [str(source), "--format", "lxmert_tsv", "--feature-size", str(SIZE), "--output"]
    assert main([*command, str(output)]) == 2
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert last.startswith(f"error: {source}, row 5: wrong number of fields")
    assert main([*command, str(output), "--resume", "--on-error", "skip"]) == 0
    captured = capsys.readouterr()
    assert "4 images with 12 regions, 5 rows read, 1 left out" in captured.out
    assert "images=4" in captured.err
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert main([*command, str(tmp_path / "other"), "--on-error", "skip", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["summary"]["skipped"] == 1
    assert not captured.err
    assert main([*command, str(source)]) == 2  # a file in the place of a folder
    assert capsys.readouterr().err.count("\n") == 1


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    """One shard is in memory, here of three images."""
    monkeypatch.setattr("grounded_attention.dataset_scripts.regions.writer.SHARD_BYTES", 3 * 20 * 2048 * 2)
    rows = [lxmert_fields(sample(str(number), count=20, size=2048)) for number in range(30)]
    sources = [write_tsv(tmp_path / f"{count}.tsv", rows[:count]) for count in (3, 30)]
    del rows
    peaks = []
    for source in sources:
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        run(source, tmp_path / source.stem, feature_size=2048)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert pa.total_allocated_bytes() == before
    image = 20 * 2048 * 4
    few, many = peaks
    assert many - few < image / 2
    assert many < 12 * image


def test_real_lxmert_file(shared, output):
    source = shared / "real" / "features" / "train2014_obj36.tsv"
    names = (shared / "real" / "vocab" / "vg_objects_vocab.txt").read_text().splitlines()
    info = run(source, output, feature_size=2048)
    assert (info["images"], info["regions"]) == (6, 216)
    table = RegionTable.open(output)
    table.verify()
    first = table["COCO_train2014_000000132417"]
    assert (first.height, first.width) == (333, 500)
    assert [names[index] for index in first.classes[:3]] == ["sky", "tree", "tree"]
    colours = (shared / "real" / "vocab" / "vg_attributes_vocab.txt").read_text().splitlines()
    assert colours[first.attributes[0]] == "blue"
    assert first.scores[0] == pytest.approx(0.85, abs=0.005)
    assert_allclose(first.boxes[0] * [500, 333, 500, 333], [0, 0, 361.85, 216.98], atol=0.005)
    assert first.features[0].sum(dtype=np.float64) == pytest.approx(1029.5025, abs=0.03)
    for record in source_records(source, "lxmert_tsv"):
        features = np.frombuffer(base64.b64decode(record.decode()["features"]), "<f4").reshape(-1, 2048)
        assert_allclose(table[record.image_id].features, features, rtol=0, atol=0.0149)
