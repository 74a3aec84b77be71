# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training on captions (VL-BERT, section 3.3): masked words with visual clues, masked regions with linguistic
clues, and the caption match; also masked words of texts without images (VL-BERT public code).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.modeling.task_losses import UNLABELLED

from .caption_rows import to_rows
from .flipping import flip_some
from .judges import judge_pretraining
from .masking import (
    REGION_PROBABILITY,
    WORD_PROBABILITY,
    WordMasker,
    choose_regions,
    mean_of_visible,
)
from .pretraining_losses import (
    count,
    region_labels,
    region_loss,
    region_objectives,
    relationship_labels,
    relationship_loss,
    text_word_labels,
    text_word_loss,
    word_labels,
    word_loss,
)
from .task import (
    TEXT_AND_REGIONS,
    Examples,
    LossComponent,
    Task,
    pad_labels,
    pixel_arguments,
    region_arguments,
)
from .text_rows import draw_texts, stack_batches

TARGETS = ("hard", "soft")
DRAWS = 1000  # captions to draw before the split counts as one with a single image


@dataclass(frozen=True)
class PretrainingOptions:
    """Options of the task. The defaults are those of the paper.

    Args:
        words (`bool`, *optional*, defaults to `True`): predict masked words.
        regions (`bool`, *optional*, defaults to `True`): predict the detector class of masked regions; None to do so
            only if the model family supports it. Without regions in the data there is no such loss.
        relationship (`bool`, *optional*, defaults to `True`): give half of the images a caption of another image, and
            predict the caption match (1: the caption belongs to the image).
        region_targets (`str`, *optional*, defaults to `"hard"`): `"hard"`, the most likely class of the detector, or
            `"soft"`, its probabilities of all classes (public code).
        background (`bool`, *optional*, defaults to `True`): region class 0 of the model is the background, as in the
            1,601 classes of the Visual Genome detector. Then class k of a region table, which has no background, is
            class k + 1 of the model. Only for hard targets; the columns of probabilities are not changed.
        word_probability (`float`, *optional*, defaults to `0.15`): probability that a word is predicted.
        region_probability (`float`, *optional*, defaults to `0.15`): probability that a region is predicted.
        regions_kept (`float`, *optional*, defaults to `0.0`): share of the predicted regions that stay visible; 0.1 in
            the public code.
        max_sequence_length (`int`, *optional*): maximum number of text tokens (with [CLS] and [SEP]) plus regions
            (with the whole image) in an example. If there are more, the longer of the two is cut: the end of the text,
            or the regions with the lowest scores (64 in the public code).
        texts_per_image (`int`, *optional*, defaults to 1): rows of text without image for each image, if there is a
            text corpus.
        flip_probability (`float`, *optional*, defaults to `0.0`): probability that a picture is flipped in training,
            with its boxes, and with "left" and "right" exchanged in its caption (0.5 in the public code, which does
            not change the words). Only for models that read pixels.

    Raises:
        ValueError: if there is nothing to predict, or a value is outside its range.
    """

    words: bool = True
    regions: bool | None = True
    relationship: bool = True
    region_targets: str = "hard"
    background: bool = True
    word_probability: float = WORD_PROBABILITY
    region_probability: float = REGION_PROBABILITY
    regions_kept: float = 0.0
    max_sequence_length: int | None = None
    texts_per_image: int = 1
    flip_probability: float = 0.0

    def __post_init__(self) -> None:
        if not (self.words or self.regions is not False or self.relationship):
            raise ValueError("nothing to predict: switch on words, regions or relationship")
        if self.region_targets not in TARGETS:
            raise ValueError(f"region_targets is {self.region_targets!r}, expected one of {', '.join(TARGETS)}")
        for name in ("word_probability", "region_probability", "regions_kept", "flip_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a share in [0, 1]")
        if self.texts_per_image < 0:
            raise ValueError(f"texts_per_image is {self.texts_per_image}, expected 0 or more")


@dataclass(frozen=True)
class RegionTargets:
    """What a family predicts of masked regions.

    Args:
        classes (`bool`, *optional*, defaults to `True`): the class of the detector.
        attributes (`bool`, *optional*, defaults to `False`): its attribute.
        all_regions (`bool`, *optional*, defaults to `False`): classes and attributes of regions that are not masked
            too, weighted by the confidence of the detector (LXMERT public code).
    """

    classes: bool = True
    attributes: bool = False
    all_regions: bool = False

    @classmethod
    def of(cls, config: Any) -> "RegionTargets":
        """The targets for the family of a configuration."""
        if getattr(config, "visual_loss", None) is not None:
            return cls(config.visual_obj_loss, config.visual_attr_loss, config.visual_loss == "released")
        return cls(getattr(config, "visual_target", "classes") == "classes")


def collate(
    examples: Examples, processor: Any, options: PretrainingOptions, wanted: RegionTargets | None = None
) -> dict[str, Any]:
    """Makes a batch of masked model inputs and targets, see `VLBertForPreTraining.forward`.

    All draws for a row use the generator of the row, so they depend neither on the other rows of the batch nor on the
    padding.

    Args:
        examples (`Examples`): the rows, their regions or pictures, and texts without images.
        processor (`ProcessorMixin`): processor of the model.
        options (`PretrainingOptions`): options of the task.

    Returns:
        `dict[str, Any]`: model inputs and targets. With texts also `text_only` (B,) bool; the rows of text without
        images come last.

    Raises:
        ValueError: if masked regions have no detector classes (or probabilities), or no other image has a caption.
    """
    generators = [examples.generator(row["caption_id"]) for row in examples.rows]
    texts, related = [row["text"] for row in examples.rows], None
    if options.relationship:
        texts, related = exchange_captions(examples, generators)
    regions, images = _regions(examples, options), examples.images
    if images is not None and examples.training and options.flip_probability:
        texts, regions, images = flip_some(texts, regions, images, generators, options.flip_probability)
    chosen = None
    if options.regions is not False and regions is not None:
        chosen = [
            choose_regions(len(record.boxes), rng, options.region_probability, options.regions_kept)
            for record, rng in zip(regions, generators, strict=True)
        ]
    arguments = region_arguments(regions) if images is None else pixel_arguments(images, regions)
    if images is None and regions is not None and chosen is not None and processor.whole_image:
        hidden = [mask for _, mask in chosen]
        arguments["image_features"] = [mean_of_visible(r.features, h) for r, h in zip(regions, hidden, strict=True)]
    if options.max_sequence_length is not None:
        arguments["max_sequence_length"] = options.max_sequence_length
    batch = dict(processor(text=texts, return_tensors="pt", **arguments))
    if chosen is not None and regions is not None:
        batch |= region_targets(batch["region_candidate_mask"], regions, chosen, options, wanted or RegionTargets())
    if related is not None:
        batch["relationship_labels"] = torch.tensor(related)
    if options.words:
        masker = word_masker(processor.tokenizer, options.word_probability)
        mask_words(batch, masker, generators)
        if examples.texts is not None and options.texts_per_image:
            texts, generators = draw_texts(examples.texts, options.texts_per_image, generators)
            text_rows = dict(processor(text=texts, layout="plain", max_length=options.max_sequence_length))
            mask_words(text_rows, masker, generators)
            batch = stack_batches(batch, text_rows, processor.tokenizer.pad_token_id)
    return batch


def exchange_captions(examples: Examples, generators: Sequence[np.random.Generator]) -> tuple[list[str], list[int]]:
    """Replaces captions, with probability 0.5, by captions of other images of the split.

    Args:
        examples (`Examples`): the rows and their split.
        generators (`Sequence[np.random.Generator]`): one random generator per row.

    Returns:
        `tuple[list[str], list[int]]`: one caption per row, and 1 if it belongs to the image, else 0.

    Raises:
        ValueError: if the split has no caption of another image.
    """
    pairs = [
        (row["text"], 1)
        if rng.random() < 0.5
        else (draw_other_caption(row, examples.split or examples.rows, rng, "options.relationship"), 0)
        for row, rng in zip(examples.rows, generators, strict=True)
    ]
    return [text for text, _ in pairs], [label for _, label in pairs]


def draw_other_caption(
    row: Mapping[str, Any], split: Sequence[Mapping[str, Any]], rng: np.random.Generator, option: str
) -> str:
    """Draws a caption of another image of the split.

    Args:
        row (`Mapping[str, Any]`): row of the image.
        split (`Sequence[Mapping[str, Any]]`): all rows.
        rng (`np.random.Generator`): generator of the draws.
        option (`str`): option that needs the caption, for the error message.

    Returns:
        `str`: the caption.

    Raises:
        ValueError: if no other image was found in 1,000 draws.
    """
    for _ in range(DRAWS):
        other = split[int(rng.integers(len(split)))]
        if other["image_id"] != row["image_id"]:
            return other["text"]
    raise ValueError(
        f"found no caption of an image other than {row['image_id']!r} in {len(split)} rows: {option} needs several "
        "images"
    )


def _regions(examples: Examples, options: PretrainingOptions) -> list[Any] | None:
    """The region records; regions with the highest scores come first if the processor may cut the last regions."""
    if examples.regions is None:
        return None
    cut = options.max_sequence_length is not None
    return [_sort_by_score(r) if cut and r.scores is not None else r for r in examples.regions]


def _sort_by_score(record: Any) -> Any:
    order = np.argsort(-record.scores, kind="stable")
    return replace(record, **{name: array[order] for name, array in record.arrays().items()})


@lru_cache(maxsize=4)
def word_masker(tokenizer: Any, probability: float) -> WordMasker:
    """Makes the word masker for a tokenizer; it is cached, because it reads the whole vocabulary."""
    return WordMasker(tokenizer, probability)


def mask_words(batch: dict[str, Any], masker: WordMasker, generators: Sequence[np.random.Generator]) -> None:
    """Masks `input_ids` in place and adds `labels` (B, T), -100 if a token is not predicted.

    Args:
        batch (`dict[str, Any]`): a batch with `input_ids` and `attention_mask`.
        masker (`WordMasker`): the masker.
        generators (`Sequence[np.random.Generator]`): one random generator per row.
    """
    rows, labels = batch["input_ids"].numpy(), []
    for row, length, rng in zip(rows, batch["attention_mask"].sum(1).tolist(), generators, strict=True):
        row[:length], row_labels = masker(row[:length], rng)
        labels.append(row_labels.tolist())
    batch["labels"] = pad_labels(labels, rows.shape[1])


def region_targets(
    candidates: Tensor,
    regions: Sequence[Any],
    chosen: Sequence[tuple[np.ndarray, np.ndarray]],
    options: PretrainingOptions,
    wanted: RegionTargets,
) -> dict[str, Tensor]:
    """Makes the targets of masked regions.

    Args:
        candidates (`Tensor`): (B, R) bool, the columns of detected regions. If regions were cut, the first regions of
            the image are in the sequence.
        regions (`Sequence[Regions]`): one region record per row.
        chosen (`Sequence[tuple[np.ndarray, np.ndarray]]`): for each image the regions that are predicted and those
            that are hidden, see [`choose_regions`].
        options (`PretrainingOptions`): options of the task.
        wanted (`RegionTargets`): what the family predicts.

    Returns:
        `dict[str, Tensor]`: `masked_regions` and `predicted_regions` (B, R) bool, and what is wanted of
        `region_labels` (B, R) or `region_label_probs` (B, R, C), and `attribute_labels` (B, R), each with its
        `..._weights` (B, R) if all regions are wanted.

    Raises:
        ValueError: if the region table lacks a column.
    """
    masks = {"predicted_regions": [which for which, _ in chosen], "masked_regions": [hidden for _, hidden in chosen]}
    found = {
        name: _place(candidates, values, candidates.new_zeros(candidates.shape)) for name, values in masks.items()
    }
    labelled = candidates if wanted.all_regions else found["predicted_regions"]
    if wanted.classes and options.region_targets == "soft":
        probs = [_class_probs(record) for record in regions]
        empty = torch.zeros(*candidates.shape, probs[0].shape[1])
        return {**found, "region_label_probs": _place(candidates, probs, empty) * labelled[..., None]}
    columns = []
    if wanted.classes:
        columns.append(("region_label", [_classes(r, options.background) for r in regions], "scores"))
    if wanted.attributes:
        columns.append(("attribute_label", [_attributes(record) for record in regions], "attribute_scores"))
    for name, values, scores in columns:
        labels = _place(candidates, values, torch.full(candidates.shape, UNLABELLED))
        found[f"{name}s"] = labels.masked_fill(~labelled, UNLABELLED)
        if wanted.all_regions:
            weights = [_scores(record, scores) for record in regions]
            found[f"{name}_weights"] = _place(candidates, weights, torch.zeros(candidates.shape))
    return found


def _place(candidates: Tensor, values: Sequence[np.ndarray], out: Tensor) -> Tensor:
    """Writes the values of each image's regions into their columns of `out` (B, R, ...)."""
    for row, columns, given in zip(out, candidates, values, strict=True):
        row[columns] = torch.from_numpy(given[: int(columns.sum())]).to(row.dtype)
    return out


def _attributes(record: Any) -> np.ndarray:
    if record.attributes is None:
        raise ValueError(_missing(record, "attributes", "model.config.visual_attr_loss=true"))
    return record.attributes


def _scores(record: Any, name: str) -> np.ndarray:
    values = getattr(record, name)
    if values is None:
        raise ValueError(_missing(record, f"{name} (confidence of the detector)", "model.config.visual_loss=released"))
    return values


def _classes(record: Any, background: bool) -> np.ndarray:
    if record.classes is None:
        raise ValueError(_missing(record, "detector classes", "options.region_targets=hard"))
    return record.classes + int(background)


def _class_probs(record: Any) -> np.ndarray:
    if record.class_probs is None:
        raise ValueError(_missing(record, "class probabilities (class_probs)", "options.region_targets=soft"))
    return record.class_probs


def _missing(record: Any, what: str, option: str) -> str:
    return (
        f"image {record.image_id}: the region table has no {what}, but {option} needs them: import or extract "
        "features with them, or set options.regions=false"
    )


def configure(task: Task, options: PretrainingOptions, config: Any) -> Task:
    """Sets what the model family predicts of masked regions; nothing if `regions` is None and it predicts none.

    Args:
        task (`Task`): the task.
        options (`PretrainingOptions`): options of the task.
        config (`PreTrainedConfig`): configuration of the model.

    Returns:
        `Task`: the task.

    Raises:
        ValueError: if `regions` is True and the model family does not predict them.
    """
    if options.regions is False:
        return task
    if hasattr(config, "region_classes"):
        words, text_words, _, relationship = task.losses
        losses = (words, text_words, *region_objectives(config), relationship)
        return replace(task, losses=losses, collate=partial(collate, wanted=RegionTargets.of(config)))
    if options.regions:
        raise ValueError(
            f"models of the family {config.model_type!r} do not predict the class of masked regions: set "
            "options.regions=false, or use the task caption_match_pretraining"
        )
    return replace(task, collate=_without_regions)


def _without_regions(examples: Examples, processor: Any, options: PretrainingOptions) -> dict[str, Any]:
    return collate(examples, processor, replace(options, regions=False))


# Code for model cards, see `Task.example`.
HIDDEN_WORD = """inputs = processor(caption.replace("{word}", processor.tokenizer.mask_token, 1), **seen)
place = inputs["input_ids"][0].tolist().index(processor.tokenizer.mask_token_id)
with torch.no_grad():
    best = model(**inputs).mlm_logits[0, place].softmax(-1).max(-1)
print(f"in the place of '{word}': {{processor.tokenizer.decode([best.indices])}} ({{best.values:.0%}})")"""

TASK = Task(
    name="pretraining",
    title="pre-training",
    builder="flickr30k_entities",
    columns=("image_id", "caption_id", "text"),
    head="pretraining",
    model_inputs=(*TEXT_AND_REGIONS, "masked_regions"),
    losses=(
        LossComponent("words", word_loss, lambda batch: count(word_labels(batch))),
        LossComponent("text_words", text_word_loss, lambda batch: count(text_word_labels(batch))),
        LossComponent("regions", region_loss, lambda batch: count(region_labels(batch))),
        LossComponent("relationship", relationship_loss, lambda batch: count(relationship_labels(batch))),
    ),
    metrics=lambda: [
        ClassificationAccuracy("words", "mlm_logits", word_labels),
        ClassificationAccuracy("text_words", "mlm_logits", text_word_labels),
        ClassificationAccuracy("regions", "region_logits", region_labels),
        ClassificationAccuracy("relationship", "relationship_logits", relationship_labels),
    ],
    collate=collate,
    options=PretrainingOptions,
    model_config=lambda options: {"relationship_head": True} if options.relationship else {},
    to_rows=to_rows,
    configure=configure,
    judge=judge_pretraining,
    example=HIDDEN_WORD,
    trained_options=lambda config, grounded: {"relationship": config.relationship_head, "regions": grounded},
)
