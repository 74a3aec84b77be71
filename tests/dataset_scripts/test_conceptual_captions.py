# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from grounded_attention.dataset_scripts.builders.conceptual_captions import ConceptualCaptions, caption_rows
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTableWriter
from tests.helpers.built import built

ROWS = ['a "quoted cat', "the 5' dog , \u2028 asleep ", "bird"]
URLS = [f"http://x.org/{n}.jpg?a=1,2" for n in range(3)]
NAMES = {
    "train": "Train_GCC-training.tsv",
    "validation": "Validation_GCC-1.1.0-Validation.tsv",
    "labelled": "Image_Labels_Subset_Train_GCC-Labels-training.tsv",
}


def write(folder, name, lines):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def write_tsv(folder, train=None, validation=("x\thttp://y",)):
    write(folder, NAMES["train"], train or [f"{text}\t{url}" for text, url in zip(ROWS, URLS, strict=True)])
    return write(folder, NAMES["validation"], validation)


def write_table(folder, ids):
    with RegionTableWriter(folder, {"source": "test"}) as writer:
        for image_id in ids:
            boxes = np.array([[0, 0, 1, 1]], np.float32)
            features = np.ones((1, 4), np.float32)
            writer.write(Regions(image_id=image_id, width=2, height=2, boxes=boxes, features=features))
    return folder


def build(data_dir, tmp_path, name="tsv", **options):
    cache = str(tmp_path / "cache")
    return built(ConceptualCaptions, data_dir, cache, config_name=name, **options)


def test_rows_by_number_and_literal_quotes(tmp_path):
    rows = build(write_tsv(tmp_path / "data"), tmp_path).as_dataset()
    assert {split: len(data) for split, data in rows.items()} == {"train": 3, "validation": 1}
    assert rows["train"]["image_id"][:] == ["00000000", "00000001", "00000002"]
    assert rows["train"]["text"][:] == ['a "quoted cat', "the 5' dog , \u2028 asleep", "bird"]
    assert rows["train"]["url"][:] == URLS
    assert rows["train"]["caption_id"][:] == ["train-0", "train-1", "train-2"]
    assert rows["validation"][0]["caption_id"] == "val-0"


def test_ids_by_checksum_of_the_address(tmp_path):
    lines = [f"{text}\t{url}" for text, url in zip(["a", "b", "", "c"], [*URLS, URLS[0]], strict=True)]
    builder = build(write_tsv(tmp_path / "data", lines), tmp_path, image_id_format="crc32", splits="train")
    rows = builder.as_dataset("train")
    assert rows["image_id"][:] == [str(zlib.crc32(url.encode())) for url in (URLS[0], URLS[1], URLS[0])]
    counts = {"rows": 4, "rows_without_words": 1, "rows_that_share_an_image_id": 2}
    assert counts.items() <= builder.report["train"].items()
    assert builder.report["train"]["examples"] == {"rows_without_words": ["row 2"]}


def test_rows_without_image_are_skipped_by_table_and_by_list(tmp_path):
    data = write_tsv(tmp_path / "data")
    table = write_table(tmp_path / "regions", ["00000002", "00000001", "7"])
    builder = build(data, tmp_path, regions=str(table), splits="train")
    assert builder.as_dataset("train")["text"][:] == ["the 5' dog , \u2028 asleep", "bird"]
    assert builder.report["train"]["rows_without_image"] == 1
    listed = tmp_path / "list.txt"
    listed.write_text("00000000\n\n 00000002\r\n")
    both = build(data, tmp_path, regions=str(table), image_list=str(listed), splits="train")
    assert both.as_dataset("train")["image_id"][:] == ["00000002"]
    # The list is part of what the data set is made from.
    listed.write_text("00000001\n")
    again = build(data, tmp_path, regions=str(table), image_list=str(listed), splits="train")
    assert again.as_dataset("train")["image_id"][:] == ["00000001"]


def test_labelled_rows(tmp_path):
    line = f"a cat\t{URLS[0]}\tcat,pet animal\t/m/01,/m/02\t0.9,0.25"
    data = write(tmp_path / "data", NAMES["labelled"], [line, f"b\t{URLS[1]}\t\t\t"])
    first, second = build(data, tmp_path, "labelled").as_dataset("train")
    assert first == {
        "image_id": str(zlib.crc32(URLS[0].encode())),
        "caption_id": "train-0",
        "text": "a cat",
        "url": URLS[0],
    }
    assert second["text"] == "b"


def test_json_lines_of_vl_bert(tmp_path):
    record = {"caption": ["a", "cat", "."], "frcnn": "train_frcnn.zip@/00000012.json"}
    lines = [json.dumps({"image": "train_image.zip@/00000012.jpg", **record})]
    data = write(tmp_path / "data", "train_frcnn.json", lines)
    [row] = build(data, tmp_path, "json_lines", splits="train").as_dataset("train")
    assert row == {
        "image_id": "00000012",
        "caption_id": "train-0",
        "text": "a cat .",
        "image": "train_image.zip@/00000012.jpg",
    }


@pytest.mark.parametrize(
    "line, found", {"only a caption": "'1 columns", "a\tb\tc": "'3 columns", "a\t ": "", "": ""}.items()
)
def test_wrong_columns_name_their_line(tmp_path, line, found):
    with pytest.raises(DataError, match=rf"training\.tsv, line 2: .*{found}"):
        build(write_tsv(tmp_path / "data", ["a\thttp://b", line]), tmp_path)


def test_too_few_columns_of_the_labelled_file(tmp_path):
    data = write(tmp_path / "data", NAMES["labelled"], [f"a\t{URLS[0]}\tcat\t/m/01"])
    with pytest.raises(DataError, match=r"line 1: .*found '4 columns"):
        build(data, tmp_path, "labelled")


@pytest.mark.parametrize(
    "line, message",
    {
        '{"image": "x.jpg", "caption": ["a"]': "line 1: not JSON",
        "[]": "line 1: not an object",
        '{"image": "x.jpg", "frcnn": "x"}': "caption is missing",
        '{"image": "x.jpg", "frcnn": "x", "caption": "a cat"}': "bad caption: found 'a cat', expected a list",
        '{"image": "x.jpg", "frcnn": "x", "caption": [1]}': "expected a list of texts",
    }.items(),
)
def test_bad_json_lines(tmp_path, line, message):
    with pytest.raises(DataError, match=message) as caught:
        build(write(tmp_path / "data", "train_frcnn.json", [line]), tmp_path, "json_lines", splits="train")
    assert "train_frcnn.json, line 1" in str(caught.value)


def test_missing_empty_and_undecodable_files(tmp_path):
    with pytest.raises(MissingFileError, match="does not exist; get Conceptual Captions from https"):
        build(tmp_path / "nowhere", tmp_path)
    data = write_tsv(tmp_path / "data")
    (data / NAMES["validation"]).unlink()
    with pytest.raises(MissingFileError, match=r"Validation_GCC.*is missing; get Conceptual Captions"):
        build(data, tmp_path)
    (data / NAMES["train"]).write_bytes(b"a\thttp://b\n\xff\thttp://b\n")
    with pytest.raises(DataError, match=r"training\.tsv, line 2: not valid UTF-8"):
        build(data, tmp_path, splits="train")
    (data / NAMES["train"]).write_bytes(b"")
    with pytest.raises(DataError, match="the file is empty"):
        build(data, tmp_path, splits="train")
    with pytest.raises(MissingFileError, match="no-list: the file is missing"):
        build(write_tsv(tmp_path / "data"), tmp_path, image_list=str(tmp_path / "no-list"))
    (tmp_path / "list").write_text("1 2\n")
    with pytest.raises(DataError, match="list, line 1: the line has several words"):
        build(data, tmp_path, image_list=str(tmp_path / "list"))
    (tmp_path / "list").write_text("\n")
    with pytest.raises(DataError, match="the list of images is empty"):
        build(data, tmp_path, image_list=str(tmp_path / "list"))


@pytest.mark.parametrize(
    "options, message",
    {
        '{"image_id_format": "number"}': "expected row or crc32",
        '{"name": "labelled", "image_id_format": "row"}': "does not fit the labelled files",
        '{"name": "labelled", "splits": "validation"}': "no such split",
    }.items(),
)
def test_wrong_options_are_named(tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        build(tmp_path, tmp_path, **json.loads(options))


def test_real_excerpts(shared, tmp_path):
    folder = Path(shared) / "real" / "conceptual_captions"
    [path] = folder.glob("*.tsv")
    rows = [row for _, row in caption_rows(path, "tsv", "row")]
    assert len(rows) == 2000
    assert rows[-1]["image_id"] == "00001999"
    assert rows[1]["text"] == "an angler fishes river on a snowy day ."
    with zipfile.ZipFile(folder / "hf_dummy_labeled.zip") as archive:
        [name] = [name for name in archive.namelist() if "Labels" in name]
        (tmp_path / "x.tsv").write_bytes(archive.read(name))
    _, row = next(caption_rows(tmp_path / "x.tsv", "labelled", "crc32"))
    assert set(row) == {"image_id", "text", "url"}


CAPTION_FIRST = "a dog runs\thttp://x/1.jpg\r\nurl\thttps://x/2.jpg\r\n"
ADDRESS_FIRST = "http://x/1.jpg\ta dog runs\r\nhttps://x/2.jpg\turl\r\n"


@pytest.mark.parametrize(
    "text",
    [
        CAPTION_FIRST,
        "caption\turl\r\n" + CAPTION_FIRST,
        '"Raw_Caption"\t"Image URL"\r\n' + CAPTION_FIRST,
        "\ufeffTEXT\tlink \r\n" + CAPTION_FIRST,
        ADDRESS_FIRST,
        "url\tcaption\r\n" + ADDRESS_FIRST,
        '"Image URL"\t"Raw_Caption"\r\n' + ADDRESS_FIRST,
        "\ufefflink \tTEXT\r\n" + ADDRESS_FIRST,
    ],
)
@pytest.mark.parametrize("kind", ["row", "crc32"])
def test_names_of_columns_and_their_order_are_recognised(tmp_path, text, kind):
    path = tmp_path / "x.tsv"
    path.write_text(text, encoding="utf-8", newline="")
    (first, one), (second, other) = caption_rows(path, "tsv", kind)
    assert [first, second] == [0, 1]
    assert [one["text"], one["url"]] == ["a dog runs", "http://x/1.jpg"]
    assert [other["text"], other["url"]] == ["url", "https://x/2.jpg"]
    if kind == "row":
        assert [one["image_id"], other["image_id"]] == ["00000000", "00000001"]


@pytest.mark.parametrize("head", ["Legende\tAdresse", "url\turl", "\tcaption\turl", 'a\t"http://x/1.jpg"'])
def test_a_first_line_that_is_no_pair_is_refused(tmp_path, head):
    path = tmp_path / "x.tsv"
    path.write_text(head + "\na dog\thttp://x/1.jpg\n")
    with pytest.raises(DataError, match=r"x\.tsv, line 1.*caption, url"):
        list(caption_rows(path, "tsv", "row"))
