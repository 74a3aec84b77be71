# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What pre-training predicts: the labels of each objective in a batch, and the losses on them."""

from typing import Any

from torch import Tensor

from grounded_attention.modeling.task_losses import (
    count_labels,
    cross_entropy_sum,
    is_distribution,
    soft_cross_entropy_sum,
)

from .task import Batch


def word_labels(batch: Batch) -> Tensor | None:
    """(B, T) the words to predict beside images; None without the objective."""
    labels, text_only = batch.get("labels"), batch.get("text_only")
    return labels if labels is None or text_only is None else labels.masked_fill(text_only[:, None], -100)


def text_word_labels(batch: Batch) -> Tensor | None:
    """(B, T) the words to predict in texts without image; None without such texts."""
    labels, text_only = batch.get("labels"), batch.get("text_only")
    return None if labels is None or text_only is None else labels.masked_fill(~text_only[:, None], -100)


def region_labels(batch: Batch) -> Tensor | None:
    """(B, R) the most likely class of the regions to predict; None without the objective."""
    probs = batch.get("region_label_probs")
    return batch.get("region_labels") if probs is None else probs.argmax(-1).masked_fill(~is_distribution(probs), -100)


def relationship_labels(batch: Batch) -> Tensor | None:
    """(B,) whether the caption belongs to the image; None without the objective."""
    return batch.get("relationship_labels")


def region_loss(outputs: Any, batch: Batch) -> Tensor:
    """Cross-entropy of the chosen regions with the detector's class, or with its distribution, summed.

    Raises:
        ValueError: the model has fewer classes than the detector.
    """
    logits, probs = outputs.region_logits, batch.get("region_label_probs")
    labels = region_labels(batch)
    if labels is None:
        return logits.sum() * 0
    known, found = logits.shape[-1], int(labels.max()) + 1 if probs is None else probs.shape[-1]
    if found > known or (probs is not None and found != known):
        raise ValueError(
            f"the regions have {found} detector classes or more, model.config.region_classes is {known}: "
            "give the number of the detector's classes (with background, where it has one)"
        )
    if probs is None:
        return _labelled_sum(logits, labels)
    predicted = labels >= 0
    return soft_cross_entropy_sum(logits[predicted], probs[predicted])[0]


def _labelled_sum(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Cross-entropy, summed over the labelled items; 0 with a graph without labels.

    Few words and regions are predicted, of many classes: the others are left out first.
    """
    if labels is None:
        return logits.sum() * 0
    predicted = labels >= 0
    return cross_entropy_sum(logits[predicted], labels[predicted])[0]


def count(labels: Tensor | None) -> Tensor | None:
    return None if labels is None else count_labels(labels)


def relationship_loss(outputs: Any, batch: Batch) -> Tensor:
    """Cross-entropy of whether the caption belongs to the image, summed (the paper's sigmoid, as two classes)."""
    labels = relationship_labels(batch)
    return outputs.mlm_logits.sum() * 0 if labels is None else _labelled_sum(outputs.relationship_logits, labels)


def word_loss(outputs: Any, batch: Batch) -> Tensor:
    """Cross-entropy of the masked words beside images, summed."""
    return _labelled_sum(outputs.mlm_logits, word_labels(batch))


def text_word_loss(outputs: Any, batch: Batch) -> Tensor:
    """Cross-entropy of the masked words of texts without image, summed."""
    return _labelled_sum(outputs.mlm_logits, text_word_labels(batch))
