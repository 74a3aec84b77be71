# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes, ids and whole files that are no such thing, given to `regions extract --boxes`: one line each."""

import os

import numpy as np
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
    "null in a box": '{"a": [[1, 2, 3, null]]}',
    "three numbers": '{"a": [[1, 2, 3]]}',
    "nested": '{"a": [[[1, 2, 3, 4]]]}',
    "flat": '{"a": [1, 2, 3, 4]}',
    "an object": '{"a": {"x": 1}}',
    "NaN score": '{"a": {"boxes": [[1, 2, 3, 4]], "scores": [NaN]}}',
    "an image twice": '{"a": [[1, 2, 3, 4]], "a": [[1, 2, 3, 4]]}',
    "an empty id": '{"": [[1, 2, 3, 4]]}',
    "a list": "[1]",
    "nothing": "",
    "no image": "{}",
}
BAD_IDS = ("null", "true", "1.5", "[1]", "{}", '""')


@pytest.mark.parametrize("name", BAD)
def test_a_file_of_boxes(tmp_path, name):
    (tmp_path / "boxes.json").write_text(BAD[name])
    with pytest.raises(DataError, match=r"boxes\.json") as caught:
        read_boxes(tmp_path / "boxes.json")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("image_id", BAD_IDS)
def test_ids_of_another_type(tmp_path, image_id):
    path = tmp_path / "boxes.jsonl"
    path.write_text('{"image_id": "a", "boxes": []}\n' + f'{{"image_id": {image_id}, "boxes": [[1, 2, 3, 4]]}}\n')
    with pytest.raises(DataError, match=r"boxes\.jsonl, line 2"):
        read_boxes(path)


def test_sound_ones_are_read(tmp_path):
    path = tmp_path / "boxes.jsonl"
    path.write_text('{"image_id": 7, "boxes": [[-1, 0, 2.5, 3]]}\n{"image_id": "8", "boxes": []}\n')
    found = read_boxes(path)
    assert list(found) == ["7", "8"]
    assert found["8"]["boxes"].shape == (0, 4)
    np.testing.assert_array_equal(found["7"]["boxes"], np.array([[-1, 0, 2.5, 3]], np.float32))


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
