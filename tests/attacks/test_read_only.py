# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A folder that may not be written, for a user who is not root: one line, and nothing is left behind."""

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest

from tests.campaign.jobs import JOBS, prepare
from tests.campaign.sandbox import run_apart

NOBODY = 65534


@pytest.fixture(scope="module")
def base():
    """A folder that every user may read, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    ended = run_apart(partial(prepare, folder / "base", whole=False), folder / "prepare")
    assert ended.status == 0, ended.err
    for path in (folder / "base").rglob("*"):
        path.chmod(path.stat().st_mode | 0o044)  # safetensors writes files for their owner alone
    yield folder / "base"
    shutil.rmtree(folder)


def as_nobody(work, base):
    if os.getuid() == 0:  # to root all folders are open
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return work(base)


@pytest.mark.parametrize("name", ["rows", "scenes", "import", "audit", "evaluate"])
def test_a_folder_that_may_not_be_written(base, name):
    place = base.parent / name
    place.mkdir()
    place.chmod(0o555)
    ended = run_apart(partial(as_nobody, JOBS[name].work, base), place)
    assert ended.refused() and "Permission denied" in ended.err, (ended.status, ended.err[-2000:])
    assert not list(place.iterdir())
