# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Answers that a vision-language model generates: prompts, decoding, and scores of answers and boxes."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.utils import logging

from grounded_attention.metrics.item_scores import Scored
from grounded_attention.metrics.vqa_accuracy import normalise_answer, vqa_accuracy
from grounded_attention.processing.box_dialects import BOX_DIALECTS
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou
from grounded_attention.utils.named_types import Batch, Fields

logger = logging.get_logger(__name__)

# kinds of rows whose answers have a score
EXPRESSION = "expression"
QUESTION = "question"


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


def score_generated(batch: Batch) -> Scored:
    """Scores generated answers. Boxes of rows without `box_dialect` are plain numbers up to 1000.

    Of a box its overlap with the right one counts, and whether the point that the answer names, or the middle of its
    box, is in the right one (ScreenSpot's measure).
    """
    columns = [batch[name] for name in ("kind", "answer", "answers", "box", "generated")]
    scores: dict[str, list[float | None]] = {}
    for name in ("vqa_accuracy", "question_accuracy", "box_accuracy", "point_accuracy"):
        scores[name] = [None] * len(columns[0])
    dialects = batch.get("box_dialect") or [BOX_DIALECTS["plain"]] * len(columns[0])
    off_scale: list[str | None] = [None] * len(columns[0])
    boxes: list[list[float] | None] = [None] * len(columns[0])
    lenient = [False] * len(columns[0])
    for number, (kind, answer, answers, box, generated) in enumerate(zip(*columns, strict=True)):
        if kind == QUESTION and len(answers or ()) > 1:
            scores["vqa_accuracy"][number] = vqa_accuracy(generated, answers)
        elif kind == QUESTION and answer:
            scores["question_accuracy"][number] = float(normalise_answer(generated) == normalise_answer(answer))
        elif kind == EXPRESSION and box is not None:
            read = point = None
            try:
                read = dialects[number].read(generated)
                point = dialects[number].read_point(generated)
                lenient[number] = read is not None and read not in dialects[number].read_all(generated, own=True)
            except ValueError as error:
                off_scale[number] = str(error)
                logger.warning_once(f"{error}: a miss (`boxes_off_scale`); options.box_dialect chooses another form")
            boxes[number] = None if read is None else list(read)
            is_right = read is not None and box_iou([read], [box])[0, 0] >= IOU_THRESHOLD
            scores["box_accuracy"][number] = float(is_right)
            scores["point_accuracy"][number] = float(point is not None and in_box(point, box))
    totals = {}
    if any(box is not None for box in columns[3]):
        totals = {"boxes_off_scale": sum(map(bool, off_scale)), "boxes_of_other_form": sum(lenient)}
    named: dict[str, Sequence[Any]] = {"off_scale": off_scale, "other_form": lenient, "found_box": boxes}
    return Scored(scores, totals, {"generated": batch["generated"], **named})


def in_box(point: Sequence[float], box: Sequence[float]) -> bool:
    """Whether a point x, y is in a box x1, y1, x2, y2, its edges included."""
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]
