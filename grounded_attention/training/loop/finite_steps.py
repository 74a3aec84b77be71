# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A Trainer that takes no step, and saves no weights, with NaN or infinity.

The check needs no exchange between processes and one read from the device in a step: a loss that is not finite makes
every gradient NaN, gradients are summed over all processes, and the norm of the gradients is then the same number in
each of them. Only when that norm is not finite do the processes exchange what they know. The Trainer's own filter of
NaN losses, which reads from the device at every micro-batch and lets training go on, is switched off.
"""

import math
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import Trainer

from grounded_attention.modeling.finite_numbers import NotFiniteError, not_finite

from .checkpoint import last_complete_checkpoint
from .grounding_collator import ROW_KEYS

MAX_NAMED = 64  # rows in a message
MIN_SCALE = 1.0  # of float16 losses; below it gradients are lost, not protected


def spread_nan(loss: Tensor) -> Tensor:
    """The same loss, or one with NaN gradients if it is not finite: those of an infinite loss may be finite."""
    return loss * torch.where(loss.detach().isfinite(), 1.0, torch.nan).to(loss.dtype)


class FiniteTrainer(Trainer):
    """Stops before a step whose loss or gradients are not finite, in all processes.

    The scaler of float16 losses skips steps of its own while it looks for a scale. Weights that are to be saved are
    checked too.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.args.logging_nan_inf_filter = False
        # of each micro-batch of the step: its rows, its loss, and the components of the loss
        self._micro_batches: list[tuple[list[str], Tensor, dict[str, Tensor]]] = []
        self._means: dict[str, Tensor] = {}

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._micro_batches.append((inputs.get(ROW_KEYS, []), loss, self._means))
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        """The norm of the gradients, which the Trainer asks for before each step of the optimizer."""
        norm = super()._get_grad_norm(model, grad_norm)
        if not math.isfinite(norm):
            self._refuse_step(float(norm))
        self._micro_batches.clear()
        return norm

    def _refuse_step(self, norm: float) -> None:
        """Stops, unless the gradients alone are too large for float16: the scaler leaves that step out."""
        own = [(_losses_not_finite(loss, means), keys) for keys, loss, means in self._micro_batches]
        reports: list[tuple[list[str], list[str]]] = gather_object(own)
        losses = sorted({name for names, _ in reports for name in names})
        scaler = getattr(self.accelerator, "scaler", None)
        if not losses and scaler is not None and scaler.get_scale() >= MIN_SCALE:
            return
        reason = " and ".join(losses) or f"a gradient is not finite (norm {norm}), though the loss is"
        rows = []
        for names, keys in reports:
            if names or not losses:
                rows.extend(keys)
        raise NotFiniteError(
            f"step {self.state.global_step + 1}: {reason}; {self._kept()}; rows of the batch: {named(rows)}: check "
            "these rows, lower training.learning_rate, and continue with resume=true"
        )

    def _kept(self) -> str:
        """What remains of the run; only the main process reads checkpoints."""
        folder = None
        if self.is_world_process_zero():
            folder = last_complete_checkpoint(str(self.args.output_dir))
        kept = f"the last complete checkpoint is {folder}" if folder else "there is no checkpoint yet"
        return f"training stopped before this step changed the weights, {kept}"

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model, unless a weight is not finite: then the last good checkpoint stays the last one."""
        broken = gather_object(not_finite(cast(torch.nn.Module, self.model)))
        if broken:
            raise NotFiniteError(
                f"step {self.state.global_step}: the weight {broken[0]} contains NaN or infinity, so the model is not "
                f"saved; {self._kept()}: lower training.learning_rate"
            )
        super().save_model(output_dir, _internal_call)


def _losses_not_finite(loss: Tensor, means: dict[str, Tensor]) -> list[str]:
    """The names of the losses that are not finite, with their values; "loss" if only their sum is not."""
    if math.isfinite(loss.item()):
        return []
    values = {name: value.item() for name, value in means.items()}
    named = [f"loss_{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    return named or [f"the loss is {loss.item()}"]


def named(rows: list[str]) -> str:
    """The ids of rows, the first of many."""
    if len(rows) > MAX_NAMED:
        more = f" and {len(rows) - MAX_NAMED} more"
    else:
        more = ""
    return ", ".join(map(repr, rows[:MAX_NAMED])) + more
