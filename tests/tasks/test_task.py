# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A task that lacks a method says so when it is made, and what a task cannot do is refused in words."""

import pytest

from grounded_attention.tasks import TASKS
from grounded_attention.tasks.task import Task

REQUIRED = {"collate", "losses", "metrics", "judge"}
FLAGS = {
    "explains": (True, ("read_out", "example_scores")),
    "predictions": ("a list of answers", ("read_predictions", "score_predictions")),
}


def make(methods, **attributes):
    made = dict.fromkeys(methods, lambda *arguments: None)
    return type("Mine", (Task,), {"name": "mine", **made, **attributes})()


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_a_required_method_that_is_missing_is_named(missing):
    with pytest.raises(TypeError, match=rf"Mine .*{missing}"):
        make(REQUIRED - {missing})


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_needs_its_methods(flag):
    value, methods = FLAGS[flag]
    make(REQUIRED | set(methods), **{flag: value})
    for kept, missing in (methods, methods[::-1]):
        with pytest.raises(TypeError, match=f"Mine .*no {missing}$"):
            make(REQUIRED | {kept}, **{flag: value})


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_cannot_do_is_refused(name):
    task = TASKS[name]
    given = {"read_predictions": 1, "score_predictions": 4, "read_out": 2, "example_scores": 2}
    lacking = [
        *(() if task.explains else FLAGS["explains"][1]),
        *(() if task.predictions else FLAGS["predictions"][1]),
    ]
    for method in lacking:
        with pytest.raises(ValueError, match=f"the task {name!r} has no"):
            getattr(task, method)(*[None] * given[method])
