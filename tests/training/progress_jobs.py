# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Jobs for processes of their own. This file imports little, since each process imports it."""

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    directory: Path
    parent: "Job | None" = None

    @property
    def name(self):
        return self.directory.name


def die(job):
    os._exit(9)


def note_threads(job):
    import torch

    (job.directory / "threads").write_text(str(torch.get_num_threads()))


def sleep_long(job):
    (job.directory / "pid").write_text(str(os.getpid()))
    time.sleep(120)


def give_a_wrong_share(job):
    from grounded_attention.tasks import TASKS

    TASKS["caption_match_pretraining"].configure({"exchanged": 3})


def divide_by_zero(job):
    raise ValueError(1 / 0)


def write_variable(job):
    (job.directory / "found").write_text(str(os.environ.get("GROUNDED_ATTENTION_TEST")))
