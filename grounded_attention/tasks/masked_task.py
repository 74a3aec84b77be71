# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What both tasks of pre-training share: masked words of captions, whether caption and image match, and the losses."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from grounded_attention.modeling.task_config import RegionTargets
from grounded_attention.modeling.task_losses import (
    contrast_sum,
    count_labels,
    cross_entropy_sum,
    draw_negatives,
    feature_error_sum,
    is_distribution,
    region_classes_sum,
    region_features_sum,
    soft_cross_entropy_sum,
)
from grounded_attention.pages.failures import Judged
from grounded_attention.pages.overlay import MEANT, Box
from grounded_attention.utils.named_types import Batch

from .judges import JudgeContext, Rows, classified, corners
from .task import LossComponent, Task

# The entry of a batch with the features to predict; without it the model's inputs are the targets.
FEATURE_TARGETS = "region_feature_targets"


def word_labels(batch: Batch) -> Tensor | None:
    """Returns (B, T) labels of masked words in texts with images; None without this objective."""
    labels = batch.get("labels")
    text_only = batch.get("text_only")
    if labels is None or text_only is None:
        return labels
    return labels.masked_fill(text_only[:, None], -100)


def text_word_labels(batch: Batch) -> Tensor | None:
    """Returns (B, T) labels of masked words in texts without images; None without such texts."""
    labels = batch.get("labels")
    text_only = batch.get("text_only")
    if labels is None or text_only is None:
        return None
    return labels.masked_fill(~text_only[:, None], -100)


def region_labels(batch: Batch) -> Tensor | None:
    """Returns (B, R) the most likely class of each masked region; None without this objective."""
    probs = batch.get("region_label_probs")
    if probs is None:
        return batch.get("region_labels")
    return probs.argmax(-1).masked_fill(~is_distribution(probs), -100)


def count(labels: Tensor | None) -> Tensor | None:
    """Returns the number of labels, () int64; None without labels."""
    if labels is None:
        return None
    return count_labels(labels)


def labelled(name: str, logits: str, labels: Callable[[Batch], Any], begin: float = 0.0) -> LossComponent:
    """Makes the cross-entropy of the items with a label. A batch without labels is not counted, and has no loss."""

    def total(outputs: Any, batch: Batch) -> Tensor:
        known = labels(batch)
        predicted = known >= 0
        return cross_entropy_sum(getattr(outputs, logits)[predicted], known[predicted])[0]

    return LossComponent(name, total, lambda batch: count(labels(batch)), begin=begin)


def _region_loss(outputs: Any, batch: Batch) -> Tensor:
    """With the class of the detector, or with its distribution."""
    probs = batch.get("region_label_probs")
    if probs is None:
        return _CLASSES.total(outputs, batch)
    predicted = is_distribution(probs)
    return soft_cross_entropy_sum(outputs.region_logits[predicted], probs[predicted])[0]


WORDS = labelled("words", "mlm_logits", word_labels)
TEXT_WORDS = labelled("text_words", "mlm_logits", text_word_labels)
# The paper of VL-BERT uses a sigmoid; this is the same with two classes. 1: the caption belongs to the image.
RELATIONSHIP = labelled("relationship", "relationship_logits", lambda batch: batch.get("relationship_labels"))
_CLASSES = labelled("regions", "region_logits", region_labels)
REGIONS = replace(_CLASSES, total=_region_loss)


def region_objectives(targets: RegionTargets) -> tuple[LossComponent, ...]:
    """Makes the losses of masked regions of a family."""
    if targets.separate_heads:
        return _separate_objectives(targets)
    if targets.classes:
        return (REGIONS,)

    def total(outputs: Any, batch: Batch) -> Tensor:
        predicted = outputs.region_logits
        features = _feature_targets(batch)
        wanted = batch["predicted_regions"]
        if targets.num_negative is None:
            return feature_error_sum(predicted, features, wanted)[0]
        negatives = draw_negatives(batch["region_attention_mask"], targets.num_negative)
        return contrast_sum(predicted, features, wanted, negatives)[0]

    return (LossComponent("regions", total, _count_predicted),)


def _feature_targets(batch: Batch) -> Tensor:
    """(B, R, D) the features of the regions themselves; some inputs may be features of other regions."""
    return batch.get(FEATURE_TARGETS, batch["region_features"])


def _separate_objectives(targets: RegionTargets) -> tuple[LossComponent, ...]:
    """Class, attribute and feature of regions; the public code also counts regions that are not masked."""
    normalizer = targets.normalizer

    def classes(name: str, logits: str, labels: str, size: str) -> LossComponent:
        def total(outputs: Any, batch: Batch) -> Tensor:
            scores = getattr(outputs, logits)
            needed = int(batch[labels].max()) + 1
            if needed > scores.shape[-1]:
                raise ValueError(
                    f"{labels} of the regions are up to {needed - 1}, but the model has {scores.shape[-1]} classes: "
                    f"set {size} in model.config"
                )
            weights = batch.get(f"{labels.removesuffix('s')}_weights")
            mask = batch.get("region_attention_mask")
            return region_classes_sum(scores, batch[labels], weights, mask, normalizer)[0]

        items = _count_regions if normalizer is not None else lambda batch: count(batch.get(labels))
        return LossComponent(name, total, items)

    def features(outputs: Any, batch: Batch) -> Tensor:
        compared = (_feature_targets(batch), batch["predicted_regions"], batch.get("region_attention_mask"))
        return region_features_sum(outputs.predicted_features, *compared, normalizer)[0]

    components = []
    if targets.classes:
        components.append(classes("regions", "region_logits", "region_labels", "num_object_labels"))
    if targets.attributes:
        components.append(classes("attributes", "attribute_logits", "attribute_labels", "num_attr_labels"))
    if targets.features:
        components.append(
            LossComponent("features", features, _count_predicted if normalizer is None else _count_regions)
        )
    return tuple(components)


def _count_predicted(batch: Batch) -> Tensor | None:
    wanted = batch.get("predicted_regions")
    if wanted is None:
        return None
    return wanted.sum()


def _count_regions(batch: Batch) -> Tensor | None:
    if batch.get("predicted_regions") is None:
        return None
    return batch["region_attention_mask"].sum()


class MaskedTask(Task):
    """Base class of these tasks; their options have `relationship_weight`, the factor of the loss of the match."""

    title = "pre-training"
    columns = ("image_id", "caption_id", "text")
    head = "pretraining"
    phrases_on_demand = True
    example = """inputs = processor(caption, phrases=[{{"text": "{word}"}}], **seen)
hidden = inputs["phrase_mask"][0, 0]  # the columns of the word
inputs["input_ids"][0, hidden] = processor.tokenizer.mask_token_id
with torch.no_grad():
    best = model(**inputs).mlm_logits[0, hidden].softmax(-1).max(-1)
print(f"in the place of '{word}': {{processor.tokenizer.decode(best.indices)}} ({{best.values[0]:.0%}})")"""

    @property
    def targets(self) -> tuple[str, ...]:
        return ("labels",)

    @property
    def relationship(self) -> LossComponent:
        """The loss of the match."""
        return replace(RELATIONSHIP, weight=self.options.relationship_weight)

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        """Judges the caption match and the masked words, once per caption, and each masked region."""
        for number, row in enumerate(rows):
            ids = batch["input_ids"][number]
            shown = batch["attention_mask"][number].bool()
            caption = ("caption as read", context.tokenizer.decode(ids[shown][1:-1]))
            common = (row["caption_id"], row["image_id"])
            if batch.get("relationship_labels") is not None:
                probabilities = outputs.relationship_logits[number].float().softmax(-1)
                named = ("caption of another image", "caption of this image")
                fields = classified(probabilities, int(batch["relationship_labels"][number]), named)
                yield Judged(*common, "relationship", **fields, texts=(caption,))
            if batch.get("labels") is not None:
                yield from _words(common, caption, outputs.mlm_logits[number], batch["labels"][number], context)
            if batch.get("masked_regions") is not None:
                yield from _regions(common, caption, outputs, batch, number, context)


def _words(
    common: tuple[str, str], caption: tuple[str, str], logits: Tensor, labels: Tensor, context: JudgeContext
) -> Iterator[Judged]:
    masked = labels >= 0
    if not masked.any():
        return
    confidence, predicted = logits[masked].float().softmax(-1).max(-1)
    right = predicted == labels[masked]
    texts = [" ".join(context.tokenizer.convert_ids_to_tokens(ids.tolist())) for ids in (labels[masked], predicted)]
    score = right.float().mean().item()
    mean_confidence = confidence.mean().item()
    yield Judged(*common, "words", score, mean_confidence, texts[0], texts[1], texts=(caption,))


def _regions(
    common: tuple[str, str],
    caption: tuple[str, str],
    outputs: Any,
    batch: Batch,
    number: int,
    context: JudgeContext,
) -> Iterator[Judged]:
    labels: Any = region_labels(batch)
    named = [context.region(each) for each in range(outputs.region_logits.shape[-1])]
    for place in (labels[number] >= 0).nonzero()[:, 0].tolist():
        probabilities = outputs.region_logits[number, place].float().softmax(-1)
        fields = classified(probabilities, int(labels[number, place]), named)
        box = Box(MEANT, corners(batch["region_boxes"][number, place]), "masked region")
        yield Judged(f"{common[0]}:{place}", common[1], "regions", **fields, texts=(caption,), boxes=(box,))
