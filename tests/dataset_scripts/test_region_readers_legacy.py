# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Each legacy format comes back as what was written; damaged files end in one clear error."""

import json
import pickle
import re
import sys
import zipfile

import h5py
import lmdb
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from grounded_attention.commands.import_regions import import_regions, main
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.records import id_text, plain
from grounded_attention.dataset_scripts.regions.readers import read_regions, recognise
from grounded_attention.dataset_scripts.regions.table import RegionTable
from tests.helpers.legacy_region_files import (
    CASES,
    vl_bert_json,
    volta_item,
    write_gqa,
    write_hengyuan,
    write_json_folder,
    write_lmdb,
    write_volta_arrays,
    write_volta_h5,
    write_zip,
)
from tests.helpers.region_samples import SIZE, lxmert_fields, sample, write_tsv

IDS = ["9", "300104", "147295", "321486"]


def rows_of(name):
    counts = (3, 3, 3, 3) if name == "hengyuan fixed" else (3, 2, 1, 3)
    return list(map(sample, IDS, counts))


@pytest.fixture
def output(tmp_path):
    return tmp_path / "regions"


def run(source, output, **options):
    return import_regions([source], "auto", output, feature_size=SIZE, progress=False, **options)


@pytest.mark.parametrize("name", CASES)
def test_format_comes_back(tmp_path, name):
    format, write, optional = CASES[name]
    rows = {regions.image_id: regions for regions in rows_of(name)}
    source = write(tmp_path, list(rows.values()))
    assert recognise(source)[0] == format
    found = {regions.image_id: regions for regions in read_regions(source, format, SIZE)}
    assert found.keys() == rows.keys()
    for image_id, expected in rows.items():
        regions = found[image_id]
        assert (regions.width, regions.height) == (expected.width, expected.height)
        assert_allclose(regions.boxes, expected.boxes, atol=1e-6)
        assert_array_equal(regions.features, expected.features.astype(np.float16))
        for array in optional:
            assert_array_equal(getattr(regions, array), getattr(expected, array))
        if not optional:
            assert set(regions.arrays()) == {"boxes", "features"}


@pytest.mark.parametrize("name", ["VL-BERT zip", "ViLBERT multi-task", "MMF lmdb"])
def test_background_column(tmp_path, name):
    columns = 1600 if name == "MMF lmdb" else 1601
    rows = {regions.image_id: regions for regions in rows_of(name)}
    format, write, _ = CASES[name]
    for found in read_regions(write(tmp_path, list(rows.values())), format, SIZE):
        expected = rows[found.image_id]
        assert found.class_probs.shape == (len(expected), columns)
        assert_array_equal(found.classes, expected.classes)
        assert_allclose(found.scores, 0.3, rtol=1e-6)


def test_places_in_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, image_id in zip(("a", "a/b", "ab", "c"), IDS, strict=True):
            archive.writestr(f"{folder}/{image_id}.json", json.dumps(vl_bert_json(sample(image_id))))
        archive.writestr("__MACOSX/a/._9.json", b"\0")
        archive.writestr("readme.txt", "")

    def ids(place):
        return [regions.image_id for regions in read_regions(f"{tmp_path}/x.zip{place}", "vl_bert_zip", SIZE)]

    assert ids("") == IDS
    assert ids("@/a") == IDS[:2]
    assert ids("@/a/9.json") == IDS[:1]
    assert ids("@c/") == IDS[3:]
    with pytest.raises(DataError, match=r"x\.zip, d: no JSON files"):
        ids("@/d")
    with pytest.raises(MissingFileError, match=r"y\.zip: no such file"):
        next(read_regions(f"{tmp_path}/y.zip@/a", "auto", SIZE))


def bad_item(**changes):
    return {**volta_item(sample("bad")), **changes}


BAD_ITEMS = {
    "cut": (pickle.dumps(bad_item())[:-9], "forged pickle"),
    "empty": (b"", "forged pickle"),
    "list": ([1, 2], "not a mapping of fields: found 'list'"),
    "no boxes": (bad_item(boxes=None), "boxes.* is missing"),
    "no size": (bad_item(img_w=None), "image_w is missing"),
    "broken size": (bad_item(img_h=40.5), "img_h is not a positive whole number"),
    "other count": (bad_item(num_objects=4), "boxes has a wrong length"),
    "texts": (bad_item(boxes=np.array([["a"] * 4] * 3)), "boxes is not an array of numbers"),
    "ragged": (bad_item(boxes=[[1, 2], [3]]), "damaged record|boxes"),
    "odd base64": (bad_item(features="AAAA"), "features has a wrong length in bytes"),
    "one class": (bad_item(obj_id=None, obj_conf=None, cls_prob=np.ones((3, 1))), "class probabilities"),
}


@pytest.mark.parametrize("item, message", BAD_ITEMS.values(), ids=BAD_ITEMS)
def test_damaged_lmdb_values(tmp_path, item, message):
    items = {"9": volta_item(sample("9")), "bad": item, "147295": volta_item(sample("147295"))}
    source = write_lmdb(tmp_path, items)
    with pytest.raises(DataError, match=rf"features\.lmdb, key bad: .*({message}).*--on-error skip"):
        run(source, tmp_path / "refuse")
    info = run(source, tmp_path / "skip", on_error="skip")
    assert (info["images"], info["summary"]["skipped"]) == (2, 1)


def test_lmdb_keys(tmp_path, output):
    items = {regions.image_id: volta_item(regions) for regions in rows_of("lmdb")}
    order = [image_id.encode() for image_id in IDS[::-1]]
    source = write_lmdb(tmp_path, items, [*order, b"gone", b""])
    info = run(source, output, on_error="skip")
    assert RegionTable.open(output).ids == IDS[::-1]
    assert "key gone: the entry keys lists this image, but it has no record" in info["summary"]["problems"][0]
    with lmdb.open(str(source)) as environment, environment.begin(write=True) as transaction:
        transaction.delete(b"keys")
    assert run(source / "data.mdb", tmp_path / "unlisted")["images"] == 4


def test_a_folder_of_json_with_damaged_files(tmp_path, output):
    (tmp_path / "json").mkdir()
    folder = write_json_folder(tmp_path / "json", rows_of("json"))
    (folder / "9.json").write_text('{"boxes": ')
    (folder / "147295.json").write_text("[1]")
    info = run(folder, output, on_error="skip")
    assert info["images"] == 2
    assert "9.json, row 4: not JSON" in "".join(info["summary"]["problems"])


@pytest.mark.parametrize("write, size", [(write_zip, -40), (write_volta_h5, 3000), (write_hengyuan, 900)])
def test_files_that_are_cut(tmp_path, output, write, size):
    source = write(tmp_path, rows_of("hengyuan fixed"))
    source.write_bytes(source.read_bytes()[:size])
    with pytest.raises(DataError, match=source.name):
        run(source, output)


@pytest.mark.parametrize(
    "place, content, problem",
    [
        (b"PK\1\2..(.)", b"\x63", r"damaged zip archive: found 'zip file version 9\.9'"),
        (b"PK\1\2.*train/(..)", b"\xff\xfe", "damaged zip archive: found .*can't decode byte 0xff"),
    ],
    ids=["a version that is not known", "a name that is not UTF-8"],
)
def test_a_zip_whose_list_is_damaged(tmp_path, place, content, problem):
    archive = write_zip(tmp_path, [sample("é")])
    whole = bytearray(archive.read_bytes())
    start = re.search(place, whole, re.DOTALL).start(1)
    whole[start : start + len(content)] = content
    archive.write_bytes(whole)
    with pytest.raises(DataError, match=rf"frcnn\.zip: {problem}.*; copy or unpack it again"):
        run(archive, tmp_path / "out")


@pytest.mark.parametrize(
    "compression, before, bits",
    [(zipfile.ZIP_STORED, b'"boxes"', 1), (zipfile.ZIP_LZMA, b"9.json", 0xFF)],
    ids=["checksum", "lzma"],
)
def test_a_damaged_file_of_a_zip_is_left_out(tmp_path, compression, before, bits):
    archive = tmp_path / "frcnn.zip"
    with zipfile.ZipFile(archive, "w", compression) as file:
        for regions in rows_of("zip"):
            file.writestr(f"{regions.image_id}.json", json.dumps(vl_bert_json(regions)))
    content = bytearray(archive.read_bytes())
    content[content.index(before) + 26] ^= bits  # of the file, which begins with 9 bytes of properties in LZMA
    archive.write_bytes(content)
    info = run(archive, tmp_path / "out", on_error="skip")
    assert info["images"] == 3
    assert "frcnn.zip, 9.json: damaged file in the zip" in info["summary"]["problems"][0]


def test_an_index_with_a_row_that_the_features_lack(tmp_path, output):
    source = write_hengyuan(tmp_path, rows_of("hengyuan fixed"))
    (tmp_path / "train36_imgid2idx.pkl").write_bytes(pickle.dumps({9: 0, 5: 77}))
    info = run(source, output, on_error="skip")
    assert info["images"] == 1
    assert "image 5: image_features has no such row" in info["summary"]["problems"][0]


HENGYUAN = (write_hengyuan, "train36_imgid2idx.pkl")
GQA = (write_gqa, "gqa_objects_info.json")


@pytest.mark.parametrize(
    "file, content, message",
    [
        (HENGYUAN, pickle.dumps([1]), "no image ids"),
        (HENGYUAN, pickle.dumps({1: "a"}), "a row is not a number"),
        (HENGYUAN, None, r"train36_imgid2idx\.pkl: no such file"),
        (GQA, b"[1]", r"gqa_objects_info\.json.*not the objects' info"),
        (GQA, b'{"a": 1}', r"gqa_objects_info\.json.*image a: not an object: found 1"),
        (GQA, None, r"gqa_objects_info\.json: no such file"),
    ],
)
def test_files_beside_hdf5_that_are_refused(tmp_path, output, file, content, message):
    write, name = file
    source = write(tmp_path, rows_of("hengyuan fixed"))
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        run(source, output)


def test_hdf5_boxes_and_shares_disagree(tmp_path, output):
    source = write_hengyuan(tmp_path, rows_of("hengyuan fixed"))
    with h5py.File(source, "r+") as file:
        file["spatial_features"][0, 0, 2] *= 0.5
        file["spatial_features"][1] = 0
    info = run(source, output, on_error="skip")
    assert info["images"] == 2
    assert "disagree" in info["summary"]["problems"][0]
    assert "give no image size" in info["summary"]["problems"][1]


def test_unrecognised_content(tmp_path, output, capsys):
    source = tmp_path / "a.tsv"
    source.write_bytes(b"a caption\thttp://x\n")
    with pytest.raises(DataError, match=r"a\.tsv: format not recognised: found \"2 field.*a caption.*--format"):
        recognise(source)
    with pytest.raises(DataError, match="format not recognised"):
        recognise(tmp_path)
    path = write_tsv(tmp_path / "features.json", [lxmert_fields(sample("9"))])  # the suffix has no meaning
    options = ["--output", str(output), "--feature-size", str(SIZE)]
    assert main([str(path), *options]) == 0
    assert "features.json: a first line of 10 fields, read as lxmert_tsv" in capsys.readouterr().err
    assert main([str(source), *options]) == 2
    assert capsys.readouterr().err.startswith(f"error: {source}: format not recognised")


@pytest.mark.parametrize("library, write", [("h5py", write_volta_h5), ("lmdb", write_volta_arrays)])
def test_absent_library(tmp_path, output, monkeypatch, library, write):
    source = write(tmp_path, rows_of("x"))
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DataError, match=rf'{library} is needed.*pip install "grounded-attention\[legacy\]"'):
        run(source, output)


def test_an_index_that_lacks_images_is_reported(tmp_path, caplog):
    """One flipped bit makes two ids of a pickled index equal."""
    source = write_hengyuan(tmp_path, rows_of("hengyuan fixed"))
    assert len(list(read_regions(source, "h5", SIZE))) == 4
    assert not caplog.text
    (tmp_path / "train36_imgid2idx.pkl").write_bytes(pickle.dumps({300104: 1, 147295: 2, 321486: 3}))
    assert len(list(read_regions(source, "h5", SIZE))) == 3
    assert "4 images, but its index names 3" in caplog.text


def change_gqa(folder, field, value):
    """Writes features of GQA whose second image has this value in the file of all images."""
    source = write_gqa(folder, rows_of("GQA"))
    path = folder / "gqa_objects_info.json"
    content = json.loads(path.read_text())
    content = {image_id: content[image_id] for image_id in IDS}
    content[IDS[1]][field] = json.loads(value)
    path.write_text(json.dumps(content))
    return source


@pytest.mark.parametrize(
    "field, value",
    [
        *(("idx", value) for value in ("Infinity", "0.9", "true", '"1"', "-1", "9" * 31, "0")),
        ("file", "3.7"),
        ("file", "true"),
    ],
)
def test_rows_of_gqa_that_are_no_rows(tmp_path, field, value):
    source = change_gqa(tmp_path, field, value)
    with pytest.raises(DataError, match=rf"gqa_objects_info\.json, image {IDS[1]}: .*{field}"):
        list(read_regions(source, "h5", SIZE))


def test_images_of_gqa_in_another_file(tmp_path, caplog):
    source = change_gqa(tmp_path, "file", "7")
    assert len(list(read_regions(source, "h5", SIZE))) == 3
    assert "its index names 3" in caplog.text


NUMBERS = [132417, np.uint32(132417), 132417.0, np.array(132417), np.array([132417])]
TEXTS = [b"132417", np.bytes_(b"132417"), np.str_("132417"), "b'132417'", (132417,), [b"132417"]]


@pytest.mark.parametrize("image_id", [*NUMBERS, *TEXTS])
def test_ids_of_every_type_are_texts(image_id):
    assert id_text(image_id) == "132417"


@pytest.mark.parametrize("image_id", [None, True, 1.5, (1, 2), b"\xff", {}, np.array([1, 2])])
def test_what_is_no_id_is_refused(image_id):
    with pytest.raises(DataError, match="not an id"):
        id_text(image_id)


def test_values_of_other_tools_are_plain():
    given = {b"a": np.int64(7), "b": (np.float32(0.5), b"x"), "c": [np.bool_(True), np.array([1, 2])], "d": None}
    assert plain(given) == {"a": 7, "b": [0.5, "x"], "c": [True, [1, 2]], "d": None}
    assert type(plain(given)["a"]) is int
    assert type(plain(given)["c"][0]) is bool
