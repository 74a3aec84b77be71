# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""No attention supervision: the baseline."""

from typing import Any

from grounded_attention.modeling.task_losses import Counts, Losses
from grounded_attention.utils.named_types import Batch, Fields

from .method import SupervisionMethod


class NoSupervision(SupervisionMethod):
    """Adds no loss to the losses of the task.

    Args:
        none.

    References:
        Samaran et al. (2021), table 1, the rows without attention supervision.

    Requirements:
        none.

    Inputs:
        | batch entry | shape | meaning        |
        |-------------|-------|----------------|
        | any         |       | nothing is read |

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from grounded_attention import get_method
        >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99))
        >>> method = get_method("none")
        >>> method.prepare(model)
        >>> outputs = model(inputs_embeds=torch.randn(1, 7, 32), **method.forward_kwargs({}))
        >>> method.losses(outputs, {})
        {}
    """

    name = "none"
    needs_grounding = False

    def forward_kwargs(self, batch: Batch) -> Fields:
        return {}

    def counts(self, batch: Batch) -> Counts:
        return {}

    def losses(self, outputs: Any, batch: Batch) -> Losses:
        return {}

    def get_config_dict(self) -> Fields:
        return {"name": self.name}
