# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Symbolic and hard links in an output folder: no command writes through one into the file of somebody else."""

import os

import datasets
import pytest

from tests.campaign.jobs import JOBS, prepare

# Files that the jobs write.
TARGETS = (
    ("train", "run/direct/model.safetensors"),
    ("train", "run/recipe.json"),
    ("train", "run/.lock"),
    ("rows", "built/vgp-test.parquet"),
    ("scenes", "drawn/vocab.txt"),
    ("scenes", "drawn/.lock"),
    ("import", "regions/regions-00000.arrow"),
    ("import", "regions/regions.index.arrow"),
    ("audit", "audited/audit.json"),
    ("audit", "audited/heads.csv"),
    ("evaluate", "measured/metrics.json"),
    ("pseudo_labels", "labels/pseudo_labels.json"),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    cache = datasets.config.HF_DATASETS_CACHE
    prepare(folder, whole=False)
    yield folder
    datasets.config.HF_DATASETS_CACHE = cache


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize(("name", "file"), TARGETS)
def test_the_file_behind_a_link_stays(base, tmp_path, monkeypatch, capsys, name, file, link):
    precious = tmp_path / "thesis.tex"
    precious.write_text("years of work")
    place = tmp_path / "work" / file
    place.parent.mkdir(parents=True)
    link(precious, place)
    monkeypatch.chdir(tmp_path / "work")
    status = JOBS[name].work(base)
    assert precious.read_text() == "years of work"
    if status:
        assert status == 2 and capsys.readouterr().err.count("error: ") == 1
