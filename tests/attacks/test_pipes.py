# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A pipe in the place of any file: refused in one line, where a plain open would wait for ever."""

import contextlib
import io
import os
from functools import partial
from pathlib import Path

import pytest

from tests.campaign.jobs import prepare
from tests.campaign.readers import READERS
from tests.campaign.sandbox import run_apart

SECONDS = 20


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    ended = run_apart(partial(prepare, folder / "base"), folder / "prepare")
    assert ended.status == 0, ended.err
    return folder / "base"


def read_with_pipes(name, base):
    """In a process of its own: reads with a pipe in the place of one file of each kind, one after another."""
    sound = Path("sound").absolute()
    sound.mkdir()
    READERS[name].make(base, sound)
    files = sorted(path for path in sound.rglob("*") if path.is_file())
    for path in {(path.parent, path.suffix): path for path in files}.values():
        print(path, flush=True)  # the last line names the file of a wait
        content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            status = READERS[name].read(sound)
        path.unlink()
        path.write_bytes(content)
        if status != 0:  # a file that is not read at all, such as a lock, may be a pipe
            assert status == 2 and printed.getvalue().count("error: ") == 1, (path, printed.getvalue())


@pytest.mark.parametrize("name", [name for name in READERS if not READERS[name].slow])
def test_a_pipe_is_refused(base, tmp_path, name):
    ended = run_apart(partial(read_with_pipes, name, base), tmp_path / "work", seconds=SECONDS)
    assert ended.status == 0, (ended.status, ended.out[-300:], ended.err[-2000:])
