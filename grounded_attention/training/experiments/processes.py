# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The processes of a launch: they join before any data is written, and no other launch uses their output folder."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import torch
from accelerate import PartialState

from grounded_attention.training.publish.hub import on_main_process
from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.named_types import Columns
from grounded_attention.utils.processes import FolderInUse, folder_lock
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
