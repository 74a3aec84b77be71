# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The lock of a folder: one process at a time, and none after its process has ended, however it ended."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from grounded_attention.utils import processes
from grounded_attention.utils.processes import LOCK, FolderInUse, folder_lock

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, os
from grounded_attention.utils.processes import folder_lock
with folder_lock(sys.argv[1], doing="trains here", hint="wait"):
    {before}
    print("locked", flush=True)
    sys.stdin.read()
"""
COUNT = """
import sys
from pathlib import Path
from grounded_attention.utils.processes import folder_lock
for _ in range(20):
    with folder_lock(sys.argv[1], doing="counts", hint="wait", wait=True):
        file = Path(sys.argv[1]) / "count"
        file.write_text(str(int(file.read_text()) + 1))
"""


def start(script, folder):
    command = [sys.executable, "-c", script, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, **pipes)


@contextmanager
def holder(folder, before="pass"):
    process = start(HOLD.format(before=before), folder)
    try:
        assert process.stdout.readline() == "locked\n", process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def little_patience(monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.1)


def lock(folder, **options):
    return folder_lock(folder, doing="trains here", hint="wait for it", **options)


def test_the_second_process_is_refused(tmp_path):
    with holder(tmp_path) as first:
        with pytest.raises(FolderInUse) as error, lock(tmp_path):
            pass
        assert str(error.value) == f"{tmp_path}: another process trains here: wait for it"
        first.communicate("")
    with lock(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_the_second_process_can_wait(tmp_path, capsys):
    with holder(tmp_path) as first:
        threading.Timer(0.5, first.kill).start()
        with lock(tmp_path, wait=True):
            assert first.wait(5) != 0
    assert capsys.readouterr().err.count("waiting: ") == 1


@pytest.mark.parametrize("before", ["pass", "os.fork() or (sys.stdin.read(), os._exit(0))"])
def test_a_killed_process_has_no_lock_even_if_its_child_lives(tmp_path, before):
    with holder(tmp_path, before) as first:
        os.kill(first.pid, signal.SIGKILL)
        os.waitpid(first.pid, 0)
        assert (tmp_path / LOCK).is_file()
        with lock(tmp_path):
            pass


def test_no_two_processes_are_inside(tmp_path):
    """Each of four processes adds 1 to a file twenty times; without the lock some of that is lost."""
    (tmp_path / "count").write_text("0")
    running = [start(COUNT, tmp_path) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4
    for process in running:
        process.communicate()
    assert (tmp_path / "count").read_text() == "80"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_with_a_warning(tmp_path, capsys, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock(tmp_path):
        pass
    assert "no lock" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "file of another program"])
def test_a_file_that_is_no_lock_of_ours_is_kept(tmp_path, kind):
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    place = tmp_path / "folder" / LOCK
    place.parent.mkdir()
    make = {
        "symbolic link": lambda: place.symlink_to(precious),
        "hard link": lambda: place.hardlink_to(precious),
        "file of another program": lambda: shutil.copyfile(precious, place),
    }
    make[kind]()
    with lock(place.parent):
        pass
    assert precious.read_text() == "years of work"
    assert place.read_text() == "years of work"
