# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trainings side by side, each with its share of the threads: small models gain little from several threads."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from threadpoolctl import threadpool_limits

LOG = "log.txt"


class Job(Protocol):
    """What can be run side by side with others; a job waits for its parent."""

    @property
    def directory(self) -> Path: ...

    @property
    def parent(self) -> "Job | None": ...


J = TypeVar("J", bound=Job)


def run_side_by_side(jobs: Sequence[J], workers: int, work: Callable[[J], Any]) -> Iterator[J]:
    """Runs jobs, each in a process with its share of the threads; yields each when it has finished.

    A job waits for its parent where that is among the jobs. What a job prints goes to its `log.txt`. A job beside
    which nothing can be run has all threads.

    Args:
        jobs: in order; the caller has left out what was finished before.
        workers: how many run at a time.
        work: what is done with a job; it has to be picklable.

    Raises:
        Exception: the first that a job raised, once the others under way have ended; no further job is begun.
    """
    waiting, unfinished = list(jobs), {job.directory for job in jobs}
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_end_with_parent)
    running: dict[Future, J] = {}
    try:
        while waiting or running:
            ready = [job for job in waiting if job.parent is None or job.parent.directory not in unfinished]
            begun = ready[: workers - len(running)]
            share = max(1, (os.cpu_count() or 1) // max(1, len(running) + len(begun)))
            for job in begun:
                waiting.remove(job)
                running[pool.submit(_run_logged, work, job, share)] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                future.result()
                unfinished.remove(job.directory)
                yield job
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A killed parent leaves no job behind that would go on writing into its folder."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_logged(work: Callable[[J], Any], job: J, threads: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(threads)
    threadpool_limits(threads)
    job.directory.mkdir(parents=True, exist_ok=True)
    with _output_to(job.directory / LOG):
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
