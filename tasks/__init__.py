# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tasks by name. A new task is a new file with a `TASK` and one line here."""

from . import pretraining, vgp
from .task import LossComponent, Metric, Task

TASKS: dict[str, Task] = {task.name: task for task in (pretraining.TASK, vgp.TASK)}

__all__ = ["TASKS", "LossComponent", "Metric", "Task"]
