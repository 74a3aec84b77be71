# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training on captions (VL-BERT, section 3.3): masked words with visual clues, masked regions with linguistic
clues, and the caption match; also masked words of texts without images (VL-BERT public code), and the answers to
questions among the texts (LXMERT, section 3.1.3).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.modeling.task_config import RegionTargets, plain_answer
from grounded_attention.modeling.task_losses import UNLABELLED
from grounded_attention.utils.named_types import Columns, Fields, Row
from grounded_attention.utils.schema import Count, Index, Section, Share, Weight

from .answering import Answers, fitted, read_answers
from .caption_rows import to_rows
from .flipping import flip_some
from .masked_task import (
    FEATURE_TARGETS,
    REGIONS,
    TEXT_WORDS,
    WORDS,
    MaskedTask,
    labelled,
    region_labels,
    region_objectives,
    text_word_labels,
    word_labels,
)
from .masking import (
    REGION_PROBABILITY,
    WORD_PROBABILITY,
    ChosenRegions,
    CoMasking,
    choose_regions,
    find_overlapping,
    hide_overlapping,
    mask_words,
    mean_of_visible,
    word_masker,
)
from .task import (
    TEXT_AND_REGIONS,
    Examples,
    LossComponent,
    Metric,
    pixel_arguments,
    region_arguments,
)


def region_targets(
    candidates: Tensor, regions: Sequence[Any], chosen: Sequence[ChosenRegions], options: Any, wanted: RegionTargets
) -> dict[str, Tensor]:
    """Makes the targets of masked regions."""
    masks = {
        "predicted_regions": [each.predicted for each in chosen],
        "masked_regions": [each.hidden for each in chosen],
    }
    targets = {}
    for column, mask in masks.items():
        targets[column] = place_regions(candidates, mask, candidates.new_zeros(candidates.shape))
    all_regions = wanted.normalizer is not None
    labelled = candidates if all_regions else targets["predicted_regions"]
    if wanted.classes and options.region_targets == "soft":
        probs = _known(regions, "class_probs")
        empty = torch.zeros(*candidates.shape, probs[0].shape[1])
        return {**targets, "region_label_probs": place_regions(candidates, probs, empty) * labelled[..., None]}
    columns = []
    if wanted.classes:
        background = int(options.background and wanted.background)
        classes = [numbers + background for numbers in _known(regions, "classes")]
        columns.append(("region_label", classes, "scores"))
    if wanted.attributes:
        columns.append(("attribute_label", _known(regions, "attributes"), "attribute_scores"))
    for name, values, scores in columns:
        labels = place_regions(candidates, values, torch.full(candidates.shape, UNLABELLED))
        targets[f"{name}s"] = labels.masked_fill(~labelled, UNLABELLED)
        if all_regions:
            weights = place_regions(candidates, _known(regions, scores), torch.zeros(candidates.shape))
            targets[f"{name}_weights"] = weights
    return targets


def check_classes(targets: dict[str, Tensor], known: int) -> None:
    """Raises ValueError if the regions have other classes than the `known` ones that the model predicts."""
    probs = targets.get("region_label_probs")
    labels = targets.get("region_labels")
    if labels is None or not labels.numel():
        classes = known
    else:
        classes = max(known, int(labels.max()) + 1)
    if probs is not None:
        classes = probs.shape[-1]
    if classes != known:
        raise ValueError(
            f"the regions have {classes} detector classes or more, but model.config.region_classes is {known}: "
            "set it to the number of classes of the detector (plus background, if it has this class)"
        )


def place_regions(candidates: Tensor, values: Sequence[np.ndarray], out: Tensor) -> Tensor:
    """Writes the values of each image's regions into their columns of `out` (B, R, ...)."""
    for row, columns, own in zip(out, candidates, values, strict=True):
        row[columns] = torch.from_numpy(own[: int(columns.sum())]).to(row.dtype)
    return out


# Array of a region table -> its name in words, and the option that needs it.
_NEEDED = {
    "classes": ("detector classes", "options.region_targets=hard"),
    "class_probs": ("class probabilities (class_probs)", "options.region_targets=soft"),
    "attributes": ("attributes", "model.config.visual_attr_loss=true"),
    "scores": ("scores (confidence of the detector)", "model.config.visual_loss=released"),
    "attribute_scores": ("attribute_scores (confidence of the detector)", "model.config.visual_loss=released"),
}


def _known(regions: Sequence[Any], name: str) -> list[np.ndarray]:
    """An array of each image's regions; raises ValueError if one has none."""
    for record in regions:
        if getattr(record, name) is None:
            what, option = _NEEDED[name]
            raise ValueError(
                f"image {record.image_id}: the region table has no {what}, but {option} needs them: import or extract "
                "features with them, or set options.regions=false"
            )
    return [getattr(record, name) for record in regions]


DRAWS = 1000  # captions to draw before the split counts as one with a single image


def exchange_features(examples: Examples, regions: Sequence[Any], exchanged: Sequence[np.ndarray]) -> list[Any]:
    """Replaces the features of regions by those of random regions of other images of the split."""
    if examples.find_regions is None or any(record.features is None for record in regions):
        raise ValueError("options.regions_exchanged needs region features (data.regions): set it to 0")
    split = examples.split or examples.rows
    shown = []
    for row, record, mask in zip(examples.rows, regions, exchanged, strict=True):
        if mask.any():
            rng = examples.generator(f"{row['caption_id']} exchanged regions")
            features = record.features.copy()
            for place in np.flatnonzero(mask):
                features[place] = _draw_other_feature(row, split, examples.find_regions, rng)
            record = replace(record, features=features)
        shown.append(record)
    return shown


def _draw_other_feature(
    row: Row,
    split: Sequence[Columns],
    find_regions: Callable[[Columns], Any],
    rng: np.random.Generator,
) -> np.ndarray:
    """Draws the feature of a region of another image of the split."""
    for _ in range(DRAWS):
        other = draw_other_row(row, split, rng, "options.regions_exchanged")
        features = find_regions(other).features
        if len(features):
            return features[int(rng.integers(len(features)))]
    raise ValueError(f"found no regions in {DRAWS} other images: set options.regions_exchanged=0")


def exchange_captions(examples: Examples, generators: Sequence[np.random.Generator]) -> tuple[list[str], list[int]]:
    """Replaces captions, with probability 0.5, by captions of other images of the split."""
    texts = []
    labels = []
    for row, rng in zip(examples.rows, generators, strict=True):
        is_own = rng.random() < 0.5
        if not is_own:
            row = draw_other_row(row, examples.split or examples.rows, rng, "options.relationship")
        texts.append(row["text"])
        labels.append(int(is_own))
    return texts, labels


def draw_other_row(row: Row, split: Sequence[Columns], rng: np.random.Generator, option: str) -> Columns:
    """Draws a row of another image of the split."""
    for _ in range(DRAWS):
        other = split[int(rng.integers(len(split)))]
        if other["image_id"] != row["image_id"]:
            return other
    raise ValueError(
        f"found no caption of an image other than {row['image_id']!r} in {len(split)} rows: {option} needs several "
        "images"
    )


@dataclass(frozen=True)
class PretrainingOptions(Section):
    """Options of the task. The defaults are those of the paper."""

    words: bool = True
    regions: bool | None = True
    relationship: bool = True
    region_targets: Literal["hard", "soft"] = "hard"
    background: bool = True
    word_probability: Share = WORD_PROBABILITY
    region_probability: Share = REGION_PROBABILITY
    regions_kept: Share = 0.0
    max_sequence_length: Count | None = None
    texts_per_image: Index = 1
    flip_probability: Share = 0.0
    regions_exchanged: Share = 0.0
    co_masking: CoMasking = "none"
    answers: Answers | None = None
    answers_from: Share = 0.0
    relationship_weight: Weight = 1.0

    def __post_init__(self) -> None:
        if not (self.words or self.regions is not False or self.relationship or self.answers is not None):
            raise ValueError("nothing to predict: switch on words, regions or relationship")
        if self.regions_kept + self.regions_exchanged > 1:
            raise ValueError(
                f"regions_kept is {self.regions_kept} and regions_exchanged is {self.regions_exchanged}, expected a "
                "sum of at most 1"
            )

    @cached_property
    def answer_index(self) -> dict[str, int]:
        """Answer, as [`plain_answer`] writes it -> its class."""
        index: dict[str, int] = {}
        for number, answer in enumerate(fitted(self.answers)):
            index.setdefault(plain_answer(answer), number)
        return index


class Pretraining(MaskedTask):
    """Masked words and regions, the match, and answers."""

    name = "pretraining"
    builder = "flickr30k_entities"
    model_inputs = (*TEXT_AND_REGIONS, "masked_regions", "phrase_mask")
    Options = PretrainingOptions

    @property
    def family_targets(self) -> RegionTargets | None:
        """What the model's family predicts of masked regions, if the options ask for that."""
        if self.config is None or self.options.regions is False:
            return None
        return self.config.region_targets

    @property
    def targets(self) -> tuple[str, ...]:
        """Without the regions of a family with several heads, which has a target for every region."""
        several = self.family_targets is not None and self.family_targets.separate_heads
        if several:
            return ("labels",)
        return ("labels", "region_labels", "region_label_probs")

    @property
    def losses(self) -> tuple[LossComponent, ...]:
        regions = (REGIONS,) if self.family_targets is None else region_objectives(self.family_targets)
        losses = (WORDS, TEXT_WORDS, *regions, self.relationship)
        if self.options.answers is None:
            return losses
        begin = self.options.answers_from
        return (*losses, labelled("answers", "answer_logits", lambda batch: batch.get("answer_labels"), begin))

    def metrics(self) -> list[Metric]:
        return [
            ClassificationAccuracy("words", "mlm_logits", word_labels),
            ClassificationAccuracy("text_words", "mlm_logits", text_word_labels),
            ClassificationAccuracy("regions", "region_logits", region_labels),
            ClassificationAccuracy("relationship", "relationship_logits", "relationship_labels"),
            ClassificationAccuracy("answers", "answer_logits", "answer_labels"),
        ]

    def check_config(self) -> None:
        """A family that predicts nothing of masked regions suits `regions` of None or False."""
        options = self.options
        family = f"models of the family {self.config.model_type!r}"
        if options.answers is not None and not hasattr(self.config, "num_qa_labels"):
            raise ValueError(
                f"{family} predict no answers in pre-training: remove options.answers, or give model.family=lxmert"
            )
        if options.regions and self.config.region_targets is None:
            raise ValueError(
                f"{family} do not predict the class of masked regions: set options.regions=false, or use the task "
                "caption_match_pretraining"
            )
        targets = self.family_targets
        if targets and options.region_targets == "soft" and (targets.separate_heads or not targets.classes):
            raise ValueError(
                f"options.region_targets=soft has no effect: {family} are not trained on class probabilities of "
                "masked regions: remove it"
            )

    def model_config(self) -> Fields:
        """Families have some of these fields."""
        relationship = {"relationship_head": True} if self.options.relationship else {}
        if self.options.answers is None:
            return {**relationship, "task_qa": False}
        answers = list(self.options.answers)
        return {**relationship, "task_qa": True, "qa_answers": answers, "num_qa_labels": len(answers)}

    def trained_options(self, config: Any, grounded: bool) -> Fields:
        options = {"relationship": config.relationship_head, "regions": grounded}
        answers = getattr(config, "qa_answers", None) if getattr(config, "task_qa", False) else None
        if answers is None:
            return options
        return {**options, "answers": list(answers)}

    def to_rows(self, split: Any, grounded: bool = False) -> Any:
        return to_rows(split, grounded)

    def fit_options(self, splits: Columns) -> Any:
        options = self.options
        if options.answers is None:
            return options
        answered = (answers for answers in _given_answers(splits.get("train")) if answers)
        best = ([max(answers, key=lambda each: each["score"])["answer"]] for answers in answered)
        return replace(options, answers=read_answers(options.answers, best, plain_answer))

    def remarks(self, splits: Columns) -> list[str]:
        """How many answers there are, and to how many questions of each split."""
        options = self.options
        if options.answers is None:
            return []
        lines = [f"answers: {len(options.answers)}"]
        index = options.answer_index
        for name, rows in splits.items():
            questions = []
            for answers in _given_answers(rows):
                if answers:
                    questions.append(any(plain_answer(each["answer"]) in index for each in answers))
            lines.append(f"answers, {name}: {sum(questions)} of {len(questions)} questions have one in the list")
        return lines

    def collate(self, examples: Examples, processor: Any) -> Fields:
        """Makes a batch of masked model inputs and targets, see `VLBertForPreTraining.forward`."""
        options = self.options
        if self.config is not None and self.config.region_targets is None:  # no masked regions
            options = replace(options, regions=False)
        wanted = self.family_targets or RegionTargets()
        generators = [examples.generator(row["caption_id"]) for row in examples.rows]
        texts = [row["text"] for row in examples.rows]
        related = None
        if options.relationship:
            texts, related = exchange_captions(examples, generators)
        regions = _regions(examples, options)
        images = examples.images
        phrases: list[Any] | None = None
        if regions is not None and "phrases" in examples.rows[0]:  # those of an exchanged caption are left out
            kept = related or [1] * len(examples.rows)
            phrases = []
            for row, keep in zip(examples.rows, kept, strict=True):
                phrases.append(row["phrases"] or [] if keep else [])
        if images is not None and examples.training and options.flip_probability:
            texts, regions, images, phrases = flip_some(
                texts, regions, images, generators, options.flip_probability, phrases
            )
        chosen = None
        if options.regions is not False and regions is not None:
            chosen = []
            for record, rng in zip(regions, generators, strict=True):
                chosen.append(
                    choose_regions(
                        len(record.boxes),
                        rng,
                        options.region_probability,
                        options.regions_kept,
                        options.regions_exchanged,
                    )
                )
            if options.co_masking == "paper":
                chosen = [hide_overlapping(record, each) for record, each in zip(regions, chosen, strict=True)]
        shown = regions
        if chosen is not None and regions is not None and options.regions_exchanged:
            shown = exchange_features(examples, regions, [each.exchanged for each in chosen])
        arguments = region_arguments(shown) if images is None else pixel_arguments(images, regions)
        whole_image = images is None and processor.whole_image
        if options.co_masking == "released" and not whole_image:
            raise ValueError(
                "options.co_masking=released changes the feature of the whole image, but this model reads none: use "
                "paper or none"
            )
        if whole_image and shown is not None and chosen is not None:
            arguments["image_features"] = [
                mean_of_visible(
                    record.features,
                    each.hidden,
                    ~find_overlapping(record, each.predicted) if options.co_masking == "released" else None,
                )
                for record, each in zip(shown, chosen, strict=True)
            ]
        if phrases is not None:
            arguments["phrases"] = phrases
        if options.max_sequence_length is not None:
            arguments["max_sequence_length"] = options.max_sequence_length
        batch = processor(text=texts, return_tensors="pt", **arguments).reported()
        dropped = {name: batch.pop(name) for name in ("dropped_phrases", "cut_tokens") if name in batch}
        if chosen is not None and regions is not None:
            targets = region_targets(batch["region_candidate_mask"], regions, chosen, options, wanted)
            if wanted.classes and self.config is not None and examples.training:
                check_classes(targets, self.config.region_classes)
            batch |= targets
            if options.regions_exchanged and wanted.features:
                own = [record.features for record in regions]
                batch[FEATURE_TARGETS] = place_regions(
                    batch["region_candidate_mask"], own, batch["region_features"].clone()
                )
        if related is not None:
            batch["relationship_labels"] = torch.tensor(related)
        if options.words:
            masker = word_masker(processor.tokenizer, options.word_probability)
            mask_words(batch, masker, generators)
            if examples.texts is not None and options.texts_per_image:
                alone, drawn_by = draw_texts(examples.texts, options.texts_per_image, generators)
                text_rows = dict(processor(text=alone, layout="plain", max_length=options.max_sequence_length))
                mask_words(text_rows, masker, drawn_by)
                batch = stack_batches(batch, text_rows, processor.tokenizer.pad_token_id)
        if options.answers is not None:
            # The last draws, so that all others are the same without answers.
            labels = answer_labels(examples.rows, related, options.answer_index, generators)
            batch["answer_labels"] = F.pad(labels, (0, len(batch["input_ids"]) - len(labels)), value=UNLABELLED)
        return {**batch, **dropped}


def _given_answers(rows: Any) -> Iterator[list[Fields]]:
    """The answers of each row; nothing if the rows have none. Few rows are in memory at a time."""
    if rows is None or "answers" not in rows.column_names:
        return
    for batch in rows.select_columns(["answers"]).iter(10_000):
        yield from batch["answers"]


def answer_labels(
    rows: Sequence[Row],
    related: Sequence[int] | None,
    index: Mapping[str, int],
    generators: Sequence[np.random.Generator],
) -> Tensor:
    """Draws an answer of each question, in proportion to the scores of its known answers (LXMERT public code)."""
    labels = torch.full((len(rows),), UNLABELLED)
    for number, (row, rng) in enumerate(zip(rows, generators, strict=True)):
        labelled = [(index.get(plain_answer(each["answer"])), each["score"]) for each in row.get("answers") or ()]
        known = []
        for label, score in labelled:
            if label is not None and score > 0:
                known.append((label, score))
        if known and (related is None or related[number]):
            bounds = np.cumsum([score for _, score in known])
            labels[number] = known[int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right"))][0]
    return labels


def _regions(examples: Examples, options: PretrainingOptions) -> list[Any] | None:
    """The region records; regions with the highest scores come first if the processor may cut the last regions."""
    if examples.regions is None:
        return None
    cut = options.max_sequence_length is not None
    return [_sort_by_score(r) if cut and r.scores is not None else r for r in examples.regions]


def _sort_by_score(record: Any) -> Any:
    order = np.argsort(-record.scores, kind="stable")
    return replace(record, **{name: array[order] for name, array in record.arrays().items()})


TASK = Pretraining()


# Rows of a text corpus


TEXT_KEYS = {"input_ids", "attention_mask", "token_type_ids", "text_positions", "labels"}


def draw_texts(
    texts: Sequence[Columns], count: int, generators: Sequence[np.random.Generator]
) -> tuple[list[str], list[np.random.Generator]]:
    """Draws `count` texts of a corpus with each generator."""
    drawn = []
    for rng in generators:
        for _ in range(count):
            drawn.append((texts[int(rng.integers(len(texts)))]["text"], rng))
    return [text for text, _ in drawn], [rng for _, rng in drawn]


def stack_batches(images: Mapping[str, Tensor], texts: Mapping[str, Tensor], padding: int) -> dict[str, Tensor]:
    """Joins a batch of image rows and a batch of text rows."""
    counts = [len(batch["input_ids"]) for batch in (images, texts)]
    length = images["input_ids"].shape[1]
    width = max(length, texts["input_ids"].shape[1])
    stacked = {}
    for name, above in images.items():
        if name.endswith("labels"):
            fill = UNLABELLED
        else:
            fill = -1 if name.endswith("_positions") else 0
        if name == "input_ids":
            fill = padding
        if name in TEXT_KEYS:
            parts = [F.pad(part, (0, width - part.shape[1]), value=fill) for part in (above, texts[name])]
        else:
            if name == "phrase_mask":  # (B1, P, T1)
                above = F.pad(above, (0, width - above.shape[2]))
            elif name == "region_positions" and (above[above >= 0] >= length).all():  # behind the text, which is wider
                above = torch.where(above >= 0, above + (width - length), above)
            parts = [above, above.new_full((counts[1], *above.shape[1:]), fill)]
        stacked[name] = torch.cat(parts)
    return stacked | {"text_only": torch.arange(sum(counts)) >= counts[0]}
