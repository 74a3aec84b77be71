# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of a builder become Arrow tables as `datasets` itself encodes them; a value that does not fit is named."""

import json
import re

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, List, Value

from grounded_attention.dataset_scripts.builders.local_builder import ROWS, LocalBuilder, rows_to_table
from grounded_attention.dataset_scripts.files.errors import DataError

FEATURES = datasets.Features(
    {
        "row_id": Value("string"),
        "number": Value("int32"),
        "label": ClassLabel(names=["no", "yes"]),
        "box": List(Value("float32")),
        "phrases": List(
            {"text": Value("string"), "boxes": List(List(Value("float32"))), "kind": ClassLabel(names=["a"])}
        ),
    }
)


def row(number, /, **changes):
    phrases = [{"text": f"é {n}", "boxes": [[0.1 * n, 0.25, 0.5, 1]] * n, "kind": 0} for n in range(number % 3)]
    given = {"row_id": f"r{number}", "number": number, "label": ("no", "yes", 1)[number % 3], "box": [0.1, number]}
    return {**given, "phrases": phrases, **changes}


class Rows(LocalBuilder):
    """A builder of the rows that the test gives."""

    given = ()

    def _info(self):
        return datasets.DatasetInfo(features=FEATURES)

    def _split_generators(self, dl_manager):
        return [datasets.SplitGenerator(name="train", gen_kwargs={})]

    def _generate_rows(self, report):
        yield from self.given


def build(tmp_path, rows, **options):
    builder = Rows(cache_dir=str(tmp_path), data_dir=str(tmp_path / "data"))
    builder.given = rows
    builder.download_and_prepare(**options)
    return builder.as_dataset("train")


@pytest.mark.parametrize("count", [1, ROWS, ROWS + 1])
def test_rows_are_those_that_datasets_encodes(tmp_path, count):
    rows = [row(number) for number in range(count)]
    found = build(tmp_path, rows)
    encoded = [FEATURES.encode_example(each) for each in rows]
    expected = datasets.Dataset.from_dict({name: [each[name] for each in encoded] for name in FEATURES}, FEATURES)
    assert found.features == FEATURES
    assert found.to_list() == expected.to_list()


def test_numbers_of_numpy_and_missing_values(tmp_path):
    given = [row(4, number=np.int64(4), box=np.array([0.1, 4], np.float32)), row(5, number=None, phrases=None)]
    first, second = build(tmp_path, given).to_list()
    assert first == build(tmp_path / "plain", [row(4)]).to_list()[0]
    assert second["number"] is None
    assert second["phrases"] is None


def test_streamed_rows_are_the_same(tmp_path):
    builder = Rows(cache_dir=str(tmp_path), data_dir=str(tmp_path / "data"))
    builder.given = [row(number) for number in range(5)]
    assert list(builder.as_streaming_dataset("train")) == build(tmp_path / "whole", builder.given).to_list()


@pytest.mark.parametrize(
    "row_id, changes, found",
    [
        ("r2", '{"number": 2147483648}', "column number: .*found 2147483648, expected int32"),
        ("\ud800", "{}", r"column row_id: .*surrogates not allowed: found '.ud800', expected string"),
        (
            "r2",
            r'{"phrases": [{"text": "\udcff", "boxes": [], "kind": 0}]}',
            "column phrases: .*surrogates not allowed",
        ),
        (7, "{}", "column row_id: .*found 7, expected string"),
        ("r2", '{"box": ["x"]}', "column box: .*found .'x'., expected list"),
    ],
)
def test_a_value_that_does_not_fit_is_named(row_id, changes, found):
    rows = [row(1), row(2, row_id=row_id, **json.loads(changes)), row(3)]
    with pytest.raises(DataError, match="^row " + re.escape(repr(row_id)) + f": {found}"):
        rows_to_table(rows, FEATURES)
