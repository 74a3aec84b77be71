# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import numpy as np
import pytest

from grounded_attention.dataset_scripts.builders.vgp import VGP
from grounded_attention.dataset_scripts.builders.vgp_pairs import nearest_negatives, nearest_rows, random_negatives
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from tests.dataset_scripts.entities_files import write_vgp
from tests.helpers.built import built

BOXES = np.array([[0, 0, 0.5, 0.5], [0, 0, 1, 1]], dtype=np.float32)


def write_table(path, means):
    """A table whose images have these mean features, spread over two regions."""
    with RegionTableWriter(path, {"source": "test"}) as writer:
        for image_id, mean in means.items():
            features = np.array([np.array(mean) - 0.25, np.array(mean) + 0.25], dtype=np.float16)
            writer.write(Regions(image_id, 100, 50, BOXES, features))
    return path


def test_nearest_rows_equal_a_plain_search(monkeypatch):
    monkeypatch.setattr("grounded_attention.dataset_scripts.builders.vgp_pairs._CHUNK", 3)
    vectors = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
    expected = []
    for i, a in enumerate(vectors):
        cosines = {j: a @ b / (a @ a) ** 0.5 / (b @ b) ** 0.5 for j, b in enumerate(vectors) if j != i}
        expected.append(max(cosines, key=lambda j: cosines[j]))
    assert nearest_rows(vectors) == expected


def test_length_does_not_matter_and_ties_go_to_the_first():
    vectors = np.array([[1, 0], [0, 1], [0.1, 1], [50, 0], [2, 0], [0, 0]], dtype=np.float32)
    assert nearest_rows(vectors)[:5] == [3, 2, 1, 0, 0]
    with_nothing = np.vstack([vectors[:3], [[np.nan, np.nan]]])  # the mean over no regions
    assert nearest_rows(with_nothing)[:3] == [2, 2, 1]


def test_nearest_negatives_of_a_table(tmp_path):
    table = RegionTable.open(write_table(tmp_path / "regions", {"b": [1, 0], "a": [1, 0.5], "c": [0, 1], "z": [1, 0]}))
    assert nearest_negatives(["c", "b", "a"], table) == {"a": "b", "b": "a", "c": "a"}
    assert nearest_negatives(["c"], table) == {}
    with pytest.raises(DataError, match=r"image d: 1 of 2 images have no region features.*negatives=random"):
        nearest_negatives(["d", "a"], table)


def test_random_negatives():
    ids = [str(number) for number in range(30)]
    drawn = random_negatives(ids, 0)
    assert drawn == random_negatives(ids[::-1], 0) != random_negatives(ids, 1)
    for image_id, other in drawn.items():
        assert other != image_id
        assert other in ids
    assert len(set(drawn.values())) > 10
    assert random_negatives(["1"], 0) == {}


def test_hard_negatives_in_the_builder(tmp_path):
    data = write_vgp(tmp_path / "data")
    # Image 4 is nearest to 1, but is of another split.
    means = {"1": [1, 0], "2": [1, 0.5], "3": [0, 1], "4": [1, 0], "5": [0, 1]}
    table = write_table(data / "regions", means)
    builder = built(VGP, data, tmp_path / "cache", regions=str(table))
    lenders = {}
    for row in builder.as_dataset("train"):
        images = {caption.split("#")[0] for caption in row["caption_ids"]} - {row["image_id"]}
        lenders.setdefault(row["image_id"], set()).update(images)
    assert lenders == {"1": {"2"}, "2": {"1"}, "3": {"2"}}
