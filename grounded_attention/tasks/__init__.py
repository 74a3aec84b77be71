# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""All tasks by name. A new task is a new file with a `TASK`, and one line here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import lazy_loader

from grounded_attention.utils.lazy_registry import LazyRegistry

if TYPE_CHECKING:
    from .task import LossComponent, Metric, Task

# Commands list the tasks in this order. A file has the name of its task.
_FILES = (
    "caption_match_pretraining",
    "gqa",
    "grounded_generation",
    "image_text_match",
    "phrase_grounding",
    "pretraining",
    "referring_expressions",
    "vcr",
    "vgp",
    "visual_reasoning",
    "vqa",
)
TASKS: "Mapping[str, Task]" = LazyRegistry(__name__, {file: f"{file}:TASK" for file in _FILES})

__getattr__, __dir__, _names = lazy_loader.attach(__name__, submod_attrs={"task": ["LossComponent", "Metric", "Task"]})

__all__ = ["TASKS", "LossComponent", "Metric", "Task"]
