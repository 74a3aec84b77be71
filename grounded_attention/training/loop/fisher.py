# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Diagonal Fisher information of the pre-training of a start model, for elastic weight consolidation."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from grounded_attention.tasks import Task
from grounded_attention.utils.progress import phase
from grounded_attention.utils.whole_files import whole_file


def estimate_fisher(
    model: nn.Module, task: Task, batches: Iterable[Mapping[str, Any]], names: set[str]
) -> dict[str, Tensor]:
    """Estimates the empirical Fisher information: the mean over examples of the squared gradient of the task's loss.

    Gradients are squared for each example. The gradient of a larger batch is a mean, and its square would be too
    small.
    """
    model.eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    sums = {name: torch.zeros_like(parameter, dtype=torch.float32) for name, parameter in wanted.items()}
    examples = 0
    for batch in batches:
        loss = _loss(model, task, batch)
        gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        for name, gradient in zip(wanted, gradients, strict=True):
            if gradient is not None:
                sums[name].addcmul_(gradient.float(), gradient.float())
        examples += 1
    return {name: total / examples for name, total in sums.items()}


def _loss(model: nn.Module, task: Task, batch: Mapping[str, Any]) -> Tensor:
    outputs = model(**{name: batch[name] for name in task.model_inputs if name in batch}, return_dict=True)
    terms = [(component, component.count(batch)) for component in task.losses]
    parts = [(c.weight * c.total(outputs, batch)) / n.clamp(min=1) for c, n in terms if n is not None]
    return torch.stack(parts).sum()


def single_batches(rows: Any, collate: Callable[[list], Mapping[str, Any]], device: Any, quiet: bool) -> Iterable:
    """
    Yields batches of one row each, on a device, and shows progress.
    """
    with phase("Fisher information", len(rows), quiet) as advance:
        for row in rows:
            yield {k: v.to(device) if isinstance(v, Tensor) else v for k, v in collate([row]).items()}
            advance()


def saved_fisher(path: Path, estimate: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Reads the file; if it does not exist, estimates the information and writes it atomically first."""
    if not path.is_file():
        found = {name: value.cpu().contiguous() for name, value in estimate().items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as draft:
            save_file(found, draft)
    return load_file(path)
