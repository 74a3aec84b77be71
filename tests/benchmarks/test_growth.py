# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows are read lazily, whatever their number; the exponents are those of known curves."""

import itertools
import tracemalloc
from dataclasses import dataclass, field

import pytest
from PIL import Image

from benchmarks import growth as benchmark
from grounded_attention import grounded_rows


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.png"
    Image.new("RGB", benchmark.SIDES).save(path)
    return str(path)


@pytest.mark.parametrize("name", benchmark.SOURCES)
def test_both_files_hold_the_drawn_rows(picture, tmp_path, name, monkeypatch):
    monkeypatch.setattr(benchmark, "PART", 3)
    rows = benchmark.DrawnRows(7, picture)
    source = benchmark.SOURCES[name](rows, tmp_path)
    read = grounded_rows(source, boxes="xyxy pixels").decode(False)
    for row, drawn in itertools.zip_longest(read, rows):
        assert row["image_id"] == drawn["image_id"]
        for phrase, other in zip(row["phrases"], drawn["phrases"], strict=True):
            x1, y1, x2, y2 = other["boxes"][0]
            width, height = benchmark.SIDES
            assert phrase["boxes"][0] == pytest.approx([x1 / width, y1 / height, x2 / width, y2 / height])
    assert benchmark.read_all(source) == 14


@dataclass
class Counted:
    """Rows, and how many of them were read."""

    rows: benchmark.DrawnRows
    read: list[int] = field(default_factory=lambda: [0])

    def __iter__(self):
        for row in self.rows:
            self.read[0] += 1
            yield row


def test_the_first_row_reads_as_many_records_of_any_number(picture):
    counts = []
    for count in (1_000, 100_000):
        rows = Counted(benchmark.DrawnRows(count, picture))
        assert benchmark.read_first(rows)["image_id"] == "0"
        counts.append(rows.read[0])
    assert counts[0] == counts[1]


def peak_of(source):
    tracemalloc.start()
    benchmark.read_all(source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("write", benchmark.SOURCES.values(), ids=benchmark.SOURCES)
def test_reading_six_times_the_rows_takes_no_more_memory(picture, tmp_path, write):
    files = [write(benchmark.DrawnRows(count, picture), tmp_path) for count in (10, 100, 600)]
    peak_of(files[0])  # what is made once
    assert peak_of(files[2]) < 1.3 * peak_of(files[1])


def test_a_row_for_each_missing_picture_is_told_with_few_names(picture):
    rows = [*benchmark.DrawnRows(1, picture)]
    rows += [{**rows[0], "image": f"none{number}.png"} for number in range(50)]
    read = grounded_rows(rows, boxes="xyxy pixels").decode(False)
    assert len([*read]) == 1
    assert read.report.dropped.total() == 50
    assert len(read.report.missing) < 10


@pytest.mark.parametrize("power", [0, 1, 2])
def test_the_exponent_of_a_power(power):
    sizes = [10, 100, 1000]
    assert benchmark.exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power, abs=1e-9)


def test_all_that_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "run_apart", lambda function, *arguments: function(*arguments))
    assert benchmark.main(["--rows", "20", "--ranked", "20", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("20 rows" in line for line in lines) == 5
    assert sum("exponents" in line for line in lines) == 1
