# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How far the work is: one line for all that runs, redrawn in place on a terminal, printed now and then elsewhere.

What works calls `phase`, and the Trainer has `ProgressCallback`. In the process that the user sees this redraws the
line; in a job of `side_by_side.py` it writes a small file, replaced whole, which that process reads. A job that dies
leaves what it said last, and nobody waits for it.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import datasets
import huggingface_hub
import transformers
from transformers import TrainerCallback

from grounded_attention.utils.whole_files import write_text

REDRAWN, PRINTED, WRITTEN = 0.1, 30.0, 0.3  # seconds between two lines: terminal, pipe or log file, a job's file


@dataclass(frozen=True)
class Progress:
    """What a job is doing: `done` of `total` steps of a phase; a `total` of 0 has no steps to tell."""

    job: str = ""
    phase: str = "starting"
    done: int = 0
    total: int = 0
    loss: float | None = None
    seconds_left: float | None = None

    def text(self, brief: bool = False) -> str:
        """For example "direct: step 450 of 900, loss 1.23, 2:10 left", or without words "direct 450/900 2:10"."""
        left = "" if self.seconds_left is None else _clock(self.seconds_left)
        steps = f"{self.done}/{self.total}" if brief else f"{self.done} of {self.total}"
        doing = " ".join(filter(None, (self.phase, steps if self.total else "")))
        if brief:
            return " ".join(filter(None, (self.job, doing.removeprefix("step "), left)))
        loss = "" if self.loss is None else f"loss {self.loss:.3g}"
        said = ", ".join(filter(None, (doing, loss, left and f"{left} left")))
        return f"{self.job}: {said}" if self.job else said


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Sink(Protocol):
    """Where a process says how far it is."""

    def show(self, progress: Progress) -> None: ...

    def clear(self) -> None: ...


class ProgressLine:
    """The line that the user sees, on standard error: what a command prints for other programs stays whole."""

    def __init__(self) -> None:
        self._drawn, self._last = 0, time.monotonic()

    def show(self, *jobs: Progress, head: str = "") -> None:
        """Says how far the jobs are, unless it was said just before."""
        terminal, now = sys.stderr.isatty(), time.monotonic()
        if now - self._last < (REDRAWN if terminal else PRINTED):
            return
        self._last = now
        if not terminal:
            print(_joined(jobs, head), file=sys.stderr, flush=True)
            return
        text = _fitting(jobs, head, shutil.get_terminal_size().columns - 1)
        sys.stderr.write("\r" + text.ljust(self._drawn))
        sys.stderr.flush()
        self._drawn = len(text)

    def clear(self) -> None:
        """Takes the line away, so that what is printed next stands by itself."""
        if self._drawn:
            sys.stderr.write("\r" + " " * self._drawn + "\r")
            sys.stderr.flush()
        self._drawn = 0


def _joined(jobs: Sequence[Progress], head: str, brief: bool = False) -> str:
    return " | ".join(filter(None, (head, *(job.text(brief) for job in jobs))))


def _fitting(jobs: Sequence[Progress], head: str, width: int) -> str:
    """The long line, the brief one where that is too long, and as much as fits of it where it is too long too."""
    lines = [_joined(jobs, head), _joined(jobs, head, brief=True)]
    return next((line for line in lines if len(line) <= width), lines[1][:width])


class ProgressFile:
    """The file in which a job says how far it is; `read_progress` reads it in another process."""

    def __init__(self, path: Path):
        self.path, self._phase, self._last = path, "", 0.0

    def show(self, progress: Progress) -> None:
        """Writes the file, unless it was written just before."""
        now = time.monotonic()
        if progress.phase == self._phase and now - self._last < WRITTEN:
            return
        self._phase, self._last = progress.phase, now
        with suppress(OSError):  # a full disk for temporary files is no reason to end a training
            write_text(self.path, json.dumps(asdict(progress)))

    def clear(self) -> None:
        """Leaves the file as it is: what comes next replaces it."""


def read_progress(path: Path, job: str) -> Progress:
    """What a job's file says; that it is starting where there is none yet."""
    try:
        return Progress(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Progress(job)


LINE = ProgressLine()
_sink: Sink = LINE
_job = ""


def report_to(path: Path, job: str) -> None:
    """From now on this process says how far it is in a file, as a job of that name."""
    global _sink, _job
    _sink, _job = ProgressFile(path), job


@contextmanager
def named(job: str) -> Iterator[None]:
    """What is done meanwhile is done for the job of this name, unless it is part of another."""
    global _job
    outer, _job = _job, _job or job
    try:
        yield
    finally:
        _job = outer


@contextmanager
def phase(name: str, total: int, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Something long of so many steps.

    Args:
        name (`str`): of the phase, as it is shown.
        total (`int`): number of steps.
        quiet (`bool`, *optional*, defaults to `False`): say nothing.

    Yields:
        A function that says how many steps are done: one more, or `done`; `loss` where there is one. The time left
        is worked out from the steps since the first call or, where `done` is not 0 then, from there.
    """
    begun, first, now = time.monotonic(), 0, Progress(_job, name, 0, total)

    def advance(done: int | None = None, loss: float | None = None, resumed: bool = False) -> None:
        nonlocal now, first
        done = now.done + 1 if done is None else done
        first = done if resumed else first
        rate = (time.monotonic() - begun) / (done - first) if done > first else None
        now = replace(now, done=done, loss=loss, seconds_left=None if rate is None else rate * (total - done))
        if not quiet:
            _sink.show(now)

    try:
        if not quiet:
            _sink.show(now)
        yield advance
    finally:
        _sink.clear()


class ProgressCallback(TrainerCallback):
    """Says how far the training is, in the place of transformers' bar; a job prints what is logged into its log."""

    def __init__(self) -> None:
        self._phase: Any = None
        self._advance: Callable[..., None] = lambda *_, **__: None
        self._loss: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()
        quiet = not state.is_world_process_zero
        self._phase, self._loss = phase("step", state.max_steps, quiet), None
        self._advance = self._phase.__enter__()
        self._advance(state.global_step, resumed=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._advance(state.global_step, self._loss)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        self._loss = logs.get("loss", self._loss)
        measured = any(name.startswith("eval_") for name in logs)
        if state.is_world_process_zero and (measured or isinstance(_sink, ProgressFile)):
            _sink.clear()
            print({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in logs.items()}, flush=True)

    def close(self) -> None:
        """Ends the line, also of a training that was interrupted."""
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._phase = None


def plain_bars(quiet: bool = False) -> None:
    """Turns the bars of libraries off where they would fill a file with carriage returns, or are not wanted."""
    if quiet or not sys.stderr.isatty():
        datasets.disable_progress_bars()
        huggingface_hub.utils.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()
