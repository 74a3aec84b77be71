# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One progress line for all running work; it is redrawn on a terminal and printed every 10 seconds elsewhere.

Long work calls `phase`; the Trainer uses `ProgressCallback` of `training/loop`. The main process redraws the line. A
job of `training/loop/side_by_side.py` writes its progress atomically to a small file, which the main process reads. If
a job dies, its file keeps the last progress; no process waits for it.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from .quiet import PRINTED, is_quiet
from .whole_files import write_text

T = TypeVar("T")
REDRAWN, WRITTEN = 0.1, 0.3  # seconds between updates: terminal, file of a job


@dataclass(frozen=True)
class Progress:
    """The state of a job: `done` of `total` steps of a phase; with a `total` of 0 no steps are shown."""

    job: str = ""
    phase: str = "starting"
    done: int = 0
    total: int = 0
    losses: str = ""
    seconds_left: float | None = None

    def text(self, brief: bool = False) -> str:
        """For example "direct: step 450 of 900, vgp 1.23, 2:10 left", or short "direct 450/900 2:10"."""
        left = "" if self.seconds_left is None else clock(self.seconds_left)
        steps = f"{self.done}/{self.total}" if brief else f"{self.done} of {self.total}"
        doing = " ".join(filter(None, (self.phase, steps if self.total else "")))
        if brief:
            return " ".join(filter(None, (self.job, doing.removeprefix("step "), left)))
        state = ", ".join(filter(None, (doing, self.losses, left and f"{left} left")))
        return f"{self.job}: {state}" if self.job else state


def clock(seconds: float) -> str:
    """For example 2:10, or 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Sink(Protocol):
    """Where a process shows its progress."""

    def show(self, progress: Progress) -> None: ...

    def clear(self) -> None: ...


class ProgressLine:
    """The progress line on standard error; standard output stays free for other programs."""

    def __init__(self) -> None:
        self._drawn, self._last = 0, time.monotonic()

    def show(self, *jobs: Progress, head: str = "") -> None:
        """Shows the progress of the jobs, unless the last update was a moment ago."""
        terminal, now = sys.stderr.isatty(), time.monotonic()
        if is_quiet():
            return
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
        """Removes the line, so that the next output starts on an empty line."""
        if self._drawn:
            sys.stderr.write("\r" + " " * self._drawn + "\r")
            sys.stderr.flush()
        self._drawn = 0


def _joined(jobs: Sequence[Progress], head: str, brief: bool = False) -> str:
    return " | ".join(filter(None, (head, *(job.text(brief) for job in jobs))))


def _fitting(jobs: Sequence[Progress], head: str, width: int) -> str:
    """The long line; if it does not fit, the short one, cut to the width."""
    lines = [_joined(jobs, head), _joined(jobs, head, brief=True)]
    return next((line for line in lines if len(line) <= width), lines[1][:width])


class ProgressFile:
    """A file with the progress of a job; `read_progress` reads it in another process."""

    def __init__(self, path: Path):
        self.path, self._phase, self._last = path, "", 0.0

    def show(self, progress: Progress) -> None:
        """Writes the file, unless the last update was a moment ago."""
        now = time.monotonic()
        if progress.phase == self._phase and now - self._last < WRITTEN:
            return
        self._phase, self._last = progress.phase, now
        with suppress(OSError):  # a full disk for temporary files must not end a training
            write_text(self.path, json.dumps(asdict(progress)))

    def clear(self) -> None:
        """Does nothing; the next update replaces the file."""


def read_progress(path: Path, job: str) -> Progress:
    """The progress in the file of a job; if there is no file yet, the job is starting."""
    try:
        return Progress(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Progress(job)


LINE = ProgressLine()
_sink: Sink = LINE
_job = ""


def report_to(path: Path, job: str) -> None:
    """Makes this process write its progress to a file, under the name of a job."""
    global _sink, _job
    _sink, _job = ProgressFile(path), job


def is_job() -> bool:
    """Whether this process is a job that writes its progress to a file."""
    return isinstance(_sink, ProgressFile)


def clear() -> None:
    """Removes the progress line of this process, so that other output starts on an empty line."""
    _sink.clear()


@contextmanager
def named(job: str) -> Iterator[None]:
    """Names the job of the work inside the context; an outer name is kept."""
    global _job
    outer, _job = _job, _job or job
    try:
        yield
    finally:
        _job = outer


@contextmanager
def phase(name: str, total: int, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Shows the progress of long work with a known number of steps."""
    begun, first, now = time.monotonic(), 0, Progress(_job, name, 0, total)

    def advance(done: int | None = None, losses: str = "", resumed: bool = False) -> None:
        nonlocal now, first
        done = now.done + 1 if done is None else done
        first = done if resumed else first
        rate = (time.monotonic() - begun) / (done - first) if done > first else None
        now = replace(
            now, done=done, losses=losses, seconds_left=None if rate is None or not total else rate * (total - done)
        )
        if not quiet:
            _sink.show(now)

    try:
        if not quiet:
            _sink.show(now)
        yield advance
    finally:
        _sink.clear()


def with_progress(items: Iterable[T], name: str, total: int = 0, quiet: bool = False) -> Iterator[T]:
    """The items one by one, as a phase; the `total` of a stream is unknown, 0."""
    with phase(name, total, quiet) as advance:
        for item in items:
            yield item
            advance()
