# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Both tables are written, measured in processes of their own, deleted; a disk that is too small is refused before."""

import json
import sys
from pathlib import Path

import datasets
import pytest

from benchmarks import region_scale as benchmark
from grounded_attention.dataset_scripts.regions.table import RegionTable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_tables_and_captions_fit_together(tmp_path):
    benchmark.write_table(tmp_path, 50)
    benchmark.write_captions(tmp_path / benchmark.CAPTIONS, 50)
    table = RegionTable.open(tmp_path)
    captions = datasets.Dataset.from_file(str(tmp_path / benchmark.CAPTIONS))
    table.verify()
    assert len(table) == len(set(table.ids)) == 50 and captions["image_id"] == table.ids
    assert table.feature_size == benchmark.FEATURE_SIZE and len(table[benchmark.image_id(7)]) == benchmark.REGIONS
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size < 50 * benchmark.ROW_BYTES + 5000  # 5,000 bytes: schemas and manifest


def test_figures_of_both_tables(tmp_path, monkeypatch, capsys, apart):
    monkeypatch.setattr(benchmark, "SMALL", 20)
    assert (
        benchmark.main(["--images", "60", "--reads", "90", "--rounds", "1", "--folder", str(tmp_path), "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    [small], [large] = found["small"], found["large"]
    assert set(small) == set(large) and small["at random, rows per second"] > 0
    assert apart == [benchmark.measure] * 2
    assert not list(tmp_path.iterdir()), "nothing is left"


def test_ratios():
    small = [{"open, seconds": 1.0}, {"open, seconds": 2.0}, {"open, seconds": 2.0}]
    large = [{"open, seconds": 4.0}, {"open, seconds": 6.0}, {"open, seconds": 10.0}]
    head, line = benchmark.report(small, large, 3000)
    assert head.split() == ["10,000", "3,000", "ratio"] and line.split()[2:] == [
        "2",
        "6",
        "4.00",
        "(3.00",
        "to",
        "5.00)",
    ]


def test_too_little_disk_is_refused_before_writing(tmp_path, capsys):
    assert benchmark.main(["--images", "9000000", "--folder", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert (
        "the tables may not fit" in error and "at most 8 GB (--disk)" in error and not list(Path(tmp_path).iterdir())
    )
