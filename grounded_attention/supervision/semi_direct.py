# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Semi-direct attention supervision: the direct losses on attention rollout."""

from typing import Any

from grounded_attention.modeling.task_losses import Losses
from grounded_attention.utils.named_types import Batch, Fields

from .attention_function import layer_numbers
from .method import AttentionMethod, observed_layers
from .rollout import rollout_layers


class SemiDirectSupervision(AttentionMethod):
    """Cross-entropy between the attention rollout of each layer and the grounding, both directions (equations 6 to 8).

    The rollout averages heads and combines the attention of all layers below. A single head is free as long as all
    layers together connect a word with its region.

    Args:
        directions, weights, target, box_weight: see [`AttentionMethod`].
        layers (`Sequence[int | str]`, *optional*): the layers whose rollout is supervised, all by default. Their
            rollout includes the layers below.
        heads (`Sequence[int]`, *optional*): the heads that are averaged, all by default.

    References:
        Samaran et al. (2021), section 2.2.3; Abnar and Zuidema (2020), "Quantifying Attention Flow in Transformers".

    Requirements:
        A model on transformers' `AttentionInterface`, as for direct supervision. Each layer needs memory for one
        head-averaged map (B, N, N).

    Inputs:
        | batch entry             | shape     | meaning                                                      |
        |-------------------------|-----------|--------------------------------------------------------------|
        | `phrase_mask`           | (B, P, T) | the tokens of each phrase                                    |
        | `phrase_regions`        | (B, P, R) | its regions                                                  |
        | `attention_mask`        | (B, T)    | 0 for padded tokens                                          |
        | `region_attention_mask` | (B, R)    | 0 for padded regions                                         |
        | `region_boxes`          | (B, R, 4) | needed for `box_weight`: corners in [0, 1]                   |
        | `text_positions`        | (B, T)    | with `region_positions` (B, R): where tokens and regions are |
        |                         |           | for the model; optional for models of this package           |

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from grounded_attention import get_method
        >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99))
        >>> method = get_method("semi_direct", directions=["text_to_region"])
        >>> method.prepare(model)
        >>> batch = {  # four tokens, three regions; the phrase of tokens 1 and 2 names region 0
        ...     "phrase_mask": torch.tensor([[[0, 1, 1, 0]]]), "phrase_regions": torch.tensor([[[1, 0, 0]]])}
        >>> outputs = model(inputs_embeds=torch.randn(1, 7, 32), **method.forward_kwargs(batch))
        >>> total, count = method.losses(outputs, batch)["text_to_region"]
        >>> (total / count).backward()
        >>> int(count)
        2
    """

    name = "semi_direct"
    needs_one_sequence = True

    def forward_kwargs(self, batch: Batch) -> Fields:
        arguments: Fields = {"output_attentions": True, "attention_mean": self.heads or True}
        if self.layers is not None:
            arguments["attention_layers"] = tuple(range(max(self.layers) + 1))
        return arguments

    def attention_losses(self, outputs: Any, batch: Batch) -> Losses:
        observed = [layer for layer in observed_layers(outputs) if layer.mean is not None]
        rollouts = rollout_layers(observed)
        if self.layers is not None:
            by_layer = dict(zip(layer_numbers(observed), rollouts, strict=False))  # calls of streams: by place
            rollouts = [by_layer[layer] for layer in self.layers]
        maps = []
        for after in rollouts:
            for pair, block in after.items():
                maps.append((pair, block[:, None]))
        return self.maps_losses([block for _, block in maps], batch, [pair for pair, _ in maps])
