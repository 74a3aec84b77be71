# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Direct attention supervision: each head of each layer classifies what a word or a region refers to."""

from typing import Any

from grounded_attention.utils.named_types import Batch, Fields

from .layer_losses import LayerReport
from .method import AttentionMethod, observed_layers, query_arguments
from .row_plans import RowPlans, UnreadRows, read_together
from .row_states import RowStates


class DirectSupervision(AttentionMethod):
    """Cross-entropy between the attention of each head and the grounding, in both directions (equations 6 to 8).

    A grounded word should attend to its regions more than to other regions, and a grounded region to its words more
    than to other words; other attention is free. The loss is averaged over grounded words (or regions), layers and
    heads.

    Args:
        layers, heads, directions, weights, target, box_weight: see [`AttentionMethod`].

    References:
        Samaran et al. (2021), section 2.2.3, equations 6 to 8.

    Requirements:
        A model on transformers' `AttentionInterface`, with the sdpa, eager, flash_attention_2 or flex_attention back
        end. No attention map is built. In a causal model a row sees only earlier positions: supervise
        "text_to_region" if the image comes first.

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
        >>> method = get_method("direct")
        >>> method.prepare(model)
        >>> batch = {  # four tokens, three regions; the phrase of tokens 1 and 2 names region 0
        ...     "phrase_mask": torch.tensor([[[0, 1, 1, 0]]]), "phrase_regions": torch.tensor([[[1, 0, 0]]]),
        ...     "text_positions": torch.arange(4)[None], "region_positions": torch.arange(4, 7)[None]}
        >>> outputs = model(inputs_embeds=torch.randn(1, 7, 32), **method.forward_kwargs(batch))
        >>> losses = method.losses(outputs, batch)
        >>> sum(total / count for total, count in losses.values()).backward()
        >>> {name: int(count) for name, (_, count) in losses.items()}
        {'text_to_region': 2, 'region_to_text': 1}
    """

    name = "direct"
    choosable: tuple[str, ...] = ("layers", "heads")

    def forward_kwargs(self, batch: Batch) -> Fields:
        arguments: Fields = {"output_attentions": True, "attention_states": True, "attention_share": False}
        arguments["attention_plans"] = RowPlans()
        if self.layers is not None:
            arguments["attention_layers"] = self.layers
        return {**arguments, **query_arguments(self.targets(batch), batch)}

    def read_layers(self, outputs: Any) -> dict[str, list[LayerReport]]:
        reports: Any = [layer.reports for layer in observed_layers(outputs)]
        if self.heads is self.pairs is None and all(isinstance(each, UnreadRows) for each in reports):
            reports = read_together(reports)
        layers = {}
        for name, *read in zip(self.directions, *reports, strict=False):
            layers[name] = self._select_heads([each for each in read if each is not None])
        return layers

    def _select_heads(self, reports: list[LayerReport]) -> list[LayerReport]:
        """Selects the supervised heads in the report of each supervised layer."""
        if self.pairs is None and self.heads is None:
            return reports
        chosen: list[list[int]] = [list(self.heads or ())] * len(reports)
        if self.pairs is not None:
            chosen = []
            for layer in self.layers or ():
                chosen.append([head for at, head in self.pairs if at == layer])
        return [_select(report, heads) for report, heads in zip(reports, chosen, strict=True)]


def _select(report: LayerReport, heads: list[int]) -> LayerReport:
    if isinstance(report, RowStates):
        return report.select_heads(heads)
    alpha, share = report
    return alpha[:, heads], None if share is None else share[:, heads]
