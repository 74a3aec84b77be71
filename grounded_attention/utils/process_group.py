# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Leaving the process group of a launch. Imports no torch, which a command may not need."""

import gc
import sys


def leave_group() -> None:
    """Leaves the process group of a launch, if there is one; a process that ends without leaving may abort.

    Models that were trained in several processes share the threads of the group. They are part of cycles (a Trainer
    and its callbacks), so they are collected first: with one left when Python has ended, the process aborts at times.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        gc.collect()
        distributed.destroy_process_group()
