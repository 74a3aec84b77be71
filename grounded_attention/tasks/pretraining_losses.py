# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The labels of each objective of pre-training in a batch, and the losses."""

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
    """Returns (B, T) labels of masked words in texts with images; None without this objective."""
    labels, text_only = batch.get("labels"), batch.get("text_only")
    return labels if labels is None or text_only is None else labels.masked_fill(text_only[:, None], -100)


def text_word_labels(batch: Batch) -> Tensor | None:
    """Returns (B, T) labels of masked words in texts without images; None without such texts."""
    labels, text_only = batch.get("labels"), batch.get("text_only")
    return None if labels is None or text_only is None else labels.masked_fill(~text_only[:, None], -100)


def region_labels(batch: Batch) -> Tensor | None:
    """Returns (B, R) the most likely class of each masked region; None without this objective."""
    probs = batch.get("region_label_probs")
    return batch.get("region_labels") if probs is None else probs.argmax(-1).masked_fill(~is_distribution(probs), -100)


def relationship_labels(batch: Batch) -> Tensor | None:
    """Returns (B,) labels, 1 if the caption belongs to the image; None without this objective."""
    return batch.get("relationship_labels")


def region_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums the cross-entropy of the predicted regions with the class of the detector, or with its distribution.

    Raises:
        ValueError: if the numbers of classes of the model and the detector do not fit.
    """
    logits, probs = outputs.region_logits, batch.get("region_label_probs")
    labels = region_labels(batch)
    if labels is None:
        return logits.sum() * 0
    known, found = logits.shape[-1], int(labels.max()) + 1 if probs is None else probs.shape[-1]
    if found > known or (probs is not None and found != known):
        raise ValueError(
            f"the regions have {found} detector classes or more, but model.config.region_classes is {known}: "
            "set it to the number of classes of the detector (plus background, if it has this class)"
        )
    if probs is None:
        return _labelled_sum(logits, labels)
    predicted = labels >= 0
    return soft_cross_entropy_sum(logits[predicted], probs[predicted])[0]


def _labelled_sum(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Sums the cross-entropy over items with a label; 0 with a graph if there are no labels.

    Items without label are removed first, because most items have none and there are many classes.
    """
    if labels is None:
        return logits.sum() * 0
    predicted = labels >= 0
    return cross_entropy_sum(logits[predicted], labels[predicted])[0]


def count(labels: Tensor | None) -> Tensor | None:
    """Returns the number of labels, () int64; None without labels."""
    return None if labels is None else count_labels(labels)


def relationship_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums the cross-entropy of the caption match (the paper uses a sigmoid; this is the same with two classes)."""
    labels = relationship_labels(batch)
    return outputs.mlm_logits.sum() * 0 if labels is None else _labelled_sum(outputs.relationship_logits, labels)


def word_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums the cross-entropy of masked words in texts with images."""
    return _labelled_sum(outputs.mlm_logits, word_labels(batch))


def text_word_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums the cross-entropy of masked words in texts without images."""
    return _labelled_sum(outputs.mlm_logits, text_word_labels(batch))
