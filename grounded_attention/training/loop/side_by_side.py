# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trainings side by side, each with its share of the threads: small models gain little from several threads."""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from threadpoolctl import threadpool_limits

from grounded_attention.training.recipes.recipe import RecipeError

from .progress import LINE, plain_bars, read_progress, report_to

LOG = "log.txt"
GLANCE = 0.5  # seconds between two looks at how far the jobs are


class Job(Protocol):
    """What can be run side by side with others; a job waits for its parent."""

    @property
    def name(self) -> str: ...

    @property
    def directory(self) -> Path: ...

    @property
    def parent(self) -> "Job | None": ...


J = TypeVar("J", bound=Job)


def run_side_by_side(jobs: Sequence[J], workers: int, work: Callable[[J], Any], quiet: bool = False) -> Iterator[J]:
    """Runs jobs, each in a process with its share of the threads; yields each when it has finished.

    A job waits for its parent where that is among the jobs. What a job prints goes to its `log.txt`. A job beside
    which nothing can be run has all threads. One line says how far all of them are.

    Args:
        jobs (`Sequence[J]`): in order; the caller has left out what was finished before.
        workers (`int`): how many run at a time.
        work (`Callable[[J], Any]`): what is done with a job; it has to be picklable.
        quiet (`bool`, *optional*, defaults to `False`): whether to leave that line out.

    Raises:
        RecipeError: the process of a job was killed.
        Exception: the first that a job raised, once the others under way have ended; no further job is begun.
    """
    waiting, unfinished = list(jobs), {job.directory for job in jobs}
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_end_with_parent)
    running: dict[Future, J] = {}
    notes = Notes(len(jobs), quiet)
    try:
        while waiting or running:
            ready = [job for job in waiting if job.parent is None or job.parent.directory not in unfinished]
            begun = ready[: workers - len(running)]
            share = max(1, (os.cpu_count() or 1) // max(1, len(running) + len(begun)))
            for job in begun:
                waiting.remove(job)
                running[pool.submit(_run_logged, work, job, share, notes.path(job))] = job
            for future in notes.watch(running):
                job = running.pop(future)
                _get_result(future, job)
                unfinished.remove(job.directory)
                yield job
    finally:
        LINE.clear()
        pool.shutdown(cancel_futures=True)
        notes.folder.cleanup()


class Notes:
    """The files in which jobs say how far they are, and the line that the user sees of them."""

    def __init__(self, jobs: int, quiet: bool):
        self.jobs, self.quiet, self.finished = jobs, quiet, 0
        self.folder = tempfile.TemporaryDirectory(prefix="progress_")

    def path(self, job: Job) -> Path:
        """The file of a job."""
        return Path(self.folder.name) / job.directory.resolve().as_posix().replace("/", "_")

    def watch(self, running: Mapping[Future, J]) -> Collection[Future]:
        """Shows the running jobs until one of them ends; returns those that have ended, the line taken away."""
        while not (done := wait(running, GLANCE, FIRST_COMPLETED).done):
            if not self.quiet:
                shown = [read_progress(self.path(job), job.name) for job in running.values()]
                LINE.show(*shown, head=f"{self.finished} of {self.jobs} finished")
        self.finished += len(done)
        LINE.clear()
        return done


def _get_result(future: Future, job: Job) -> None:
    try:
        future.result()
    except BrokenProcessPool as error:
        raise RecipeError(
            f"{job.name}: a process was killed, perhaps for want of memory: fewer workers need less; what was printed "
            f"is in {job.directory / LOG}"
        ) from error


def _end_with_parent() -> None:
    """A killed parent leaves no job behind that would go on writing into its folder."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_logged(work: Callable[[J], Any], job: J, threads: int, note: Path) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(threads)
    threadpool_limits(threads)
    job.directory.mkdir(parents=True, exist_ok=True)
    report_to(note, job.name)
    with _output_to(job.directory / LOG):
        plain_bars()
        work(job)


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Sends what this process prints, whoever prints it, to the end of a file."""
    kept = os.dup(1), os.dup(2)
    try:
        with path.open("ab") as file:
            for descriptor in (1, 2):
                os.dup2(file.fileno(), descriptor)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, old in zip((1, 2), kept, strict=True):
            os.dup2(old, descriptor)
            os.close(old)
