# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A toy task, which caption describes the image; `test_toy_family.py` puts it into a copy of `tasks/`."""

from typing import Any

import torch

from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.reports.failures import Judged

from .task import TEXT_AND_REGIONS, Examples, NoOptions, Task, classification, seen_arguments

NAMES = ("both", "the first", "the second")


def collate(examples: Examples, processor: Any, options: NoOptions) -> dict[str, Any]:
    rows = examples.rows
    inputs = processor(
        text=[row["caption1"] for row in rows],
        text_pair=[row["caption2"] for row in rows],
        phrases=[row["phrases"] for row in rows],
        return_tensors="pt",
        **seen_arguments(examples.images, examples.regions),
    )
    return {**inputs, "identification_labels": torch.tensor([row["identification_label"] for row in rows])}


def judge(outputs: Any, batch: Any, rows: Any, context: Any) -> Any:
    for row, logits in zip(rows, outputs.identification_logits.softmax(-1), strict=True):
        best, gold = int(logits.argmax()), row["identification_label"]
        names = (NAMES[gold], NAMES[best])
        yield Judged(row["example_id"], row["image_id"], "choice", float(best == gold), logits[best].item(), *names)


TASK = Task(
    name="which_caption",
    title="choosing captions",
    builder="vgp",
    columns=("image_id", "caption1", "caption2", "phrases", "identification_label"),
    head="vgp",
    model_inputs=(*TEXT_AND_REGIONS, "phrase_mask"),
    losses=(classification("choice", "identification_logits", "identification_labels"),),
    metrics=lambda: [ClassificationAccuracy("choice", "identification_logits", "identification_labels")],
    collate=collate,
    judge=judge,
    example="""with torch.no_grad():
    best = model(**processor(caption, "{other}", **seen)).identification_logits[0].argmax().item()
print("the caption chosen:", ("both", "the first", "the second")[best])""",
)
