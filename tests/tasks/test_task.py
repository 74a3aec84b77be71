# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A task that lacks a method says so when it is made, and what a task cannot do is refused in words."""

import pytest

from grounded_attention.tasks import TASKS
from grounded_attention.tasks.task import Task

REQUIRED = {"collate", "losses", "metrics", "judge"}


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_a_required_method_that_is_missing_is_named(missing):
    made = dict.fromkeys(REQUIRED - {missing}, lambda *arguments: None)
    with pytest.raises(TypeError, match=rf"Mine .*{missing}"):
        type("Mine", (Task,), {"name": "mine", **made})()


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_cannot_do_is_refused(name):
    task = TASKS[name]
    given = {"read_predictions": 1, "score_predictions": 4, "read_out": 2, "example_scores": 2}
    lacking = [
        *(() if task.explains else ("read_out", "example_scores")),
        *(() if task.predictions else ("read_predictions", "score_predictions")),
    ]
    for method in lacking:
        with pytest.raises(ValueError, match=f"the task {name!r} has no"):
            getattr(task, method)(*[None] * given[method])
