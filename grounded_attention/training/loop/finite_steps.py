# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A Trainer that takes no step, and saves no weights, with NaN or infinity.

The check needs no exchange between processes and one read from the device in a step: a loss that is not finite makes
every gradient NaN, gradients are summed over all processes, and the norm of the gradients is then the same number in
each of them. Only when that norm is not finite do the processes exchange what they know. The Trainer's own filter of
NaN losses, which reads from the device at every micro-batch and lets training go on, is switched off.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import Trainer

from grounded_attention.modeling.finite_numbers import NotFiniteError, not_finite

from .checkpoint import last_complete_checkpoint
from .grounding_collator import ROW_KEYS

SKIP = "skip_nonfinite_batches"
SKIPPED_ROWS = "skipped_rows"  # in an entry of the log
MAX_IN_A_ROW = 10  # skipped steps; training that skips more has diverged
MAX_NAMED = 64  # rows in a message
MIN_SCALE = 1.0  # of float16 losses; below it gradients are lost, not protected


@dataclass
class MicroBatch:
    """What a step remembers of a micro-batch."""

    keys: list[str] = field(default_factory=list)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    means: dict[str, Tensor] = field(default_factory=dict)

    def not_finite(self) -> list[str]:
        """The names of the losses that are not finite, with their values; "loss" if only their sum is not."""
        if math.isfinite(self.loss.item()):
            return []
        values = {name: value.item() for name, value in self.means.items()}
        named = [f"loss_{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        return named or [f"the loss is {self.loss.item()}"]


def spread_nan(loss: Tensor) -> Tensor:
    """The same loss, or one with NaN gradients if it is not finite: those of an infinite loss may be finite."""
    return loss * torch.where(loss.detach().isfinite(), 1.0, torch.nan).to(loss.dtype)


class FiniteTrainer(Trainer):
    """Stops before a step whose loss or gradients are not finite; with `skip_nonfinite_batches` it leaves it out.

    A skipped step changes neither weights nor the state of the optimizer, in any process; the step is counted, the
    learning rate goes on, and the logged means are those of the other steps. The log has an entry `skipped_rows`. The
    scaler of float16 losses skips steps of its own while it looks for a scale; these are not counted. With it, the
    learning rate may wait in a skipped step, as it does in those of the scaler. Weights that are to be saved are
    checked too; the error is raised in all processes.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.args.logging_nan_inf_filter = False
        self._micro_batches: list[MicroBatch] = []
        self._means: dict[str, Tensor] = {}
        self._loss_before = torch.zeros(())
        self._in_a_row = 0
        # steps since the last log
        self._taken = 0
        self._skipped = 0

    def training_step(self, model, inputs, num_items_in_batch=None):
        if not self._micro_batches:
            self._loss_before = self._tr_loss.clone()
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._micro_batches.append(MicroBatch(inputs.get(ROW_KEYS, []), loss, self._means))
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        """The norm of the gradients, which the Trainer asks for before each step of the optimizer."""
        norm = super()._get_grad_norm(model, grad_norm)
        micro_batches, self._micro_batches = self._micro_batches, []
        if math.isfinite(norm) or self._scaler_skips(micro_batches):
            self._in_a_row = 0
            self._taken += 1
            for each in micro_batches:
                self.remember(each.means)
            return norm
        self._refuse_step(model, micro_batches, float(norm))
        return 0.0

    def remember(self, means: dict[str, Tensor]) -> None:
        """Is given the loss components of every micro-batch whose step is taken."""

    def _scaler_skips(self, micro_batches: list[MicroBatch]) -> bool:
        """Whether only the gradients are too large for float16: the scaler leaves the step out and scales less."""
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is None or any(gather_object([bool(each.not_finite()) for each in micro_batches])):
            return False
        return scaler.get_scale() >= MIN_SCALE

    def _refuse_step(self, model: torch.nn.Module, micro_batches: list[MicroBatch], norm: float) -> None:
        """Leaves out a step, or stops."""
        reason, rows = self._explain(micro_batches, norm)
        step = self.state.global_step + 1
        self._in_a_row += 1
        if not getattr(self.args, SKIP, False):
            hint = (
                f"check these rows, lower training.learning_rate, or continue with resume=true training.{SKIP}=true, "
                "which leaves such batches out"
            )
            raise NotFiniteError(f"step {step}: {reason}; {self._kept()}; rows of the batch: {named(rows)}: {hint}")
        if self._in_a_row > MAX_IN_A_ROW:
            raise NotFiniteError(
                f"step {step}: {reason}, and {MAX_IN_A_ROW} steps before it were left out for such a reason; "
                f"{self._kept()}; rows of the batch: {named(rows)}: lower training.learning_rate"
            )
        model.zero_grad(set_to_none=True)  # an optimizer passes over weights without a gradient
        self._tr_loss.copy_(self._loss_before)
        self._skipped += 1
        entry: dict[str, Any] = {"step": step, "epoch": self.state.epoch, SKIPPED_ROWS: rows}
        self.state.log_history.append(entry)
        if self.is_world_process_zero():
            print(f"warning: step {step} is left out: {reason}; rows: {named(rows)}", file=sys.stderr, flush=True)

    def _explain(self, micro_batches: list[MicroBatch], norm: float) -> tuple[str, list[str]]:
        """The reason, and the ids of the rows that may cause it, from all processes."""
        reports: list[tuple[list[str], list[str]]] = gather_object([(b.not_finite(), b.keys) for b in micro_batches])
        losses = sorted({name for names, _ in reports for name in names})
        if losses:
            return " and ".join(losses), [key for names, keys in reports if names for key in keys]
        return f"a gradient is not finite (norm {norm}), though the loss is", [
            key for _, keys in reports for key in keys
        ]

    def _kept(self) -> str:
        """What remains of the run; only the main process reads checkpoints."""
        folder = last_complete_checkpoint(str(self.args.output_dir)) if self.is_world_process_zero() else None
        kept = f"the last complete checkpoint is {folder}" if folder else "there is no checkpoint yet"
        return f"training stopped before this step changed the weights, {kept}"

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs; the mean loss is that of the steps that were taken."""
        if "loss" in logs:
            if self._skipped:
                mean = logs.pop("loss") * (self._taken + self._skipped)
                logs |= {"loss": mean / self._taken} if self._taken else {}
            self._taken = 0
            self._skipped = 0
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model, unless a weight is not finite: then the last good checkpoint stays the last one."""
        broken = gather_object(not_finite(cast(torch.nn.Module, self.model)))
        if broken:
            raise NotFiniteError(
                f"step {self.state.global_step}: the weight {broken[0]} contains NaN or infinity, so the model is not "
                f"saved; {self._kept()}: lower training.learning_rate"
            )
        super().save_model(output_dir, _internal_call)


def skipped_steps(history: Iterable[dict[str, Any]]) -> int:
    """The number of steps that a training has left out, from its log."""
    return sum(SKIPPED_ROWS in entry for entry in history)


def named(rows: list[str]) -> str:
    """The ids of rows, the first of many."""
    more = f" and {len(rows) - MAX_NAMED} more" if len(rows) > MAX_NAMED else ""
    return ", ".join(map(repr, rows[:MAX_NAMED])) + more
