# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Indirect attention supervision: the final states of a phrase and a region predict whether they belong together."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from grounded_attention.modeling.task_losses import Counts, Losses
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.schema import Weight

from .alignment import grounded_phrases
from .method import SupervisionMethod


class IndirectSupervision(SupervisionMethod):
    """Binary cross-entropy of each grounded phrase with each region (equation 5).

    The attention has no loss of its own. The classifier can succeed only if attention connects phrases with regions.

    Args:
        weight (`float`, *optional*, defaults to `1.0`): factor of the loss.

    References:
        Samaran et al. (2021), section 2.2.3, equation 5.

    Requirements:
        A model whose outputs have `grounding_logits` (B, P, R), the score of each phrase with each region before the
        sigmoid, such as `VLBertForVGP` with `config.grounding_head=True`.

    Inputs:
        | batch entry             | shape     | meaning                                                      |
        |-------------------------|-----------|--------------------------------------------------------------|
        | `phrase_mask`           | (B, P, T) | the tokens of each phrase                                    |
        | `phrase_regions`        | (B, P, R) | its regions; phrases without regions are ignored             |
        | `region_candidate_mask` | (B, R)    | the regions to classify, without whole image and padding     |
        | `region_attention_mask` | (B, R)    | used if there is no `region_candidate_mask`                  |

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from grounded_attention import get_method
        >>> method = get_method("indirect")
        >>> batch = {  # four tokens, three regions; the phrase of tokens 1 and 2 names region 1
        ...     "phrase_mask": torch.tensor([[[0, 1, 1, 0]]]), "phrase_regions": torch.tensor([[[0, 1, 0]]]),
        ...     "region_candidate_mask": torch.tensor([[0, 1, 1]])}
        >>> phrases, regions = torch.randn(1, 1, 8, requires_grad=True), torch.randn(1, 3, 8)
        >>> outputs = SimpleNamespace(grounding_logits=phrases @ regions.transpose(1, 2))
        >>> total, count = method.losses(outputs, batch)["grounding"]
        >>> (total / count).backward()
        >>> int(count)
        1
    """

    name = "indirect"

    def __init__(self, weight: Weight = 1.0):
        self.weight = float(weight)

    @property
    def model_config(self) -> Fields:
        return {**super().model_config, "grounding_head": True}

    def prepare(self, model: Any) -> None:
        """Checks that the model has a grounding head.

        Raises:
            ValueError: if `config.grounding_head` is False, or the class has no such head.
        """
        wanted = getattr(model.config, "grounding_head", None)
        if wanted is None or (wanted and getattr(model, "grounding_head", None) is not None):
            return
        raise ValueError(
            f"indirect supervision needs a grounding head, but this {type(model).__name__} has none: "
            + ("use a model for VGP or pre-training" if wanted else "make it with config.grounding_head=True")
        )

    def forward_kwargs(self, batch: Batch) -> Fields:
        return {}

    def counts(self, batch: Batch) -> Counts:
        pairs, _ = _grounded_pairs(batch)
        return {"grounding": pairs.any(-1).sum()}

    def losses(self, outputs: Any, batch: Batch) -> Losses:
        logits = getattr(outputs, "grounding_logits", None)
        if logits is None:
            raise ValueError(
                "the outputs have no grounding_logits: indirect supervision needs a model with a grounding head, and "
                "phrase_mask must be among its inputs"
            )
        pairs, gold = _grounded_pairs(batch)
        logits = logits.float().masked_fill(~pairs, 0.0)
        losses = F.binary_cross_entropy_with_logits(logits, gold.to(logits.dtype), reduction="none") * pairs
        losses = losses / pairs.sum(-1, keepdim=True).clamp(min=1)  # the mean over regions, then over phrases
        components = {"grounding": (self.weight * losses.sum(), self.counts(batch)["grounding"])}
        self.visible_rows.check(components, dict)
        return components

    def get_config_dict(self) -> Fields:
        return {"name": self.name, "weight": self.weight}


def _grounded_pairs(batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns two (B, P, R) bool: the pairs of a grounded phrase and a candidate region, and the gold pairs."""
    mask, regions = grounded_phrases(batch)
    gold = regions.bool() & mask.bool().any(-1, keepdim=True)
    candidates = batch.get("region_candidate_mask")
    if candidates is None:
        candidates = batch.get("region_attention_mask")
    if candidates is not None:
        gold = gold & candidates.bool()[:, None]
    pairs = gold.any(-1, keepdim=True).expand_as(gold)
    return (pairs if candidates is None else pairs & candidates.bool()[:, None]), gold
