# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Answers that a vision-language model generates: prompts, decoding, and scores of answers and boxes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers.utils import logging

from grounded_attention.metrics.item_scores import Scored
from grounded_attention.metrics.vqa_accuracy import normalise_answer, vqa_accuracy
from grounded_attention.processing.box_dialects import BOX_DIALECTS, BoxDialect
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou
from grounded_attention.utils.named_types import Batch, Fields

logger = logging.get_logger(__name__)

# kinds of rows whose answers have a score
EXPRESSION = "expression"
QUESTION = "question"
SCORES = ("vqa_accuracy", "question_accuracy", "box_accuracy", "point_accuracy")


def prompt_inputs(processor: Any, prompts: Sequence[str], images: Sequence[Any] | None) -> Fields:
    """Makes the inputs of `generate`: the prompts alone, the words of users, padded on the left."""
    tokenizer = processor.tokenizer
    side, tokenizer.padding_side = tokenizer.padding_side, "left"
    try:
        return processor.model_inputs(processor(text=list(prompts), images=images))
    finally:
        tokenizer.padding_side = side


@torch.no_grad()
def generate_answers(model: Any, tokenizer: Any, batch: Batch, length: int) -> dict[str, list[str]]:
    """Decodes greedily at most `length` tokens: `generated`, one text for each example.

    `batch` has `prompt_inputs` and `labels`; a token that ends an answer in the labels ends a generated answer too.
    """
    inputs = batch["prompt_inputs"]
    ends = {int(row[row >= 0][-1]) for row in batch["labels"].cpu() if (row >= 0).any()} & {*tokenizer.all_special_ids}
    stops = sorted(ends | ({tokenizer.eos_token_id} - {None}))
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    generated = model.generate(
        **inputs, max_new_tokens=length, do_sample=False, num_beams=1, eos_token_id=stops or None, pad_token_id=pad
    )
    texts = tokenizer.batch_decode(generated[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return {"generated": [text.strip() for text in texts]}


def score_generated(batch: Batch, scale: int = 1000) -> Scored:
    """Scores generated answers. Boxes of rows without `box_dialect` are plain numbers up to `scale`.

    Of a box its overlap with the right one counts, and whether the point that the answer names, or the middle of its
    box, is in the right one (ScreenSpot's measure).
    """
    columns = [batch[name] for name in ("kind", "answer", "answers", "box", "generated")]
    dialects = batch.get("box_dialect") or [replace(BOX_DIALECTS["plain"], scale=scale)] * len(columns[0])
    found: list[Fields] = []  # of each example, without what is unknown
    for dialect, kind, answer, answers, box, generated in zip(dialects, *columns, strict=True):
        if kind == QUESTION and len(answers or ()) > 1:
            found.append({"vqa_accuracy": vqa_accuracy(generated, answers)})
        elif kind == QUESTION and answer:
            is_right = normalise_answer(generated) == normalise_answer(answer)
            found.append({"question_accuracy": float(is_right)})
        elif kind == EXPRESSION and box is not None:
            found.append(_score_box(dialect, generated, box))
        else:
            found.append({})
    scores = {name: [each.get(name) for each in found] for name in SCORES}
    off_scale = [each.get("off_scale") for each in found]
    other_form = [each.get("other_form", False) for each in found]
    totals = {}
    if any(box is not None for box in batch["box"]):
        totals = {"boxes_off_scale": sum(map(bool, off_scale)), "boxes_of_other_form": sum(other_form)}
    boxes = [each.get("found_box") for each in found]
    notes = {"off_scale": off_scale, "other_form": other_form, "found_box": boxes}
    return Scored(scores, totals, {"generated": batch["generated"], **notes})


def _score_box(dialect: BoxDialect, generated: str, box: Sequence[float]) -> Fields:
    """Whether the box and the point of an answer are right, and what else was found."""
    found: Fields = {}
    read = point = None
    try:
        read = dialect.read(generated)
        point = dialect.read_point(generated)
        found["other_form"] = read is not None and read not in dialect.read_all(generated, own=True)
    except ValueError as error:
        found["off_scale"] = str(error)
        logger.warning_once(f"{error}: a miss (`boxes_off_scale`); options.box_dialect chooses another form")
    if read is not None:
        found["found_box"] = list(read)
    is_right = read is not None and box_iou([read], [box])[0, 0] >= IOU_THRESHOLD
    is_inside = point is not None and in_box(point, box)
    return {**found, "box_accuracy": float(is_right), "point_accuracy": float(is_inside)}


def in_box(point: Sequence[float], box: Sequence[float]) -> bool:
    """Whether a point x, y is in a box x1, y1, x2, y2, its edges included."""
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]
