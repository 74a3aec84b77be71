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
"""Losses that the model families share: plain means over the batch at hand."""

import torch
from torch import nn

# Targets count as distributions when they sum to 1 within this (VL-BERT public code); all-zero rows are not predicted.
_PROBABILITY_TOLERANCE = 0.1


def mean_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """
    Cross-entropy averaged over the labels that are not -100; 0 with a graph when there is none.

    Args:
        logits (`torch.Tensor` of shape `(..., num_classes)`): scores; the loss is computed in float32.
        labels (`torch.LongTensor` of shape `(...)`): class indices, -100 for items to leave out.
    """
    total = nn.functional.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=-100, reduction="sum"
    )
    return total / (labels != -100).sum().clamp(min=1)


def mean_cross_entropy_of_streams(logits: torch.Tensor, labels: torch.Tensor, text_only: torch.Tensor) -> torch.Tensor:
    """
    Mean cross-entropy of the words beside images plus that of text alone (VL-BERT public code, its two streams).

    Args:
        logits (`torch.Tensor` of shape `(batch_size, text_length, vocab_size)`): scores.
        labels (`torch.LongTensor` of shape `(batch_size, text_length)`): vocabulary indices, -100 to leave out.
        text_only (`torch.BoolTensor` of shape `(batch_size,)`): rows of text alone.
    """
    losses = nn.functional.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=-100, reduction="none"
    ).view_as(labels)
    predicted, text_only = labels != -100, text_only.bool()[:, None]
    streams = torch.stack([predicted & ~text_only, predicted & text_only])  # (2, B, T)
    # A stream without a masked word adds 0.
    return ((losses * streams).sum(dim=(1, 2)) / streams.sum(dim=(1, 2)).clamp(min=1)).sum()


def mean_soft_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """
    Cross-entropy with target distributions, averaged over the rows that hold one (VL-BERT public code).

    Args:
        logits (`torch.Tensor` of shape `(..., num_classes)`): scores; the loss is computed in float32.
        targets (`torch.Tensor` of shape `(..., num_classes)`): probabilities; a row that does not sum to 1 within 0.1,
            such as zeros, is left out.
    """
    targets = targets.float()
    valid = (targets.sum(-1) - 1.0).abs() < _PROBABILITY_TOLERANCE
    rows = -(targets * logits.float().log_softmax(-1)).sum(-1)
    return (rows * valid).sum() / valid.sum().clamp(min=1)


def mean_region_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """
    Binary cross-entropy averaged over the regions that have a target; 0 with a graph when none has (VL-BERT public
    code).

    Args:
        logits (`torch.Tensor` of shape `(batch_size, num_regions)`): scores; the loss is computed in float32.
        targets (`torch.Tensor` of shape `(batch_size, num_regions)`): values in [0, 1]; negative ones are left out.
    """
    targets = targets.float()
    valid = targets >= 0
    losses = nn.functional.binary_cross_entropy_with_logits(logits.float(), targets.clamp(min=0), reduction="none")
    return losses.masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1)


def mean_answer_loss(logits: torch.Tensor, targets: torch.Tensor, form: str) -> torch.Tensor:
    """
    Loss of soft answer targets, averaged over the rows.

    Args:
        logits (`torch.Tensor` of shape `(batch_size, num_answers)`): scores; the loss is computed in float32.
        targets (`torch.Tensor` of shape `(batch_size, num_answers)`): how right each answer is, in [0, 1].
        form (`str`): `"binary_cross_entropy"`, summed over the answers (VL-BERT public code), `"cross_entropy"` with
            the targets divided by their sum, rows of zeros left out (VL-BERT paper, section 4.2.2, which does not say
            what becomes of soft targets), or `"kl_divergence"` from the targets as they are, also where they do not
            sum to 1 (VisualBERT public code).
    """
    logits, targets = logits.float(), targets.float()
    if form == "kl_divergence":
        return nn.functional.kl_div(logits.log_softmax(dim=-1), targets, reduction="batchmean")
    if form == "binary_cross_entropy":
        return nn.functional.binary_cross_entropy_with_logits(logits, targets) * targets.shape[-1]
    totals = targets.sum(dim=-1, keepdim=True)
    return mean_soft_cross_entropy(logits, targets / totals.masked_fill(totals == 0, 1.0))


def mean_choice_loss(logits: torch.Tensor, labels: torch.Tensor, form: str) -> torch.Tensor:
    """
    Loss of the right choice among several; 0 with a graph when no row is labelled.

    Args:
        logits (`torch.Tensor` of shape `(batch_size, num_choices)`): scores; the loss is computed in float32.
        labels (`torch.LongTensor` of shape `(batch_size,)`): index of the right choice, -100 to leave a row out.
        form (`str`): `"sigmoid"`, binary cross-entropy averaged over the choices (VL-BERT public code), or
            `"softmax"`, cross-entropy (paper, section 4.2.1).
    """
    if form == "softmax":
        return mean_cross_entropy(logits, labels)
    choices = torch.arange(logits.shape[1], device=labels.device)
    targets = (labels[:, None] == choices).float()
    return mean_region_loss(logits, targets.masked_fill((labels == -100)[:, None], -100.0))


def sum_grounding_divergence(logits: torch.Tensor, phrase_regions: torch.Tensor) -> torch.Tensor:
    """
    Divergence of each phrase's choice of a region from a uniform one among the right regions, summed over the phrases
    of the batch (VisualBERT public code); phrases without a right region add 0.

    Args:
        logits (`torch.Tensor` of shape `(batch_size, num_phrases, num_regions)`): scores; the loss is computed in
            float32.
        phrase_regions (`torch.BoolTensor` of shape `(batch_size, num_phrases, num_regions)`): the right regions.
    """
    right = phrase_regions.bool().float()
    targets = right / right.sum(dim=-1, keepdim=True).clamp(min=1)
    return nn.functional.kl_div(logits.float().log_softmax(dim=-1), targets, reduction="sum")


__all__ = [
    "mean_answer_loss",
    "mean_choice_loss",
    "mean_cross_entropy",
    "mean_cross_entropy_of_streams",
    "mean_region_loss",
    "mean_soft_cross_entropy",
    "sum_grounding_divergence",
]
