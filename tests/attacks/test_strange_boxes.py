# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes, ids and whole files that are no such thing, given to `regions extract --boxes`: one line each."""

import os

import pytest

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.boxes import read_boxes

BAD = {
    "NaN": '{"a": [[NaN, 1, 2, 3]]}',
    "infinite": '{"a": [[1, 1, Infinity, 3]]}',
    "infinite as float32": '{"a": [[1, 1, 1e39, 3]]}',
    "infinite as float64": '{"a": [[1, 1, 1e999, 3]]}',
    "400 digits": f'{{"a": [[1, 2, 3, {"9" * 400}]]}}',
    "reversed": '{"a": [[5, 1, 1, 5]]}',
    "upside down": '{"a": [[1, 5, 5, 1]]}',
    "texts": '{"a": [["1", "2", "3", "4"]]}',
    "truth values": '{"a": [[true, false, true, true]]}',
    "null": '{"a": null}',
    "a text": '{"a": "abcd"}',
    "null in a box": '{"a": [[1, 2, 3, null]]}',
    "three numbers": '{"a": [[1, 2, 3]]}',
    "nested": '{"a": [[[1, 2, 3, 4]]]}',
    "flat": '{"a": [1, 2, 3, 4]}',
    "an object": '{"a": {"x": 1}}',
    "another field": '{"a": {"boxes": [[1, 2, 3, 4]], "sizes": 3}}',
    "NaN score": '{"a": {"boxes": [[1, 2, 3, 4]], "scores": [NaN]}}',
    "more scores": '{"a": {"boxes": [[1, 2, 3, 4]], "scores": [1, 2]}}',
    "a number as label": '{"a": {"boxes": [[1, 2, 3, 4]], "labels": [1]}}',
    "an image twice": '{"a": [[1, 2, 3, 4]], "a": [[1, 2, 3, 4]]}',
    "an empty id": '{"": [[1, 2, 3, 4]]}',
    "a list": "[1]",
    "nothing": "",
    "cut": "{",
    "no image": "{}",
}
PROBLEMS = {  # where they name more than the file
    "a text": "image a: not a record of boxes: boxes: ",
    "another field": "image a: not a record of boxes",
    "more scores": "the number of scores",
    "a number as label": r"labels\.0",
    "a list": "not an object",
    "cut": "not JSON",
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_of_boxes(tmp_path, name):
    (tmp_path / "boxes.json").write_text(BAD[name])
    with pytest.raises(DataError, match=rf"boxes\.json.*{PROBLEMS.get(name, '')}") as caught:
        read_boxes(tmp_path / "boxes.json")
    assert len(str(caught.value)) < 1000


LINES = [f'{{"image_id": {image_id}, "boxes": []}}' for image_id in ("null", "true", "1.5", "[1]", "{}", '""')]


@pytest.mark.parametrize("line", [*LINES, '{"boxes": []}', "[]"])
def test_lines_without_an_id(tmp_path, line):
    path = tmp_path / "boxes.jsonl"
    path.write_text('{"image_id": "a", "boxes": []}\n' + line)
    with pytest.raises(DataError, match=r"boxes\.jsonl, line 2: not an image id"):
        read_boxes(path)


def test_a_line_without_boxes(tmp_path):
    path = tmp_path / "boxes.jsonl"
    path.write_text('{"image_id": 1}')
    with pytest.raises(DataError, match="line 1: not a record of boxes"):
        read_boxes(path)


@pytest.mark.parametrize("kind", ["folder", "loop", "device"])
def test_no_file(tmp_path, kind):
    path = tmp_path / "boxes.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        try:
            os.mknod(path, 0o20666, os.makedev(1, 5))  # the numbers of /dev/zero
        except PermissionError:
            path.symlink_to("/dev/zero")
    with pytest.raises((DataError, OSError), match=r"boxes\.json"):
        read_boxes(path)
