# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Symbolic and hard links: no command writes through one, or pushes what is behind it, if that is somebody else's."""

import os
from unittest.mock import Mock

import datasets
import pytest
from huggingface_hub import HfApi, RepoUrl

from grounded_attention.commands import push, push_space
from grounded_attention.utils.safe_paths import own_files
from tests.campaign.jobs import JOBS, prepare
from tests.helpers.tiny_vgp import tiny_model

# Jobs, and files that they write.
TARGETS = """
train run/direct/model.safetensors
train run/recipe.json
train run/.lock
rows built/vgp-test.parquet
scenes drawn/vocab.txt
scenes drawn/.lock
import regions/regions-00000.arrow
import regions/regions.index.arrow
audit audited/heads.json
audit audited/heads.csv
evaluate measured/metrics.json
pseudo_labels labels/pseudo_labels.json
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    cache = datasets.config.HF_DATASETS_CACHE
    prepare(folder, whole=False)
    yield folder
    datasets.config.HF_DATASETS_CACHE = cache


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("target", TARGETS.strip().splitlines())
def test_the_file_behind_a_link_stays(base, tmp_path, monkeypatch, capsys, target, link):
    name, file = target.split()
    precious = tmp_path / "thesis.tex"
    precious.write_text("years of work")
    place = tmp_path / "work" / file
    place.parent.mkdir(parents=True)
    link(precious, place)
    monkeypatch.chdir(tmp_path / "work")
    status = JOBS[name].work(base)
    assert precious.read_text() == "years of work"
    if status:
        assert status == 2
        assert capsys.readouterr().err.count("error: ") == 1


def push_model(folder):
    return push.main([str(folder), "org/model", "--tokenizer", str(folder / "vocab.txt")])


def push_page(folder):
    return push_space.main(["org/page", "--model", str(folder)])


@pytest.mark.parametrize("command", [push_model, push_page])
@pytest.mark.parametrize("name", ["notes.txt", "model-00002.safetensors", "deep/notes.json"])
def test_a_file_behind_a_link_is_not_pushed(tmp_path, monkeypatch, capsys, command, name):
    """A checkpoint of a stranger may have a link to a private file of the one who pushes it on."""
    (tmp_path / "secret").write_text("private")
    folder = tmp_path / "models--org--model" / "snapshots" / "1"
    tiny_model().save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ndog")
    blobs = folder.parents[1] / "blobs"
    blobs.mkdir()
    (folder / "config.json").rename(blobs / "1")
    (folder / "config.json").symlink_to("../../blobs/1")  # as in the cache of the Hub
    assert len(own_files(folder)) == len(list(folder.iterdir()))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    commit = Mock()
    monkeypatch.setattr("grounded_attention.utils.project.require", lambda module: None)
    monkeypatch.setattr(HfApi, "create_commit", commit)
    monkeypatch.setattr(HfApi, "whoami", Mock(return_value={"name": "org"}))
    monkeypatch.setattr(HfApi, "create_repo", Mock(return_value=RepoUrl("https://huggingface.co/org/model")))
    assert command(folder) == 2
    assert not commit.called
    assert f"{name}: found a link to {tmp_path / 'secret'}" in capsys.readouterr().err
