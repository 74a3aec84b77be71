# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The losses of tasks, each as (sum, count), both of shape (): the sum of a loss over items, and the number of items.

A Trainer divides the sum by the count of all micro-batches and processes of a step. `mean_of` divides by the count of
the current batch, for the `loss` of a model. The sum has a gradient. Losses are computed in float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..utils.named_types import Columns
from .sequence_inputs import check_shape

Loss = tuple[Tensor, Tensor]
Losses = dict[str, Loss]  # component -> its sum and how many terms it has
Counts = dict[str, Tensor]  # component -> how many terms it has

# Class index of an item without a label.
UNLABELLED = -100
# Tolerance for the sum of a target distribution (VL-BERT public code); all-zero rows are not predicted.
_PROBABILITY_TOLERANCE = 0.1


def mean_of(*losses: Loss) -> Tensor | None:
    """The sum of the means of losses; a loss with count 0 adds 0, with a gradient graph. `None` without any loss."""
    if not losses:
        return None
    return torch.stack([total / count.clamp(min=1) for total, count in losses]).sum()


def count_labels(labels: Tensor) -> Tensor:
    """The number of labels that are class indices, ()."""
    return (labels != UNLABELLED).sum()


def is_distribution(targets: Tensor) -> Tensor:
    """Finds the rows to predict: their probabilities sum to 1 within 0.1 (VL-BERT public code)."""
    return (targets.sum(-1) - 1.0).abs() < _PROBABILITY_TOLERANCE


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Loss:
    """Cross-entropy, summed and counted over the labels that are not -100."""
    total = F.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=UNLABELLED, reduction="sum")
    return total, count_labels(labels)


def soft_cross_entropy_sum(logits: Tensor, targets: Tensor) -> Loss:
    """Cross-entropy with target distributions, summed and counted over the rows that have one (VL-BERT code)."""
    targets = targets.float()
    valid = is_distribution(targets)
    return -(targets * logits.float().log_softmax(-1) * valid[..., None]).sum(), valid.sum()


def region_sum(logits: Tensor, targets: Tensor) -> Loss:
    """Binary cross-entropy, summed and counted over the regions that have a target (VL-BERT public code)."""
    targets = targets.float()
    valid = targets >= 0
    losses = F.binary_cross_entropy_with_logits(logits.float(), targets.clamp(min=0), reduction="none")
    return losses.masked_fill(~valid, 0.0).sum(), valid.sum()


def answer_sum(logits: Tensor, targets: Tensor, form: str) -> Loss:
    """Loss of soft answer targets, summed over answers and rows, counted over rows."""
    logits = logits.float()
    targets = targets.float()
    if form == "cross_entropy":
        totals = targets.sum(dim=-1, keepdim=True)
        return soft_cross_entropy_sum(logits, targets / totals.masked_fill(totals == 0, 1.0))
    rows = torch.tensor(len(targets))
    if form == "kl_divergence":
        return F.kl_div(logits.log_softmax(dim=-1), targets, reduction="sum"), rows
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum"), rows


def choice_sum(logits: Tensor, labels: Tensor, form: str) -> Loss:
    """Loss of the right choice among several, summed and counted over the labelled rows."""
    if form == "softmax":
        return cross_entropy_sum(logits, labels)
    choices = torch.arange(logits.shape[1], device=labels.device)
    targets = (labels[:, None] == choices).float()
    total, _ = region_sum(logits, targets.masked_fill((labels == UNLABELLED)[:, None], -1.0))
    return total / logits.shape[1], count_labels(labels)


def grounding_divergence_sum(logits: Tensor, phrase_regions: Tensor) -> Loss:
    """Divergence between each phrase's distribution over the regions and the uniform distribution over the right
    regions, summed over the phrases and counted over the rows (VisualBERT public code). Phrases without a right region
    add 0.
    """
    right = phrase_regions.bool().float()
    targets = right / right.sum(dim=-1, keepdim=True).clamp(min=1)
    total = F.kl_div(logits.float().log_softmax(dim=-1), targets, reduction="sum")
    return total, torch.tensor(len(logits))


def divergence_sum(logits: Tensor, targets: Tensor) -> Loss:
    """Divergence from target distributions, summed and counted over the rows that have one (ViLBERT public code)."""
    targets = targets.float()
    valid = is_distribution(targets)
    rows = F.kl_div(logits.float().log_softmax(-1), targets, reduction="none").sum(-1)
    return rows.masked_fill(~valid, 0.0).sum(), valid.sum()


def feature_error_sum(predicted: Tensor, features: Tensor, wanted: Tensor) -> Loss:
    """Mean squared error over the width of features, summed and counted over regions (ViLBERT public code)."""
    wanted = wanted.bool()
    rows = F.mse_loss(predicted.float(), features.float(), reduction="none").mean(-1)
    return rows.masked_fill(~wanted, 0.0).sum(), wanted.sum()


def draw_negatives(mask: Tensor, num_negative: int) -> Tensor:
    """Draws other features for each region with the default random generator: 70 % from other images of the batch,
    30 % from the same image (ViLBERT public code). Every region is drawn with the same probability, with replacement.
    """
    batch_size, num_regions = mask.shape
    across = int(0.7 * num_negative)
    within = int(0.3 * num_negative)
    image = torch.arange(batch_size, device=mask.device).repeat_interleave(num_regions)
    valid = mask.bool().flatten()
    other_image = valid & (image[:, None] != image)
    same_image = valid & (image[:, None] == image)
    same_image = same_image & ~torch.eye(len(valid), dtype=torch.bool, device=mask.device)
    drawn = []
    for allowed, count in ((other_image, across), (same_image, within)):
        if count == 0:
            continue
        weights = allowed.float()
        none = ~allowed.any(-1)
        weights[none] = 1.0
        indices = torch.multinomial(weights, count, replacement=True)
        drawn.append(indices.masked_fill(none[:, None], -1))
    return torch.cat(drawn, dim=1).view(batch_size, num_regions, -1)


def contrast_sum(predicted: Tensor, features: Tensor, wanted: Tensor, negatives: Tensor) -> Loss:
    """Cross-entropy of a region's own feature among others, scored by products with the prediction; summed and counted
    over regions (ViLBERT public code, "NCE").
    """
    wanted = wanted.bool()
    prediction = predicted[wanted].float()
    own = features[wanted].float()
    others = negatives[wanted]
    candidates = torch.cat([own[:, None], features.flatten(0, 1).float()[others.clamp(min=0)]], dim=1)
    scores = torch.einsum("nd,nkd->nk", prediction, candidates)
    hidden = F.pad(others < 0, (1, 0), value=False)
    rows = -scores.masked_fill(hidden, -1e9).log_softmax(-1)[:, 0]
    return rows.sum() + predicted.sum() * 0, wanted.sum()


def region_classes_sum(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    mask: Tensor | None,
    normalizer: float | None,
) -> Loss:
    """Weighted cross-entropy of the classes of regions (LXMERT)."""
    losses = F.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=UNLABELLED, reduction="none"
    ).view(labels.shape)
    if weights is not None:
        losses = losses * weights
    return _over_regions(losses, labels != UNLABELLED, mask, normalizer)


def region_features_sum(
    predicted: Tensor,
    features: Tensor,
    wanted: Tensor,
    mask: Tensor | None,
    normalizer: float | None,
) -> Loss:
    """Error of predicted features of regions (LXMERT): the mean squared error over their width (paper), or the smooth
    L1 error with a `normalizer` (public code).
    """
    error = F.mse_loss if normalizer is None else F.smooth_l1_loss
    losses = error(predicted.float(), features.float(), reduction="none").mean(-1)
    return _over_regions(losses, wanted.bool(), mask, normalizer)


def _over_regions(losses: Tensor, wanted: Tensor, mask: Tensor | None, normalizer: float | None) -> Loss:
    """Sum over the wanted regions; counted over these, or over all regions with a factor."""
    valid = torch.ones_like(wanted) if mask is None else mask.bool()
    total = losses.masked_fill(~(wanted & valid), 0.0).sum()
    if normalizer is None:
        return (total, (wanted & valid).sum())
    return (total * normalizer, valid.sum())


def region_class_loss(logits: Tensor, targets: Columns, of_probabilities: Any) -> Loss | None:
    """The loss of the classes of masked regions; `None` without their targets."""
    labels = targets.get("region_labels")
    probs = targets.get("region_label_probs")
    if labels is not None and probs is not None:
        raise ValueError("Give region_labels or region_label_probs, not both.")
    check_shape("region_labels", labels, tuple(logits.shape[:2]))
    check_shape("region_label_probs", probs, tuple(logits.shape))
    loss, target = (of_probabilities, probs) if labels is None else (cross_entropy_sum, labels)
    if target is None:
        return None
    return loss(logits, target)


def region_target_loss(config: Any, predicted: Tensor, targets: Columns) -> Loss | None:
    """The loss of masked regions for `config.visual_target`; `None` without its targets."""
    if config.visual_target == "classes":
        return region_class_loss(predicted, targets, divergence_sum)
    if any(targets.get(name) is not None for name in ("region_labels", "region_label_probs")):
        raise ValueError(f"With config.visual_target={config.visual_target!r}, give predicted_regions, not classes.")
    wanted = targets.get("predicted_regions")
    if wanted is None:
        return None
    features = targets["region_features"]
    check_shape("region_feature_targets", features, tuple(predicted.shape))
    check_shape("predicted_regions", wanted, tuple(predicted.shape[:2]))
    if config.visual_target == "features":
        return feature_error_sum(predicted, features, wanted)
    negatives = targets.get("negative_regions")
    if negatives is None:
        mask = targets.get("region_attention_mask")
        negatives = draw_negatives(torch.ones_like(wanted) if mask is None else mask, config.num_negative)
    check_shape("negative_regions", negatives, (*predicted.shape[:2], "num_negative"))
    return contrast_sum(predicted, features, wanted, negatives)
