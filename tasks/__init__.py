# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tasks by name. A new task is a new file with a `TASK` and one line here."""

from . import (
    caption_match_pretraining,
    phrase_grounding,
    pretraining,
    referring_expressions,
    vcr,
    vgp,
    visual_reasoning,
    vqa,
)
from .task import LossComponent, Metric, Task

_MODULES = (
    caption_match_pretraining,
    phrase_grounding,
    pretraining,
    referring_expressions,
    vcr,
    vgp,
    visual_reasoning,
    vqa,
)
TASKS: dict[str, Task] = {module.TASK.name: module.TASK for module in _MODULES}

__all__ = ["TASKS", "LossComponent", "Metric", "Task"]
