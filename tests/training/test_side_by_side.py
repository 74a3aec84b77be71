# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Jobs in processes of their own: their threads, and what a killed parent leaves behind."""

import os
import signal
import time
from pathlib import Path

import pytest

from grounded_attention.commands.command_line import explain_error
from grounded_attention.training.loop.side_by_side import run_side_by_side
from grounded_attention.training.recipes.recipe import RecipeError
from tests.helpers.warm_python import WarmProcess
from tests.training.progress_jobs import Job, die, divide_by_zero, give_a_wrong_share, note_threads

PARENT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background inherit that it is ignored
from pathlib import Path
from grounded_attention.training.loop.side_by_side import run_side_by_side
from tests.training.progress_jobs import Job, sleep_long
list(run_side_by_side([Job(Path(sys.argv[1]))], 1, sleep_long))
"""


def test_a_mistake_of_the_user_is_one_line_and_a_fault_is_none(tmp_path):
    for work, message in (
        (give_a_wrong_share, "options.exchanged: Input should be less than or equal to 1, found 3"),
        (divide_by_zero, None),
    ):
        with pytest.raises((ValueError, ZeroDivisionError)) as caught:
            list(run_side_by_side([Job(tmp_path / "job")], 1, work))
        assert explain_error(caught.value) == message


def test_a_job_that_is_killed_is_one_line(tmp_path):
    with pytest.raises(RecipeError, match=r"dead: a process was killed.*dead/log.txt") as caught:
        list(run_side_by_side([Job(tmp_path / "dead")], 1, die))
    assert "fewer workers" in explain_error(caught.value)


def test_jobs_share_the_threads_and_one_alone_has_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    first = Job(tmp_path / "first")
    jobs = [first, Job(tmp_path / "second", first), Job(tmp_path / "third", first)]
    finished = [job.directory.name for job in run_side_by_side(jobs, 2, note_threads)]
    assert finished[0] == "first"
    assert sorted(finished) == ["first", "second", "third"]
    threads = {name: (tmp_path / name / "threads").read_text() for name in finished}
    assert threads == {"first": "2", "second": "2", "third": "2"}


def test_a_killed_parent_takes_its_jobs_along(tmp_path):
    root = Path(__file__).parents[2]
    parent = WarmProcess(PARENT, [tmp_path / "job"], cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    note = tmp_path / "job" / "pid"
    wait_until(lambda: note.is_file() and note.read_text())
    pid = int(note.read_text())
    assert is_running(pid)
    parent.kill()
    parent.communicate()
    wait_until(lambda: not is_running(pid))


def test_an_interrupted_parent_ends_its_jobs(tmp_path):
    root = Path(__file__).parents[2]
    parent = WarmProcess(PARENT, [tmp_path / "job"], cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    note = tmp_path / "job" / "pid"
    wait_until(lambda: note.is_file() and note.read_text())
    os.kill(parent.pid, signal.SIGINT)  # the parent alone, as the stop button of an editor does
    _, errors = parent.communicate(60)
    assert parent.returncode not in (0, None)
    assert "KeyboardInterrupt" in errors
    wait_until(lambda: not is_running(int(note.read_text())))


def wait_until(holds, seconds=240):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.1)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
