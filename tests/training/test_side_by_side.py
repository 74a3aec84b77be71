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
from tests.helpers.project_files import ROOT
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


def test_a_mistake_of_the_user_is_one_line(tmp_path):
    with pytest.raises(ValueError) as caught:
        list(run_side_by_side([Job(tmp_path / "job")], 1, give_a_wrong_share))
    assert "options.exchanged: Input should be less than or equal to 1, found 3" in explain_error(caught.value)


def test_a_fault_is_no_mistake_of_the_user(tmp_path):
    with pytest.raises(ZeroDivisionError) as caught:
        list(run_side_by_side([Job(tmp_path / "job")], 1, divide_by_zero))
    assert explain_error(caught.value) is None


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
    for name in finished:
        assert (tmp_path / name / "threads").read_text() == "2"


def start_parent(folder):
    """A process whose job has begun, and the number of the job's process."""
    parent = WarmProcess(PARENT, [folder / "job"], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    note = folder / "job/pid"
    wait_until(lambda: note.is_file() and note.read_text())
    return parent, int(note.read_text())


def test_a_killed_parent_takes_its_jobs_along(tmp_path):
    parent, job = start_parent(tmp_path)
    assert is_running(job)
    parent.kill()
    parent.communicate()
    wait_until(lambda: not is_running(job))


def test_an_interrupted_parent_ends_its_jobs(tmp_path):
    parent, job = start_parent(tmp_path)
    os.kill(parent.pid, signal.SIGINT)  # the parent alone, as the stop button of an editor does
    _, errors = parent.communicate(60)
    assert parent.returncode not in (0, None)
    assert "KeyboardInterrupt" in errors
    wait_until(lambda: not is_running(job))


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
