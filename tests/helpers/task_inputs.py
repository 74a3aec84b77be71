# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a model reads of a task's batch."""


def task_inputs(task, batch, *targets):
    """The task's inputs that the batch has, and these targets."""
    return {name: batch[name] for name in batch.keys() & {*task.model_inputs, *targets}}
