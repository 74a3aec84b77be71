# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The processes of a launch, and trainings in parallel processes.

The processes of a launch join before any data is written, and no other launch uses their output folder. Trainings side
by side have each their share of the threads; small models use few threads well.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from multiprocessing import get_all_start_methods, get_context, parent_process
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from grounded_attention.training.publish.hub import on_main_process
from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.named_types import Columns
from grounded_attention.utils.processes import FolderInUse, folder_lock
from grounded_attention.utils.progress import is_quiet
from grounded_attention.utils.whole_files import make_folder


def join_processes(training: Columns) -> None:
    """Connects the processes that torchrun or accelerate has started, so that one of them prepares the data."""
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() in ("true", "1"):
        raise RecipeError(
            "DeepSpeed is not supported: launch without it, and give training.fsdp=true to shard weights"
        )
    on_cpu = bool(training.get("use_cpu")) or os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("true", "1")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not on_cpu and not torch.accelerator.is_available():
        raise RecipeError(
            f"{os.environ['WORLD_SIZE']} processes were started, but PyTorch finds no GPU or other accelerator: give "
            "training.use_cpu=true to train on the CPU"
        )
    PartialState(cpu=on_cpu)


@contextmanager
def only_process(output: Path) -> Iterator[None]:
    """Context in which no other run or study uses the output directory, which is created if needed."""

    def take() -> None:
        make_folder(output)
        hint = "wait for it, or give another output_dir"
        held.enter_context(folder_lock(output, doing="trains here", hint=hint))

    with ExitStack() as held:
        on_main_process(take, FolderInUse)
        yield


@cache
def say_once(line: str | None) -> None:
    """Prints a line once, from the main process only; several methods and stages load the same checkpoint."""
    if line and PartialState().is_main_process:
        print(f"  {line}", flush=True)


LOG = "log.txt"


def run_jobs(jobs: Sequence[Any], workers: int, work: Callable[[Any], Any], quiet: bool = False) -> Iterator[Any]:
    """Runs jobs one after another in this process, or several at a time; yields each job when it has finished.

    A job has a `name`, a `directory`, and perhaps a `parent`, a job for which it waits.
    """
    if workers > 1:
        yield from run_side_by_side(jobs, workers, work, quiet)
        return
    for job in jobs:
        work(job)
        yield job


def run_side_by_side(
    jobs: Sequence[Any], workers: int, work: Callable[[Any], Any], quiet: bool = False
) -> Iterator[Any]:
    """Runs jobs in parallel, each in a process with its share of the threads; yields each job when it has finished."""
    if PartialState().num_processes > 1:
        raise RecipeError(f"workers={workers} needs a single process: run without the launcher, or give workers=1")
    share = max(1, (os.cpu_count() or 1) // workers)
    waiting = list(jobs)
    unfinished = {job.directory for job in jobs}
    pool = ProcessPoolExecutor(workers, _context(work), initializer=_begin, initargs=(dict(os.environ),))
    running: dict[Future, Any] = {}
    bar = tqdm(total=len(jobs), desc=f"{workers} at a time", unit="job", disable=quiet or is_quiet(), leave=False)
    try:
        while waiting or running:
            ready = [job for job in waiting if job.parent is None or job.parent.directory not in unfinished]
            for job in ready[: workers - len(running)]:
                waiting.remove(job)
                running[pool.submit(_run_logged, work, job, share)] = job
            bar.set_postfix_str(", ".join(job.name for job in running.values()))
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                future.result()
                unfinished.remove(job.directory)
                bar.update()
                yield job
    except BrokenProcessPool as error:
        raise RecipeError(
            f"{job.name}: a process was killed, perhaps because memory ran out; try fewer workers; the output is in "
            f"{job.directory / LOG}"
        ) from error
    except KeyboardInterrupt:
        # Only the parent may have got the signal; its jobs would train on, and it would wait for them.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        bar.close()
        pool.shutdown(cancel_futures=True)


def _context(work: Callable[..., Any]) -> Any:
    """Starts processes as forks of one that has imported what `work` needs and done nothing else; elsewhere anew."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    function = work.func if isinstance(work, partial) else work
    context.set_forkserver_preload([__name__, function.__module__])
    return context


def _begin(environment: Mapping[str, str]) -> None:
    """Takes the variables of the parent as they are now, and ends this process when the parent dies, so that no job
    keeps writing into the folder."""
    os.environ.clear()  # a process that was forked has those of the first call
    os.environ.update(environment)

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_logged(work: Callable[[Any], Any], job: Any, threads: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(threads)
    threadpool_limits(threads)
    make_folder(job.directory)
    with (job.directory / LOG).open("ab") as log:  # all output of this process, also of C libraries
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    try:
        work(job)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
