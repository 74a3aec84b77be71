# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Long jobs over data: the same rows from every engine, whatever the batches are."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

from grounded_attention.dataset_scripts.regions.rows import Regions
from grounded_attention.dataset_scripts.regions.table import RegionTable, RegionTableWriter
from grounded_attention.heads.scores import read_scores
from tests.helpers import job_models
from tests.helpers.job_models import JOBS, KEYS, by_key, check_scores, dataset


def close(found, expected):
    """Whether rows are equal, numbers up to the rounding of batches of another size."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            if isinstance(one[name], float):
                assert one[name] == pytest.approx(other[name], abs=1e-5), name
            else:
                assert one[name] == other[name], name


@pytest.fixture(scope="module")
def whole():
    """What each job makes of all rows at once."""
    columns = dataset().to_dict()
    return {name: job(columns) for name, job in JOBS.items()}


@pytest.mark.parametrize("name", KEYS)
def test_two_processes_of_a_data_set_make_the_same_rows(name, whole):
    mapped = dataset().map(JOBS[name], batched=True, batch_size=5, num_proc=2, load_from_cache_file=False)
    close(by_key(mapped.with_format("arrow")[:], name), by_key(whole[name], name))


@pytest.mark.parametrize("name", JOBS)
def test_a_job_travels_without_its_models(name, whole):
    job = JOBS[name]
    assert job.made is job.made
    sent = pickle.dumps(job)
    assert len(sent) < 3000
    assert pickle.loads(sent).schema == whole[name].schema
    assert pickle.dumps(pickle.loads(sent)) == sent, "a data set's cache knows a job by this"


@pytest.mark.parametrize("name", JOBS)
def test_no_rows_are_a_table_without_rows(name):
    columns = {key: [] for key in dataset(1).column_names}
    table = JOBS[name](columns)
    assert table.schema == JOBS[name].schema
    assert len(table) == (name == "scores")  # it counts that there were none


def test_arrays_of_numpy_are_refused():
    with pytest.raises(ValueError, match="column image_id"):
        JOBS["regions"]({"image_id": np.array(["a"])})


def test_a_picture_that_cannot_be_used_has_a_row(whole):
    columns = dataset().to_dict()
    columns["image"][3] = {"bytes": b"no picture", "path": None}
    job = job_models.ExtractRegions(job_models.Extractor, on_error="skip")
    table = job(columns)
    good = [row for row in whole["regions"].to_pylist() if row["image_id"] != "i03"]
    assert [row for row in table.to_pylist() if row["problem"] is None] == good
    [bad] = table.filter(pa.compute.is_valid(table["problem"])).to_pylist()
    assert bad["image_id"] == "i03" and bad["features"] is None
    with pytest.raises(ValueError, match="i03"):
        Regions.from_row(bad)
    with pytest.raises(ValueError, match="i03"):
        JOBS["regions"](columns)


def test_rows_of_regions_become_a_table(whole, tmp_path):
    with RegionTableWriter(tmp_path / "table", {"detector": "stub"}) as writer:
        for row in whole["regions"].to_pylist():
            writer.write(Regions.from_row(row))
    table = RegionTable.open(tmp_path / "table")
    for row in dataset():
        [found] = job_models.Extractor().extract([job_models.ExtractRegions(None).open_image(row["image"])])
        record = table[row["image_id"]]
        assert_array_equal(record.features, found.features)
        assert_array_equal(record.boxes, found.boxes)
        assert (record.width, record.height) == (found.width, found.height)


def test_scores_in_parts_are_those_of_a_ranking(whole):
    mapped = dataset().map(JOBS["scores"], batched=True, batch_size=4, load_from_cache_file=False)
    check_scores(mapped.shuffle(seed=0))
    check_scores(whole["scores"].to_pylist())


def test_scores_of_two_models_are_refused(whole):
    other = whole["scores"].to_pylist()
    other[0] = {**other[0], "counted": other[0]["counted"].replace("0.", "0.1", 1)}
    assert other[0] != whole["scores"].to_pylist()[0]
    with pytest.raises(ValueError, match="2 kinds of models"):
        read_scores([*whole["scores"].to_pylist(), *other])
    with pytest.raises(ValueError, match="0 kinds of models"):
        read_scores([])


@pytest.mark.parametrize(
    "make, wrong",
    [
        (lambda: job_models.ExtractRegions(job_models.Extractor, on_error="ignore"), "on_error='ignore'"),
        (lambda: job_models.LabelCaptions(job_models.Grounder, None, on_error=None), "on_error=None"),
        (lambda: job_models.LabelCaptions(job_models.Grounder, None, batch_size=-1), "batch_size=-1"),
    ],
)
def test_wrong_options_are_refused_before_any_row(make, wrong):
    with pytest.raises(ValueError, match=wrong):
        make()


@pytest.mark.parametrize("name", ["regions", "labels", "scores"])
def test_rows_without_an_id_are_refused_by_row_and_column(name):
    columns = dataset(3).to_dict()
    columns["image_id"][1] = None
    with pytest.raises(ValueError, match="row 1 of the batch: column image_id: found None"):
        JOBS[name](columns)
    del columns["image_id"]
    with pytest.raises(ValueError, match="row 0 of the batch: column image_id: the columns are caption_id"):
        JOBS[name](columns)


def test_two_pictures_of_one_id_are_refused():
    columns = dataset(2).to_dict()
    columns["image_id"] = ["same", "same"]
    with pytest.raises(ValueError, match="same"):
        JOBS["scores"](columns)


def test_a_caption_that_two_batches_have_is_refused(whole):
    row = job_models.rows(1)[0]
    shared = {key: row[key] for key in ("image_id", "image", "phrases")} | {
        "captions": [row["text"]],
        "caption_ids": [7],
    }
    table = JOBS["scores"].table([shared])
    assert read_scores(table.to_pylist()).about["phrases"]["judged"] == 2
    with pytest.raises(ValueError, match="counted 2 times"):
        read_scores([*table.to_pylist(), *table.to_pylist()])
    with pytest.raises(ValueError, match="counted 2 times"):
        read_scores(JOBS["scores"].table([shared, shared]).to_pylist())


@pytest.mark.parametrize("rows", [lambda table: table, lambda table: [{"a": 1}], lambda table: table.to_batches()])
def test_scores_in_another_form_are_refused(whole, rows):
    with pytest.raises(ValueError, match="to_pylist"):
        read_scores(rows(whole["scores"]))


def test_a_picture_inside_of_messages_is_read_too(whole):
    row = job_models.rows(1)[0]
    content = [{"type": "image", "image": row["image"]}, {"type": "text", "text": row["text"]}]
    inside = {"id": row["id"], "messages": [{"role": "user", "content": content}], "answer": row["answer"]}
    outside = {key: row[key] for key in ("id", "image", "text", "answer")}
    found, expected = (JOBS["answers"].table([each]).to_pylist() for each in (inside, outside))
    assert found
    close(found, expected)


@pytest.mark.parametrize("name", ["regions", "labels", "answers"])
def test_rows_without_a_picture_are_refused(name):
    columns = dataset(2).to_dict()
    columns["img"] = columns.pop("image")
    with pytest.raises(ValueError, match="image"):
        JOBS[name](columns)


def test_columns_that_are_none_are_refused():
    columns = dataset(2).to_dict()
    for batch, message in (
        ([columns], "type list"),
        ({**columns, "image_id": "i00"}, "batched=True"),
        ({**columns, "image_id": ["i00"]}, "unequal length"),
    ):
        with pytest.raises(ValueError, match=message):
            JOBS["regions"](batch)
