# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""All tasks by name. A new task is a new file with a `TASK`, and one line here."""

from importlib import import_module

from .task import LossComponent, Metric, Task

# Commands list the tasks in this order.
_FILES = (
    "caption_match_pretraining",
    "gqa",
    "grounded_generation",
    "phrase_grounding",
    "pretraining",
    "referring_expressions",
    "vcr",
    "vgp",
    "visual_reasoning",
    "vqa",
)
_FOUND: list[Task] = [import_module(f".{file}", __name__).TASK for file in _FILES]
TASKS: dict[str, Task] = {task.name: task for task in _FOUND}

__all__ = ["TASKS", "LossComponent", "Metric", "Task"]
