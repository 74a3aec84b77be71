# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Losses against forgetting: they keep a model close to the start model of the fine-tuning.

Distillation (Hinton et al., 2015; Li and Hoiem, 2016), L2 to the start weights (L2-SP, Li et al., 2018) and elastic
weight consolidation (Kirkpatrick et al., 2017).

Shape letters: B batch, T text, R regions, N = T + R + 1, D hidden.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from grounded_attention.tasks import Task
from grounded_attention.training.recipes.recipe import Preserve
from grounded_attention.utils.progress import phase
from grounded_attention.utils.whole_files import whole_file


class Preservation:
    """The loss components of the `preserve` section, for one model in training.

    - `distillation`: the squared difference between the final states of the model and of the start model on the same
      batch, mean over D, then over tokens and regions without padding.
    - `l2`: half the squared distance between the parameters and their start values, for all parameters with a start
      value: the base model, and a head that takes its weights from a pre-training head
      (`grounded_attention.modeling.pretraining_handover`).
    - `ewc`: the same, with each square weighted by the diagonal Fisher information. A head with weights of a
      pre-training head has no Fisher information, because the pre-training loss does not depend on it.

    The last two do not depend on the batch. Every micro-batch counts 1, so with gradient accumulation and several
    processes the penalty is applied once.
    """

    def __init__(
        self,
        section: Preserve,
        model: PreTrainedModel,
        start: PreTrainedModel,
        shared: set[str],
        model_inputs: tuple[str, ...],
        fisher: Mapping[str, Tensor] | None = None,
    ):
        self.section, self.model_inputs = section, model_inputs
        self.parameters = {n: p for n, p in model.named_parameters() if n in shared and p.requires_grad}
        frozen = start.eval().requires_grad_(False)
        self.values = {name: value for name, value in frozen.named_parameters() if name in self.parameters}
        self.start = frozen if section.distillation else None
        self.fisher = dict(fisher or {})

    def forward_kwargs(self) -> dict[str, Any]:
        """Extra arguments of the model's forward."""
        return {"output_hidden_states": True} if self.section.distillation else {}

    def counts(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Component -> number of terms in its sum, () int64."""
        counts = {}
        if self.section.distillation:
            counts["distillation"] = _attended(batch).sum()
        once = torch.ones((), dtype=torch.int64)
        return counts | {name: once for name in ("l2", "ewc") if getattr(self.section, name)}

    def losses(self, outputs: Any, batch: Mapping[str, Any]) -> dict[str, tuple[Tensor, float]]:
        """Component -> (sum, weight)."""
        losses: dict[str, tuple[Tensor, float]] = {}
        if self.start is not None:
            losses["distillation"] = (self._distill(self.start, outputs, batch), self.section.distillation)
        if self.section.l2:
            losses["l2"] = (self._drift({}), self.section.l2)
        if self.section.ewc:
            losses["ewc"] = (self._drift(self.fisher), self.section.ewc)
        return losses

    def _distill(self, start: PreTrainedModel, outputs: Any, batch: Mapping[str, Any]) -> Tensor:
        with torch.no_grad():
            start.to(batch["input_ids"].device)
            model_inputs = {name: batch[name] for name in self.model_inputs if name in batch}
            wanted = start(**model_inputs, **self.forward_kwargs(), return_dict=True)
        return state_distance(_states(outputs, batch), _states(wanted, batch), _attended(batch))

    # Distance of the weights

    def _drift(self, fisher: Mapping[str, Tensor]) -> Tensor:
        """Half the sum of squared differences from the start values, weighted by the Fisher information if given."""
        terms = []
        for name, parameter in self.parameters.items():
            if fisher and name not in fisher:  # the pre-training loss does not depend on it
                continue
            self.values[name] = self.values[name].to(parameter.device)
            importance = fisher[name].to(parameter.device) if fisher else None
            terms.append(_HalfSquares.apply(parameter, self.values[name], importance))
        return torch.stack(terms).sum()


class _HalfSquares(torch.autograd.Function):
    """Half the weighted sum of squared differences; stores no difference for the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, start: Tensor, importance: Tensor | None) -> Tensor:
        ctx.save_for_backward(value, start, importance)
        squares = (value - start).float().square_()
        return (squares if importance is None else squares.mul_(importance)).sum() / 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        value, start, importance = ctx.saved_tensors
        difference = value - start
        return grad.to(value.dtype) * (difference if importance is None else difference * importance), None, None


def state_distance(states: Tensor, start: Tensor, mask: Tensor) -> Tensor:
    """Squared difference of states (B, T + R, D), mean over D, summed where the mask (B, T + R) is True."""
    return F.mse_loss(states[mask].float(), start[mask].float(), reduction="none").mean(-1).sum()


def _tokens(batch: Mapping[str, Any]) -> Tensor:
    """Mask of the tokens without padding, (B, T) bool; if an example has several choices, each choice is a row."""
    return batch["attention_mask"].bool().flatten(0, -2)


def _regions(batch: Mapping[str, Any], name: str) -> Tensor:
    """Mask of the regions, (B, R) bool; R = 0 for text alone; all choices of an example have the same regions."""
    tokens, mask = _tokens(batch), batch.get(name)
    if mask is None:
        return tokens[:, :0]
    mask = mask.bool().flatten(0, -2)
    return mask.repeat_interleave(len(tokens) // len(mask), dim=0)


def _attended(batch: Mapping[str, Any]) -> Tensor:
    """Mask of tokens and regions without padding, (B, T + R) bool."""
    return torch.cat([_tokens(batch), _regions(batch, "region_attention_mask")], dim=1)


def _states(outputs: Any, batch: Mapping[str, Any]) -> Tensor:
    """Final states without END, (B, T + R, D)."""
    return outputs.hidden_states[-1][:, : _attended(batch).shape[1]]


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
    """Yields batches of one row each, on a device, and shows progress."""
    with phase("Fisher information", len(rows), quiet) as advance:
        for row in rows:
            yield {k: v.to(device) if isinstance(v, Tensor) else v for k, v in collate([row]).items()}
            advance()


def saved_fisher(path: Path, estimate: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Reads the file; if it does not exist, estimates the information and writes it atomically first."""
    if not path.is_file():
        weights = {name: value.cpu().contiguous() for name, value in estimate().items()}
        with whole_file(path) as draft:
            save_file(weights, draft)
    return load_file(path)
