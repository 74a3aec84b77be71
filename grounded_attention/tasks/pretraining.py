# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training on captions (VL-BERT, section 3.3): masked words with visual clues, masked regions with linguistic
clues, and the caption match; also masked words of texts without images (VL-BERT public code), and the answers to
questions among the texts (LXMERT, section 3.1.3).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.modeling.plain_answers import plain_answer
from grounded_attention.modeling.task_config import RegionTargets
from grounded_attention.modeling.task_losses import UNLABELLED

from .answer_lists import read_answers
from .caption_rows import to_grounded_rows, to_rows
from .exchanges import exchange_captions, exchange_features
from .flipping import flip_some
from .judges import judge_pretraining
from .masking import (
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
from .pretraining_options import PretrainingOptions
from .pretraining_regions import place_regions, region_targets
from .row_phrases import row_phrases
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


def fit_options(options: PretrainingOptions, splits: Mapping[str, Any]) -> PretrainingOptions:
    """Completes the options with the list of answers itself."""
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
    """
    wanted = wanted or RegionTargets()
    generators = [examples.generator(row["caption_id"]) for row in examples.rows]
    texts, related = [row["text"] for row in examples.rows], None
    if options.relationship:
        texts, related = exchange_captions(examples, generators)
    regions, images = _regions(examples, options), examples.images
    phrases = None if regions is None else row_phrases(examples.rows, related)
    if images is not None and examples.training and options.flip_probability:
        texts, regions, images, phrases = flip_some(
            texts, regions, images, generators, options.flip_probability, phrases
        )
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
    if phrases is not None:
        arguments["phrases"] = phrases
    if options.max_sequence_length is not None:
        arguments["max_sequence_length"] = options.max_sequence_length
    batch = processor(text=texts, return_tensors="pt", **arguments).reported()
    dropped = {name: batch.pop(name) for name in ("dropped_phrases",) if name in batch}
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
    return {**batch, **dropped}


def answer_labels(
    rows: Sequence[Mapping[str, Any]],
    related: Sequence[int] | None,
    index: Mapping[str, int],
    generators: Sequence[np.random.Generator],
) -> Tensor:
    """Draws an answer of each question, in proportion to the scores of its known answers (LXMERT public code)."""
    labels = torch.full((len(rows),), UNLABELLED)
    for number, (row, rng) in enumerate(zip(rows, generators, strict=True)):
        given = [(index.get(plain_answer(each["answer"])), each["score"]) for each in row.get("answers") or ()]
        known = [(label, score) for label, score in given if label is not None and score > 0]
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


@lru_cache(maxsize=4)
def word_masker(tokenizer: Any, probability: float) -> WordMasker:
    """Makes the word masker for a tokenizer; it is cached, because it reads the whole vocabulary."""
    return WordMasker(tokenizer, probability)


def mask_words(batch: dict[str, Any], masker: WordMasker, generators: Sequence[np.random.Generator]) -> None:
    """Masks `input_ids` in place and adds `labels` (B, T), -100 if a token is not predicted."""
    rows, labels = batch["input_ids"].numpy(), []
    for row, length, rng in zip(rows, batch["attention_mask"].sum(1).tolist(), generators, strict=True):
        row[:length], row_labels = masker(row[:length], rng)
        labels.append(row_labels.tolist())
    batch["labels"] = pad_labels(labels, rows.shape[1])


def configure(task: Task, options: PretrainingOptions, config: Any) -> Task:
    """Sets what the model family predicts of masked regions; nothing if `regions` is None and it predicts none."""
    task, answers = weigh_relationship(task, options.relationship_weight), _answer_losses(options, config)
    if options.regions is False:
        return replace(task, losses=(*task.losses, *answers)) if answers else task
    if config.region_targets is not None:
        _check_soft(options, config)
        words, text_words, _, relationship = task.losses
        losses = (words, text_words, *region_objectives(config.region_targets), relationship, *answers)
        return replace(task, losses=losses, collate=partial(collate, wanted=config.region_targets))
    if options.regions:
        raise ValueError(
            f"models of the family {config.model_type!r} do not predict the class of masked regions: set "
            "options.regions=false, or use the task caption_match_pretraining"
        )
    return replace(task, losses=(*task.losses, *answers), collate=_without_regions)


def _check_soft(options: PretrainingOptions, config: Any) -> None:
    targets = config.region_targets
    if options.region_targets == "soft" and (targets.separate_heads or not targets.classes):
        raise ValueError(
            f"options.region_targets=soft has no effect: this {config.model_type} model is not trained on class "
            "probabilities of masked regions: remove it"
        )


def weigh_relationship(task: Task, weight: float) -> Task:
    """Returns the task with this factor of the loss of the caption match."""
    if weight == 1:
        return task
    losses = (replace(each, weight=weight) if each.name == "relationship" else each for each in task.losses)
    return replace(task, losses=tuple(losses))


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
HIDDEN_WORD = """inputs = processor(caption, phrases=[{{"text": "{word}"}}], **seen)
hidden = inputs["phrase_mask"][0, 0]  # the columns of the word
inputs["input_ids"][0, hidden] = processor.tokenizer.mask_token_id
with torch.no_grad():
    best = model(**inputs).mlm_logits[0, hidden].softmax(-1).max(-1)
print(f"in the place of '{word}': {{processor.tokenizer.decode(best.indices)}} ({{best.values[0]:.0%}})")"""

TASK = Task(
    name="pretraining",
    title="pre-training",
    builder="flickr30k_entities",
    columns=("image_id", "caption_id", "text"),
    head="pretraining",
    model_inputs=(*TEXT_AND_REGIONS, "masked_regions", "phrase_mask"),
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
    to_grounded_rows=to_grounded_rows,
    fit_options=fit_options,
    remarks=remarks,
    configure=configure,
    judge=judge_pretraining,
    example=HIDDEN_WORD,
    trained_options=trained_options,
)
