# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training on captions (VL-BERT, section 3.3): masked words with visual clues, masked regions with linguistic
clues, and the caption match; also masked words of texts without images (VL-BERT public code), and the answers to
questions among the texts (LXMERT, section 3.1.3).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.modeling.plain_answers import plain_answer
from grounded_attention.modeling.task_losses import UNLABELLED

from .answer_lists import check_answers, read_answers
from .caption_rows import to_rows
from .flipping import flip_some
from .judges import judge_pretraining
from .masking import (
    CO_MASKING,
    REGION_PROBABILITY,
    WORD_PROBABILITY,
    WordMasker,
    choose_regions,
    find_overlapping,
    hide_overlapping,
    mean_of_visible,
)
from .pretraining_losses import (
    FEATURE_TARGETS,
    answer_objective,
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
from .pretraining_regions import RegionTargets, place_regions, region_targets
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
SHARES = (
    "word_probability",
    "region_probability",
    "regions_kept",
    "regions_exchanged",
    "flip_probability",
    "answers_from",
)
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
        regions_exchanged (`float`, *optional*, defaults to `0.0`): share of the predicted regions that get the feature
            of a random region of another image; 0.1 in the public code of LXMERT. Targets are those of the region
            itself. Only for region features.
        co_masking (`str`, *optional*, defaults to `"none"`): what happens to regions that overlap others (IoU above
            0.4): `"none"`, `"paper"`: those that overlap a hidden region are hidden too, and not predicted (12-in-1
            paper), or `"released"`, the fault of the public code of 12-in-1: they stay visible, and the sum of the
            visible features is divided by the number of regions that overlap no predicted one, so the feature of the
            whole image is too large.
        max_sequence_length (`int`, *optional*): maximum number of text tokens (with [CLS] and [SEP]) plus regions
            (with the whole image) in an example. If there are more, the longer of the two is cut: the end of the text,
            or the regions with the lowest scores (64 in the public code).
        texts_per_image (`int`, *optional*, defaults to 1): rows of text without image for each image, if there is a
            text corpus.
        flip_probability (`float`, *optional*, defaults to `0.0`): probability that a picture is flipped in training,
            with its boxes, and with "left" and "right" exchanged in its caption (0.5 in the public code, which does
            not change the words). Only for models that read pixels.
        answers (`str`, `list[str]` or `dict[str, int]`, *optional*): the answers to questions among the texts: the
            path of a JSON list, a list, or `{"fewest": n}`: the best answers to at least n training questions. Needs
            rows with `answers` and a family that predicts them (LXMERT). An exchanged question has no label. By
            default no answers are predicted.
        answers_from (`float`, *optional*, defaults to `0.0`): share of the training's steps before which answers are
            not part of the loss: 0 in the public code of LXMERT, 0.5 in its paper (section 3.3).

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
    regions_exchanged: float = 0.0
    co_masking: str = "none"
    answers: Any = None
    answers_from: float = 0.0

    def __post_init__(self) -> None:
        if not (self.words or self.regions is not False or self.relationship or self.answers is not None):
            raise ValueError("nothing to predict: switch on words, regions or relationship")
        if self.region_targets not in TARGETS:
            raise ValueError(f"region_targets is {self.region_targets!r}, expected one of {', '.join(TARGETS)}")
        for name in SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a share in [0, 1]")
        if self.regions_kept + self.regions_exchanged > 1:
            raise ValueError(
                f"regions_kept is {self.regions_kept} and regions_exchanged is {self.regions_exchanged}, expected a "
                "sum of at most 1"
            )
        if self.co_masking not in CO_MASKING:
            raise ValueError(f"co_masking is {self.co_masking!r}, expected one of {', '.join(CO_MASKING)}")
        if self.co_masking != "none" and self.regions is False:
            raise ValueError(f"co_masking is {self.co_masking!r}, but regions is false: no region is masked")
        if self.answers is not None:
            check_answers(self.answers)
        elif self.answers_from:
            raise ValueError(f"answers_from is {self.answers_from}, but answers is empty: give answers, or remove it")
        if self.texts_per_image < 0:
            raise ValueError(f"texts_per_image is {self.texts_per_image}, expected 0 or more")

    @cached_property
    def answer_index(self) -> dict[str, int]:
        """Answer, as [`plain_answer`] writes it -> its class.

        Raises:
            ValueError: if the list has not been read yet.
        """
        if not isinstance(self.answers, list):
            raise ValueError(f"answers is {self.answers!r}: the list has not been read yet, call fit_options first")
        index: dict[str, int] = {}
        for number, answer in enumerate(self.answers):
            index.setdefault(plain_answer(answer), number)
        return index


def fit_options(options: PretrainingOptions, splits: Mapping[str, Any]) -> PretrainingOptions:
    """Completes the options with the list of answers itself.

    Args:
        options (`PretrainingOptions`): options of the task.
        splits (`Mapping[str, Any]`): split -> rows.

    Returns:
        `PretrainingOptions`: the options.

    Raises:
        ValueError: if the list cannot be read, or the training rows have no answers to make it from.
    """
    if options.answers is None:
        return options
    given = (answers for answers in _given_answers(splits.get("train")) if answers)
    best = ([max(answers, key=lambda each: each["score"])["answer"]] for answers in given)
    return replace(options, answers=read_answers(options.answers, best, plain_answer))


def remarks(options: PretrainingOptions, splits: Mapping[str, Any]) -> list[str]:
    """How many answers there are, and to how many questions of each split."""
    if options.answers is None:
        return []
    lines, index = [f"answers: {len(options.answers)}"], options.answer_index
    for name, rows in splits.items():
        questions = [
            any(plain_answer(each["answer"]) in index for each in given) for given in _given_answers(rows) if given
        ]
        lines.append(f"answers, {name}: {sum(questions)} of {len(questions)} questions have one in the list")
    return lines


def _given_answers(rows: Any) -> Iterator[list[dict[str, Any]]]:
    """The answers of each row; nothing if the rows have none. Few rows are in memory at a time."""
    if rows is None or "answers" not in rows.column_names:
        return
    for batch in rows.select_columns(["answers"]).iter(10_000):
        yield from batch["answers"]


def collate(
    examples: Examples, processor: Any, options: PretrainingOptions, wanted: RegionTargets | None = None
) -> dict[str, Any]:
    """Makes a batch of masked model inputs and targets, see `VLBertForPreTraining.forward`.

    All draws for a row use the generator of the row, so they depend neither on the other rows of the batch nor on the
    padding.

    Args:
        examples (`Examples`): the rows, their regions or pictures, and texts without images.
        processor (`ProcessorMixin`): processor of the model.
        options (`PretrainingOptions`): options of the task, completed by `fit_options`.
        wanted (`RegionTargets`, *optional*): what the family predicts of regions; their classes by default.

    Returns:
        `dict[str, Any]`: model inputs and targets. With texts also `text_only` (B,) bool; the rows of text without
        images come last. With answers also `answer_labels` (B,) int64, -100 for rows without a known answer.

    Raises:
        ValueError: if masked regions have no detector classes (or probabilities), no other image has a caption, or
            features of other regions are needed and there are none.
    """
    wanted = wanted or RegionTargets()
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
            choose_regions(
                len(record.boxes), rng, options.region_probability, options.regions_kept, options.regions_exchanged
            )
            for record, rng in zip(regions, generators, strict=True)
        ]
        if options.co_masking == "paper":
            chosen = [hide_overlapping(record, each) for record, each in zip(regions, chosen, strict=True)]
    shown = regions
    if chosen is not None and regions is not None and options.regions_exchanged:
        shown = exchange_features(examples, regions, [each.exchanged for each in chosen])
    arguments = region_arguments(shown) if images is None else pixel_arguments(images, regions)
    whole_image = images is None and processor.whole_image
    if options.co_masking == "released" and not whole_image:
        raise ValueError(
            "options.co_masking=released changes the feature of the whole image, but this model reads none: use paper "
            "or none"
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
    if options.max_sequence_length is not None:
        arguments["max_sequence_length"] = options.max_sequence_length
    batch = dict(processor(text=texts, return_tensors="pt", **arguments))
    if chosen is not None and regions is not None:
        batch |= region_targets(batch["region_candidate_mask"], regions, chosen, options, wanted)
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
    return batch


def answer_labels(
    rows: Sequence[Mapping[str, Any]],
    related: Sequence[int] | None,
    index: Mapping[str, int],
    generators: Sequence[np.random.Generator],
) -> Tensor:
    """Draws an answer of each question, in proportion to the scores of its known answers (LXMERT public code).

    Args:
        rows (`Sequence[Mapping[str, Any]]`): the rows; `answers` are a list of `{answer, score}`.
        related (`Sequence[int]`, *optional*): 0 for a row whose text was exchanged; None if none was.
        index (`Mapping[str, int]`): answer -> class, see `PretrainingOptions.answer_index`.
        generators (`Sequence[np.random.Generator]`): one random generator per row.

    Returns:
        `Tensor`: (B,) int64 classes, -100 for rows without a known answer and for exchanged texts.
    """
    labels = torch.full((len(rows),), UNLABELLED)
    for number, (row, rng) in enumerate(zip(rows, generators, strict=True)):
        given = [(index.get(plain_answer(each["answer"])), each["score"]) for each in row.get("answers") or ()]
        known = [(label, score) for label, score in given if label is not None and score > 0]
        if known and (related is None or related[number]):
            bounds = np.cumsum([score for _, score in known])
            labels[number] = known[int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right"))][0]
    return labels


def exchange_features(examples: Examples, regions: Sequence[Any], exchanged: Sequence[np.ndarray]) -> list[Any]:
    """Replaces the features of regions by those of random regions of other images of the split.

    The draws use a generator of their own, so that the other draws of a row are the same without them.

    Args:
        examples (`Examples`): the rows and their split.
        regions (`Sequence[Regions]`): one region record per row.
        exchanged (`Sequence[np.ndarray]`): (n,) bool for each image, the regions that get another feature.

    Returns:
        `list[Regions]`: the records; those without exchanged regions are the same objects.

    Raises:
        ValueError: if there are no region features, or no other image has regions.
    """
    if examples.find_regions is None or any(record.features is None for record in regions):
        raise ValueError("options.regions_exchanged needs region features (data.regions): set it to 0")
    split, shown = examples.split or examples.rows, []
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
    row: Mapping[str, Any],
    split: Sequence[Mapping[str, Any]],
    find_regions: Callable[[Mapping[str, Any]], Any],
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
    return draw_other_row(row, split, rng, option)["text"]


def draw_other_row(
    row: Mapping[str, Any], split: Sequence[Mapping[str, Any]], rng: np.random.Generator, option: str
) -> Mapping[str, Any]:
    """Draws a row of another image of the split; arguments and error as in [`draw_other_caption`]."""
    for _ in range(DRAWS):
        other = split[int(rng.integers(len(split)))]
        if other["image_id"] != row["image_id"]:
            return other
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


def configure(task: Task, options: PretrainingOptions, config: Any) -> Task:
    """Sets what the model family predicts of masked regions; nothing if `regions` is None and it predicts none.

    Args:
        task (`Task`): the task.
        options (`PretrainingOptions`): options of the task.
        config (`PreTrainedConfig`): configuration of the model.

    Returns:
        `Task`: the task.

    Raises:
        ValueError: if `regions` is True and the model family does not predict them, or if there are answers and it
            does not predict answers.
    """
    answers = _answer_losses(options, config)
    if options.regions is False:
        return replace(task, losses=(*task.losses, *answers)) if answers else task
    if hasattr(config, "region_classes"):
        words, text_words, _, relationship = task.losses
        losses = (words, text_words, *region_objectives(config), relationship, *answers)
        return replace(task, losses=losses, collate=partial(collate, wanted=RegionTargets.of(config)))
    if options.regions:
        raise ValueError(
            f"models of the family {config.model_type!r} do not predict the class of masked regions: set "
            "options.regions=false, or use the task caption_match_pretraining"
        )
    return replace(task, losses=(*task.losses, *answers), collate=_without_regions)


def _answer_losses(options: PretrainingOptions, config: Any) -> tuple[LossComponent, ...]:
    if options.answers is None:
        return ()
    if not hasattr(config, "num_qa_labels"):
        raise ValueError(
            f"models of the family {config.model_type!r} predict no answers in pre-training: remove options.answers, "
            "or give model.family=lxmert"
        )
    return (answer_objective(options.answers_from),)


def model_config(options: PretrainingOptions) -> dict[str, Any]:
    """The configuration fields of a model with these options; families have some of them."""
    relationship = {"relationship_head": True} if options.relationship else {}
    if options.answers is None:
        return {**relationship, "task_qa": False}
    answers = list(options.answers)
    return {**relationship, "task_qa": True, "qa_answers": answers, "num_qa_labels": len(answers)}


def trained_options(config: Any, grounded: bool) -> dict[str, Any]:
    """The options with which a trained model is evaluated."""
    options = {"relationship": config.relationship_head, "regions": grounded}
    answers = getattr(config, "qa_answers", None) if getattr(config, "task_qa", False) else None
    return options if answers is None else {**options, "answers": list(answers)}


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
        ClassificationAccuracy("answers", "answer_logits", "answer_labels"),
    ],
    collate=collate,
    options=PretrainingOptions,
    model_config=model_config,
    to_rows=to_rows,
    fit_options=fit_options,
    remarks=remarks,
    configure=configure,
    judge=judge_pretraining,
    example=HIDDEN_WORD,
    trained_options=trained_options,
)
