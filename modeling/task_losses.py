# Copyright 2026 The grounded-attention authors. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The losses of tasks, each as (sum, count), both of shape (): the sum of a loss over items, and the number of items.

A Trainer divides the sum by the count of all micro-batches and processes of a step. `mean_of` divides by the count of
the current batch, for the `loss` of a model. The sum has a gradient. Losses are computed in float32.
"""

import torch
from torch.nn import functional as F

Loss = tuple[torch.Tensor, torch.Tensor]

# Class index of an item without a label.
UNLABELLED = -100
# Tolerance for the sum of a target distribution (VL-BERT public code); all-zero rows are not predicted.
_PROBABILITY_TOLERANCE = 0.1


def mean_of(*losses: Loss) -> torch.Tensor | None:
    """The sum of the means of losses; a loss with count 0 adds 0, with a gradient graph. `None` without any loss."""
    if not losses:
        return None
    return torch.stack([total / count.clamp(min=1) for total, count in losses]).sum()


def count_labels(labels: torch.Tensor) -> torch.Tensor:
    """The number of labels that are class indices, ()."""
    return (labels != UNLABELLED).sum()


def is_distribution(targets: torch.Tensor) -> torch.Tensor:
    """
    Finds the rows to predict: their probabilities sum to 1 within 0.1 (VL-BERT public code).

    Args:
        targets (`torch.Tensor` of shape `(..., num_classes)`): probabilities, or zeros.

    Returns:
        `torch.BoolTensor` of shape `(...)`.
    """
    return (targets.sum(-1) - 1.0).abs() < _PROBABILITY_TOLERANCE


def cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor) -> Loss:
    """
    Cross-entropy, summed and counted over the labels that are not -100.

    Args:
        logits (`torch.Tensor` of shape `(..., num_classes)`): scores.
        labels (`torch.LongTensor` of shape `(...)`): class indices, -100 for items to ignore.
    """
    total = F.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=UNLABELLED, reduction="sum")
    return total, count_labels(labels)


def soft_cross_entropy_sum(logits: torch.Tensor, targets: torch.Tensor) -> Loss:
    """
    Cross-entropy with target distributions, summed and counted over the rows that have one (VL-BERT public code).

    Args:
        logits (`torch.Tensor` of shape `(..., num_classes)`): scores.
        targets (`torch.Tensor` of shape `(..., num_classes)`): probabilities; rows that do not sum to 1 within 0.1,
            such as zeros, are ignored.
    """
    targets = targets.float()
    valid = is_distribution(targets)
    return -(targets * logits.float().log_softmax(-1) * valid[..., None]).sum(), valid.sum()


def region_sum(logits: torch.Tensor, targets: torch.Tensor) -> Loss:
    """
    Binary cross-entropy, summed and counted over the regions that have a target (VL-BERT public code).

    Args:
        logits (`torch.Tensor` of shape `(batch_size, num_regions)`): scores.
        targets (`torch.Tensor` of shape `(batch_size, num_regions)`): values in [0, 1]; negative ones are ignored.
    """
    targets = targets.float()
    valid = targets >= 0
    losses = F.binary_cross_entropy_with_logits(logits.float(), targets.clamp(min=0), reduction="none")
    return losses.masked_fill(~valid, 0.0).sum(), valid.sum()


def answer_sum(logits: torch.Tensor, targets: torch.Tensor, form: str) -> Loss:
    """
    Loss of soft answer targets, summed over answers and rows, counted over rows.

    Args:
        logits (`torch.Tensor` of shape `(batch_size, num_answers)`): scores.
        targets (`torch.Tensor` of shape `(batch_size, num_answers)`): score of each answer, in [0, 1].
        form (`str`): `"binary_cross_entropy"` (VL-BERT public code), `"cross_entropy"` with the targets divided by
            their sum, without rows of zeros (VL-BERT paper, section 4.2.2, which does not specify soft targets), or
            `"kl_divergence"` from the unchanged targets, even if they do not sum to 1 (VisualBERT public code).
    """
    logits, targets = logits.float(), targets.float()
    if form == "cross_entropy":
        totals = targets.sum(dim=-1, keepdim=True)
        return soft_cross_entropy_sum(logits, targets / totals.masked_fill(totals == 0, 1.0))
    rows = torch.tensor(len(targets))
    if form == "kl_divergence":
        return F.kl_div(logits.log_softmax(dim=-1), targets, reduction="sum"), rows
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum"), rows


def choice_sum(logits: torch.Tensor, labels: torch.Tensor, form: str) -> Loss:
    """
    Loss of the right choice among several, summed and counted over the labelled rows.

    Args:
        logits (`torch.Tensor` of shape `(batch_size, num_choices)`): scores.
        labels (`torch.LongTensor` of shape `(batch_size,)`): index of the right choice, -100 to ignore a row.
        form (`str`): `"sigmoid"`, binary cross-entropy averaged over the choices (VL-BERT public code), or
            `"softmax"`, cross-entropy (paper, section 4.2.1).
    """
    if form == "softmax":
        return cross_entropy_sum(logits, labels)
    choices = torch.arange(logits.shape[1], device=labels.device)
    targets = (labels[:, None] == choices).float()
    total, _ = region_sum(logits, targets.masked_fill((labels == UNLABELLED)[:, None], -1.0))
    return total / logits.shape[1], count_labels(labels)


def grounding_divergence_sum(logits: torch.Tensor, phrase_regions: torch.Tensor) -> Loss:
    """
    Divergence between each phrase's distribution over the regions and the uniform distribution over the right regions,
    summed over the phrases and counted over the rows (VisualBERT public code). Phrases without a right region add 0.

    Args:
        logits (`torch.Tensor` of shape `(batch_size, num_phrases, num_regions)`): scores; low but finite for
            padding.
        phrase_regions (`torch.BoolTensor` of shape `(batch_size, num_phrases, num_regions)`): the right regions.
    """
    right = phrase_regions.bool().float()
    targets = right / right.sum(dim=-1, keepdim=True).clamp(min=1)
    total = F.kl_div(logits.float().log_softmax(dim=-1), targets, reduction="sum")
    return total, torch.tensor(len(logits))


__all__ = [
    "UNLABELLED",
    "Loss",
    "answer_sum",
    "choice_sum",
    "count_labels",
    "cross_entropy_sum",
    "grounding_divergence_sum",
    "is_distribution",
    "mean_of",
    "region_sum",
    "soft_cross_entropy_sum",
]
