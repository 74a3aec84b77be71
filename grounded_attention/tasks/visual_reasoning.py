# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reasoning about two images (NLVR2; VisualBERT, appendix B.3): whether a statement is true of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from grounded_attention.dataset_scripts.builders.nlvr2 import write_predictions
from grounded_attention.metrics.item_scores import Scored
from grounded_attention.metrics.nlvr2_accuracy import StatementScores
from grounded_attention.modeling.task_losses import UNLABELLED

from .judges import judge_statements
from .task import (
    TEXT_AND_REGIONS,
    Batch,
    Examples,
    NoOptions,
    Task,
    classification,
    identify,
    joined_arguments,
)

GROUP = "nlvr2"


def collate(examples: Examples, processor: Any, options: NoOptions) -> dict[str, Any]:
    """Makes a batch of rows of the NLVR2 builder.

    The regions of the left image come before those of the right image; `region_token_type_ids` (B, R) distinguishes
    them.
    """
    rows = examples.rows
    inputs = processor(
        text=[row["sentence"] for row in rows], return_tensors="pt", **joined_arguments(examples.regions)
    )
    labels = [row["label"] if row["label"] >= 0 else UNLABELLED for row in rows]
    return {**inputs, **identify(rows), "labels": torch.tensor(labels)}


def score(outputs: Any, batch: Batch) -> Scored:
    """Scores each example: whether the prediction is correct; notes contain the prediction."""
    judged, labels = outputs.logits.argmax(-1).tolist(), batch["labels"].tolist()
    notes = {"judged": [bool(value) for value in judged]}
    right = [None if label < 0 else value == label for value, label in zip(judged, labels, strict=True)]
    return Scored({f"{GROUP}_accuracy": right} if max(labels) >= 0 else {}, notes=notes)


def export(items: Mapping[str, list], path: Path) -> None:
    """Writes the predictions in the official format to `<path>.csv`."""
    write_predictions(path.with_name(path.name + ".csv"), dict(zip(items["example_id"], items["judged"], strict=True)))


# Code for model cards, see `Task.example`.
EXAMPLE = """inputs = processor(caption, region_image_indices=[0, 1], **seen)  # each box of another image
with torch.no_grad():
    shares = model(**inputs).logits[0].softmax(-1).tolist()
print(f"the statement holds: {{shares[1]:.0%}}")"""

TASK = Task(
    name="visual_reasoning",
    title="reasoning over two images",
    builder="nlvr2",
    columns=("example_id", "image_id", "image_ids", "sentence", "label"),
    head="visual_reasoning",
    model_inputs=TEXT_AND_REGIONS,
    losses=(classification("truth", "logits", "labels"),),
    metrics=lambda: [StatementScores(GROUP, score, f"{GROUP}_accuracy")],
    collate=collate,
    export=export,
    judge=judge_statements,
    example=EXAMPLE,
)
