# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints: only complete ones are resumed from."""

import pytest

from training.checkpoint import MANIFEST, is_complete, last_complete_checkpoint, seal


def checkpoint(run, step, sealed=True):
    directory = run / f"checkpoint-{step}"
    (directory / "shards").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"weights" * step)
    (directory / "shards" / "0").write_bytes(b"optimizer")
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
    older, newer = checkpoint(tmp_path, 1), checkpoint(tmp_path, 2)
    file = newer / name
    file.write_bytes(file.read_bytes()[:-1] + b"?")  # same size, other content
    assert not is_complete(newer) and last_complete_checkpoint(tmp_path) == older
    file.unlink()
    assert not is_complete(newer)


def test_a_torn_manifest_is_no_manifest(tmp_path):
    directory = checkpoint(tmp_path, 3)
    manifest = directory / MANIFEST
    manifest.write_text(manifest.read_text()[:-5])
    assert not is_complete(directory) and last_complete_checkpoint(tmp_path) is None


def test_no_directory_no_checkpoint(tmp_path):
    assert last_complete_checkpoint(tmp_path / "absent") is None
