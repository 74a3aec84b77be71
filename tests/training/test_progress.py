# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The line that says how far the work is: redrawn in place on a terminal, whole lines anywhere else."""

import os
import pty
import re
import select
from pathlib import Path

import pytest

from grounded_attention.commands.user_errors import explain_error
from grounded_attention.training.loop import side_by_side
from grounded_attention.training.loop.side_by_side import run_side_by_side
from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils import progress
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from tests.helpers.warm_python import WarmProcess, run_python
from tests.training.progress_jobs import Job, die

ROOT = Path(__file__).parents[2]
# Two jobs side by side, then a phase in this process.
SCRIPT = """
import sys
from multiprocessing import get_context
from pathlib import Path
from tests.training.progress_jobs import Job, count_to_four
from grounded_attention.utils import progress
from grounded_attention.training.loop import side_by_side

side_by_side._context = lambda work: get_context("fork")  # a new process would import the libraries again
progress.PRINTED = progress.REDRAWN = 0
jobs = [Job(Path(sys.argv[1], name)) for name in ("first", "second")]
for job in side_by_side.run_side_by_side(jobs, 2, count_to_four):
    print(f"{job.name}: finished", flush=True)
with progress.named("alone"), progress.phase("evaluate", 4) as advance:
    advance()
    advance()
print("the end")
"""


def run_on_terminal(folder):
    """What a terminal of 120 columns gets."""
    master, slave = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    process = WarmProcess(SCRIPT, [folder / "jobs"], cwd=folder, env=environment, terminal=os.ttyname(slave))
    printed = b""
    while process.poll() is None or select.select([master], [], [], 0)[0]:
        if select.select([master], [], [], 0.1)[0]:
            printed += os.read(master, 4096)
    os.close(slave)  # not before: a terminal ends without a writer
    os.close(master)
    assert process.returncode == 0
    return printed.decode().replace("\r\n", "\n")


def seen(printed):
    """The lines that a terminal shows in the end."""
    shown = []
    for line in printed.split("\n"):
        cells = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        shown.append("".join(cells).rstrip())
    return shown


def test_a_terminal_has_one_line_for_all_jobs_and_nothing_of_it_stays(tmp_path):
    printed = run_on_terminal(tmp_path)
    drawn = [part.rstrip() for line in printed.split("\n") for part in line.split("\r")]
    both = [line for line in drawn if "first: step" in line and "second: step" in line]
    assert both and all(line.startswith(("0 of 2 finished", "1 of 2 finished")) for line in both)
    assert any(line.startswith("0 of 2 finished, about 0:0") for line in both)
    assert any("of 4, vgp 1.25, 0:0" in line and line.endswith("left") for line in both)
    assert any(line.startswith("alone: evaluate 2 of 4") for line in drawn)
    assert all(len(line) < 120 for line in drawn) and "\x1b" not in printed
    assert [line for line in seen(printed) if line] in (
        ["first: finished", "second: finished", "the end"],
        ["second: finished", "first: finished", "the end"],
    )


def test_a_file_gets_whole_lines(tmp_path):
    done = run_python(SCRIPT, [tmp_path / "jobs"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0 and not {"\r", "\x1b"} & set(done.stdout + done.stderr)
    assert done.stdout.splitlines()[-1] == "the end"
    lines = done.stderr.splitlines() + done.stdout.splitlines()
    assert any(
        line.startswith("0 of 2 finished") and "first: step" in line and "second: step" in line for line in lines
    )
    assert {"first: finished", "second: finished", "the end"} <= set(lines)


def test_a_pipe_gets_a_line_now_and_then(capsys, monkeypatch):
    line, clock = progress.ProgressLine(), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    line._last = 0.0
    for second in range(100):
        clock[0] = float(second)
        line.show(progress.Progress("direct", "step", second, 100))
    assert capsys.readouterr().err.splitlines() == [f"direct: step {n} of 100" for n in range(10, 100, 10)]


def test_time_left_does_not_count_what_was_done_before(monkeypatch):
    shown, clock = [], [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress.LINE, "show", shown.append)
    with progress.phase("step", 100) as advance:
        advance(40, resumed=True)
        clock[0] = 20.0
        advance(50)
    assert [each.seconds_left for each in shown] == [None, None, 100.0]


def test_the_total_counts_jobs_that_wait(monkeypatch):
    """Five jobs of 100 seconds, two at a time: after 50 seconds two more turns and a half."""
    notes, clock = side_by_side.Notes(5, 2, quiet=True), [50.0]
    monkeypatch.setattr(side_by_side.time, "monotonic", lambda: clock[0])
    notes.begun = {"a": 0.0, "b": 0.0}
    running = [progress.Progress(name, "step", 50, 100, seconds_left=50.0) for name in "ab"]
    assert notes.seconds_left(running) == (2 * 50 + 3 * 100) / 2
    assert notes.seconds_left([running[0], progress.Progress("b")]) is None, "one is starting"
    notes.begun, notes.lengths, clock[0] = {"e": 200.0}, [100.0] * 4, 230.0
    assert notes.seconds_left([progress.Progress("e", seconds_left=70.0)]) == 70, "one alone"


def test_a_job_that_is_killed_is_one_line(tmp_path):
    with pytest.raises(RecipeError, match=r"dead: a process was killed.*dead/log.txt") as caught:
        list(run_side_by_side([Job(tmp_path / "dead")], 1, die))
    assert "fewer workers" in explain_error(caught.value)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_run_has_one_line_and_disable_tqdm_takes_it_away(tmp_path, monkeypatch, capsys, quiet):
    monkeypatch.setattr(progress, "PRINTED", 0)
    recipe = tiny_recipe(tiny_scenes(tmp_path / "scenes"), tmp_path / "run", methods=["none"])
    recipe["training"] |= {"disable_tqdm": quiet, "max_steps": 2}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.startswith("none: ")]
    assert "none: step" not in printed.out
    assert "\r" not in printed.out + printed.err and "it/s" not in printed.err
    if quiet:
        assert lines == []
    else:
        assert any(re.match(r"none: step 2 of 2, identification \d\S*, vgp \d", line) for line in lines)
        assert any(line.startswith("none: evaluate test 1 of 1") for line in lines)
