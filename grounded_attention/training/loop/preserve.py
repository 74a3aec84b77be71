# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A loss against forgetting: distillation (Hinton et al., 2015; Li and Hoiem, 2016) from the start of the fine-tuning.

Shape letters: B batch, T text, R regions, N = T + R + 1, D hidden.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from grounded_attention.modeling.task_losses import Counts
from grounded_attention.utils.named_types import Batch, Columns


class Preservation:
    """
    The component `distillation`: the squared difference between the final states of the model in training and of its
    start model on the same batch, mean over D, then over tokens and regions without padding.

    Args:
        weight (`float`): the weight of the loss.
        start (`PreTrainedModel`): the start model, which is frozen.
        model_inputs (`tuple[str, ...]`): the keys of a batch that it reads.
    """

    # Extra arguments of the model's forward
    forward_kwargs: Columns = {"output_hidden_states": True}

    def __init__(self, weight: float, start: PreTrainedModel, model_inputs: tuple[str, ...]):
        self.weight = weight
        self.model_inputs = model_inputs
        self.start = start.eval().requires_grad_(False)

    def counts(self, batch: Batch) -> Counts:
        """Component -> number of terms in its sum, () int64."""
        return {"distillation": _attended(batch).sum()}

    def losses(self, outputs: Any, batch: Batch) -> dict[str, tuple[Tensor, float]]:
        """Component -> (sum, weight)."""
        self.start.to(batch["input_ids"].device)
        model_inputs = {name: batch[name] for name in self.model_inputs if name in batch}
        with torch.no_grad():
            wanted = self.start(**model_inputs, **self.forward_kwargs, return_dict=True)
        distance = state_distance(_states(outputs, batch), _states(wanted, batch), _attended(batch))
        return {"distillation": (distance, self.weight)}


def state_distance(states: Tensor, start: Tensor, mask: Tensor) -> Tensor:
    """Squared difference of states (B, T + R, D), mean over D, summed where the mask (B, T + R) is True."""
    return F.mse_loss(states[mask].float(), start[mask].float(), reduction="none").mean(-1).sum()


def _tokens(batch: Batch) -> Tensor:
    """Mask of the tokens without padding, (B, T) bool; if an example has several choices, each choice is a row."""
    return batch["attention_mask"].bool().flatten(0, -2)


def _regions(batch: Batch, name: str) -> Tensor:
    """Mask of the regions, (B, R) bool; R = 0 for text alone; all choices of an example have the same regions."""
    tokens = _tokens(batch)
    mask = batch.get(name)
    if mask is None:
        return tokens[:, :0]
    mask = mask.bool().flatten(0, -2)
    return mask.repeat_interleave(len(tokens) // len(mask), dim=0)


def _attended(batch: Batch) -> Tensor:
    """Mask of tokens and regions without padding, (B, T + R) bool."""
    return torch.cat([_tokens(batch), _regions(batch, "region_attention_mask")], dim=1)


def _states(outputs: Any, batch: Batch) -> Tensor:
    """Final states without END, (B, T + R, D)."""
    return outputs.hidden_states[-1][:, : _attended(batch).shape[1]]
