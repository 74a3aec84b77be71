# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Processes of this machine: whether they can share memory, and leaving a launch. Imports no torch."""

import gc
import multiprocessing
import sys
from functools import cache


@cache
def shares_memory() -> bool:
    """Whether processes can share memory; one line says if they cannot, since all work is then done by one."""
    try:
        multiprocessing.Lock()
    except (OSError, ImportError) as error:
        print(f"warning: processes cannot share memory here ({error}): one does all the work", file=sys.stderr)
        return False
    return True


def leave_group() -> None:
    """Leaves the process group of a launch, if there is one; a process that ends without leaving may abort.

    Models that were trained in several processes share the threads of the group. They are part of cycles (a Trainer
    and its callbacks), so they are collected first: with one left when Python has ended, the process aborts at times.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        gc.collect()
        distributed.destroy_process_group()
