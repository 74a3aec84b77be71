# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Cells of a study side by side, each with its share of the threads: small models gain little from several threads."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from .study_cells import FINISHED, Cell

LOG = "log.txt"


def run_side_by_side(
    cells: Sequence[Cell], states: Mapping[str, str], workers: int, work: Callable[[Cell], None]
) -> Iterator[Cell]:
    """Runs the cells that have not finished, each in a process with its share of the threads; yields each when it has.

    A cell waits for the one it is trained from, whose state the caller sets. What a cell prints goes to its `log.txt`.

    Args:
        cells: in order.
        states: of each cell by name; the caller marks those that are yielded as finished.
        workers: how many run at a time.
        work: what is done with a cell; it has to be picklable.

    Raises:
        Exception: the first that a cell raised, once the others under way have ended; no further cell is begun.
    """
    waiting = [cell for cell in cells if states[cell.name] != FINISHED]
    share = max(1, (os.cpu_count() or 1) // workers)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_take_share, initargs=(share,))
    running: dict[Future, Cell] = {}
    try:
        while waiting or running:
            ready = [cell for cell in waiting if cell.parent is None or states[cell.parent.name] == FINISHED]
            for cell in ready[: workers - len(running)]:
                waiting.remove(cell)
                running[pool.submit(_run_logged, work, cell)] = cell
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                future.result()
                yield cell
    finally:
        pool.shutdown(cancel_futures=True)


def _take_share(threads: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(threads)
    threadpool_limits(threads)


def _run_logged(work: Callable[[Cell], None], cell: Cell) -> None:
    cell.directory.mkdir(parents=True, exist_ok=True)
    with _output_to(cell.directory / LOG):
        work(cell)


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
