# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The pooled state: of the first token alone, or combined with that of the first region, the whole image.

Shape letters: B batch, D text width, E region width, F pooled width.
"""

from typing import Any

from torch import Tensor, nn
from transformers.activations import ACT2FN


class StatePooler(nn.Module):
    """A linear layer and an activation on one state."""

    def __init__(self, input_size: int, output_size: int, activation: str):
        super().__init__()
        self.dense = nn.Linear(input_size, output_size)
        self.activation = ACT2FN[activation]

    def forward(self, state: Tensor) -> Tensor:
        return self.activation(self.dense(state))


def fuse_pooled(fusion_method: str, text: Tensor, regions: Tensor) -> Tensor:
    """The product (`"mul"`) or the sum (`"sum"`) of two pooled states (B, F)."""
    if fusion_method == "mul":
        return text * regions
    return text + regions


class TextFirstPooling:
    """The poolers of a base model: `pooler` for text and, unless `fusion_method` is "text", `region_pooler`."""

    config: Any

    def make_poolers(self, wanted: bool) -> None:
        """Adds the poolers; both are `None` if they are not `wanted`."""
        config = self.config
        size = config.pooled_hidden_size
        activation = config.pooler_act
        self.pooler: Any = StatePooler(config.text_hidden_size, size, activation) if wanted else None
        self.region_pooler: Any = None
        # CODEPATH: "text" in the original checkpoints, "mul" in the controlled ones of VOLTA.
        if wanted and config.fusion_method != "text":
            self.region_pooler = StatePooler(config.region_hidden_size, size, activation)

    def pool(self, text: Tensor, region_states: Tensor) -> Tensor | None:
        """The pooled state (B, F), or `None` without poolers."""
        if self.pooler is None:
            return None
        pooled = self.pooler(text)
        if self.region_pooler is None or region_states.shape[1] == 0:
            return pooled
        return fuse_pooled(self.config.fusion_method, pooled, self.region_pooler(region_states[:, 0]))


def fit_relationship_head(heads: Any, config: Any) -> None:
    """Gives the `seq_relationship` of transformers' heads of pre-training the width of the pooled state."""
    if config.pooled_hidden_size != heads.seq_relationship.in_features:
        heads.seq_relationship = nn.Linear(config.pooled_hidden_size, 2)
