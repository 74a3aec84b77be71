# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints: only complete ones are resumed from."""

import errno
import os
import shutil
from fnmatch import fnmatch

import pytest

from grounded_attention.training.loop.checkpoint import MANIFEST, is_complete, last_complete_checkpoint, rotate, seal
from grounded_attention.training.publish.hub import LEFT_OUT
from tests.training.runs import read_json


def checkpoint(run, step, sealed=True):
    directory = run / f"checkpoint-{step}"
    (directory / "shards").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"weights" * step)
    (directory / "shards/0").write_bytes(b"optimizer")
    if sealed:
        seal(directory)
    return directory


def test_the_newest_complete_checkpoint_wins(tmp_path):
    checkpoint(tmp_path, 9)
    newest = checkpoint(tmp_path, 100)
    checkpoint(tmp_path, 200, sealed=False)
    assert last_complete_checkpoint(tmp_path) == newest


@pytest.mark.parametrize("name", ["model.safetensors", "shards/0"])
def test_a_torn_or_changed_file_makes_it_incomplete(tmp_path, name):
    older = checkpoint(tmp_path, 1)
    newer = checkpoint(tmp_path, 2)
    file = newer / name
    file.write_bytes(file.read_bytes()[:-1] + b"?")  # same size, other content
    assert not is_complete(newer)
    assert last_complete_checkpoint(tmp_path) == older
    file.unlink()
    assert not is_complete(newer)


def test_the_card_may_change(tmp_path):
    directory = checkpoint(tmp_path, 2, sealed=False)
    (directory / "README.md").write_text("before")
    seal(directory)
    assert "README.md" not in read_json(directory / MANIFEST)
    (directory / "README.md").write_text("after")
    assert is_complete(directory)


def test_a_torn_manifest_is_no_manifest(tmp_path):
    directory = checkpoint(tmp_path, 3)
    manifest = directory / MANIFEST
    for content in (manifest.read_text()[:-5], "{}", "[]", "3", "\0", "[" * 100_000):
        manifest.write_text(content)
        assert not is_complete(directory)
        assert last_complete_checkpoint(tmp_path) is None
    assert last_complete_checkpoint(tmp_path / "absent") is None


def names(run):
    return sorted(path.name for path in run.iterdir())


def test_the_oldest_steps_are_deleted_whatever_the_clock_says(tmp_path):
    for step, seconds in ((9, 3000), (10, 2000), (100, 1000)):  # the clock was set back twice
        os.utime(checkpoint(tmp_path, step), (seconds, seconds))
    rotate(tmp_path, 2, 100, None)
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-100"]
    rotate(tmp_path, None, 100, None)
    assert len(names(tmp_path)) == 2


def test_an_old_checkpoint_that_cannot_be_deleted_is_told(tmp_path, monkeypatch, capsys):
    """One failure is tried again; after two the training goes on."""
    for step in (1, 2, 3):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "a.json").write_text("{}")
    remove = shutil.rmtree
    failures = []

    def broken(path, ignore_errors=False):
        if not failures:
            return remove(path, ignore_errors)
        failures.pop()
        if not ignore_errors:
            raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(shutil, "rmtree", broken)
    failures[:] = ["once"]
    rotate(tmp_path, 2, 3, None)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-2", "checkpoint-3"}
    assert capsys.readouterr().err == ""
    failures[:] = ["once", "again"]
    rotate(tmp_path, 1, 3, None)
    assert capsys.readouterr().err.startswith(f"warning: {tmp_path / 'checkpoint-2'}: this old checkpoint could not")


def test_torn_weights_of_a_killed_process_are_neither_sealed_nor_pushed(tmp_path):
    directory = checkpoint(tmp_path, 1, sealed=False)
    for place in (directory, directory / "shards"):
        (place / ".tmpeLvTlC").write_bytes(b"half of the weights")
    assert any(fnmatch(".tmpeLvTlC", pattern) for pattern in LEFT_OUT)
    seal(directory)
    assert is_complete(directory)
    assert not list(directory.rglob(".tmp*"))
    assert set(read_json(directory / MANIFEST)) == {"model.safetensors", "shards/0"}
