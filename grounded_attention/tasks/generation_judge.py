# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The predicted tokens of answers as words, for reports."""

from collections.abc import Iterator, Mapping
from typing import Any

from grounded_attention.metrics.answer_likelihood import answer_tokens, one_example
from grounded_attention.reports.failures import MEANT, Box, Judged

from .judges import JudgeContext, Rows


def judge_generation(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Judges the answer of each example: the generated one, or else the most likely token after each part of the gold
    answer."""
    for number, row in enumerate(rows):
        logits, labels = answer_tokens(*one_example(outputs, batch, number))
        confidence, predicted = logits.float().softmax(-1).max(-1)
        words = context.tokenizer.decode(predicted, skip_special_tokens=True)
        if "generated" in batch:
            words = batch["generated"][number]
        yield Judged(
            row["example_id"],
            row["image_id"],
            "answers",
            None,
            confidence.mean().item() if len(labels) else 0.0,
            batch["answer"][number],
            words,
            texts=(("prompt", batch["prompt"][number]),),
            kinds={"kind": row["kind"]},
            boxes=tuple(Box(MEANT, tuple(box), each["text"]) for each in row["phrases"] for box in each["boxes"]),
        )
