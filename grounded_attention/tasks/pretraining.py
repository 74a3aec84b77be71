# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training on captions (VL-BERT, section 3.3): masked words with visual clues, masked regions with linguistic
clues, whether the caption belongs to the image; beside it masked words of texts without images (VL-BERT public code).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.metrics.classification import ClassificationAccuracy

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
DRAWS = 1000  # of captions, before a split is taken to hold one image only


@dataclass(frozen=True)
class PretrainingOptions:
    """What is predicted, and how much of it. The defaults are the paper's.

    Args:
        words: predict masked words.
        regions: predict the detector's class of masked regions; None where the model's family does. Left out where
            the model sees no regions.
        relationship: half of the images get a caption of another image; predict which (1: the caption belongs).
        region_targets: `"hard"`, the detector's most likely class, or `"soft"`, its probabilities of all classes
            (public code).
        background: the model's region class 0 is the background, as in the 1,601 classes of the Visual Genome
            detector: a table's class k, which counts without background, is the model's class k + 1. Hard targets
            only: probabilities are taken in the columns they have.
        word_probability: chance of a word to be predicted.
        region_probability: chance of a region to be predicted.
        regions_kept: share of the predicted regions that stay visible; 0.1 in the public code.
        max_sequence_length: most text tokens (with [CLS] and [SEP]) and regions (with the whole image) of an example
            together; of the longer of the two the last, for regions the least certain, is left out (64 in the public
            code).
        texts_per_image: rows of text alone beside each image, where there is a text corpus.
        flip_probability: chance of a picture to be mirrored while training, with its boxes, and "left" and "right" in
            its caption (0.5 in the public code, which leaves the words). Of use only where the model reads pixels.

    Raises:
        ValueError: nothing to predict, or a value outside its range.
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


def collate(examples: Examples, processor: Any, options: PretrainingOptions) -> dict[str, Any]:
    """Captions -> masked model inputs and targets, see `VLBertForPreTraining.forward`.

    Every draw comes from the row's own generator, so that it depends neither on the other rows of the batch nor on
    what the batch is padded to. With texts, the batch gains `text_only` (B,) bool: rows of text alone stand below
    those of the images.

    Raises:
        ValueError: no detector classes (or probabilities) for masked regions; no caption of another image.
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
        hidden = [hides for _, hides in chosen]
        arguments["image_features"] = [mean_of_visible(r.features, h) for r, h in zip(regions, hidden, strict=True)]
    if options.max_sequence_length is not None:
        arguments["max_sequence_length"] = options.max_sequence_length
    batch = dict(processor(text=texts, return_tensors="pt", **arguments))
    if chosen is not None and regions is not None:
        batch |= region_targets(batch["region_candidate_mask"], regions, chosen, options)
    if related is not None:
        batch["relationship_labels"] = torch.tensor(related)
    if options.words:
        masker = word_masker(processor.tokenizer, options.word_probability)
        mask_words(batch, masker, generators)
        if examples.texts is not None and options.texts_per_image:
            texts, generators = draw_texts(examples.texts, options.texts_per_image, generators)
            below = dict(processor(text=texts, layout="plain", max_length=options.max_sequence_length))
            mask_words(below, masker, generators)
            batch = stack_batches(batch, below, processor.tokenizer.pad_token_id)
    return batch


def exchange_captions(examples: Examples, generators: Sequence[np.random.Generator]) -> tuple[list[str], list[int]]:
    """Each row's caption, or with probability 0.5 one of another image of the split; and 1 where it is its own.

    Raises:
        ValueError: the split has no caption of another image.
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
    """A caption of another image of the split.

    Raises:
        ValueError: there is none; the message says that `option` needs one.
    """
    for _ in range(DRAWS):
        other = split[int(rng.integers(len(split)))]
        if other["image_id"] != row["image_id"]:
            return other["text"]
    raise ValueError(
        f"no caption of another image than {row['image_id']!r} among {len(split)} rows: {option} needs several images"
    )


def _regions(examples: Examples, options: PretrainingOptions) -> list[Any] | None:
    """The region records, the most certain regions first where the sequence may leave out the last."""
    if examples.regions is None:
        return None
    cut = options.max_sequence_length is not None
    return [_most_certain_first(r) if cut and r.scores is not None else r for r in examples.regions]


def _most_certain_first(record: Any) -> Any:
    order = np.argsort(-record.scores, kind="stable")
    return replace(record, **{name: array[order] for name, array in record.arrays().items()})


@lru_cache(maxsize=4)
def word_masker(tokenizer: Any, probability: float) -> WordMasker:
    """The masker of a tokenizer's words; one is made for each."""
    return WordMasker(tokenizer, probability)


def mask_words(batch: dict[str, Any], masker: WordMasker, generators: Sequence[np.random.Generator]) -> None:
    """Masks `input_ids` in place and adds `labels` (B, T), -100 where nothing is predicted."""
    rows, labels = batch["input_ids"].numpy(), []
    for row, length, rng in zip(rows, batch["attention_mask"].sum(1).tolist(), generators, strict=True):
        row[:length], wanted = masker(row[:length], rng)
        labels.append(wanted.tolist())
    batch["labels"] = pad_labels(labels, rows.shape[1])


def region_targets(
    candidates: Tensor,
    regions: Sequence[Any],
    chosen: Sequence[tuple[np.ndarray, np.ndarray]],
    options: PretrainingOptions,
) -> dict[str, Tensor]:
    """`masked_regions` (B, R) bool, and `region_labels` (B, R) or `region_label_probs` (B, R, C).

    Args:
        candidates: (B, R) bool, the columns of detected regions; the first of an image's regions are in the sequence.
        chosen: of each image, which regions are predicted and which are hidden.
    """
    masked = torch.zeros_like(candidates)
    for row, columns, (_, hidden) in zip(masked, candidates, chosen, strict=True):
        row[columns] = torch.from_numpy(hidden[: int(columns.sum())])
    soft = options.region_targets == "soft"
    wanted = [_class_probs(r) if soft else _classes(r, options.background) for r in regions]
    shape = (*candidates.shape, wanted[0].shape[1]) if soft else candidates.shape
    targets = torch.zeros(shape) if soft else torch.full(shape, -100)
    for row, columns, values, (predicted, _) in zip(targets, candidates, wanted, chosen, strict=True):
        fits = int(columns.sum())
        place = columns.nonzero()[:, 0][torch.from_numpy(predicted[:fits])]
        row[place] = torch.from_numpy(values[:fits][predicted[:fits]]).to(row.dtype)
    return {"masked_regions": masked, "region_label_probs" if soft else "region_labels": targets}


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
        f"image {record.image_id}: the region table holds no {what}, which {option} needs: import or extract features "
        "with them, or give options.regions=false"
    )


def configure(task: Task, options: PretrainingOptions, config: Any) -> Task:
    """The task as it is, or without masked regions where these are left to the family and it predicts none.

    Raises:
        ValueError: masked regions are asked for, and the family predicts none.
    """
    if options.regions is False or hasattr(config, "region_classes"):
        return task
    if options.regions:
        raise ValueError(
            f"models of the family {config.model_type!r} do not predict the class of masked regions: give "
            "options.regions=false, or the task caption_match_pretraining"
        )
    return replace(task, collate=_without_regions)


def _without_regions(examples: Examples, processor: Any, options: PretrainingOptions) -> dict[str, Any]:
    return collate(examples, processor, replace(options, regions=False))


# What a card does with the model: see `Task.example`.
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
