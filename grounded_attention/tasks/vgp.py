# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Visually grounded paraphrases: which caption matches the image, and the relation of two phrases for one object."""

from typing import Any

import torch

from grounded_attention.analysis.perturbation_curves import Explained, Scores
from grounded_attention.analysis.relevancy import ReadOut
from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.supervision.method import VGP_CITATION

from .judges import judge_vgp
from .task import (
    TEXT_AND_REGIONS,
    Batch,
    Examples,
    NoOptions,
    Task,
    classification,
    pad_labels,
    pixel_arguments,
    region_arguments,
)


def collate(examples: Examples, processor: Any, options: NoOptions) -> dict[str, Any]:
    """Makes a batch of rows of the VGP builder."""
    rows, grounded = examples.rows, examples.regions is not None
    images, regions = examples.images, examples.regions
    seen = region_arguments(regions) if images is None else pixel_arguments(images, regions)
    inputs = processor(
        text=[row["caption1"] for row in rows],
        text_pair=[row["caption2"] for row in rows],
        phrases=[row["phrases"] if grounded else [{**each, "boxes": []} for each in row["phrases"]] for row in rows],
        phrase_pairs=[[(pair["phrase1"], pair["phrase2"]) for pair in row["phrase_pairs"]] for row in rows],
        return_tensors="pt",
        **seen,
    )
    pairs = inputs["phrase_pairs"]
    labels = pad_labels([[pair["label"] for pair in row["phrase_pairs"]] for row in rows], pairs.shape[1])
    labels[(pairs < 0).any(dim=-1)] = -100  # a pair with a phrase that was cut has no label
    identification = torch.tensor([row["identification_label"] for row in rows])
    return {**inputs.reported(), "vgp_labels": labels, "identification_labels": identification}


def read_identification(outputs: Any, inputs: Batch) -> ReadOut:
    """Returns the score of the chosen caption and the position that it is read from, [CLS]."""
    return ReadOut(outputs.identification_logits.max(-1).values, inputs["attention_mask"].argmax(1))


def identification_scores(options: NoOptions) -> Scores:
    """Returns a function that scores each example: 1 if the correct caption was chosen."""
    return lambda outputs, batch: (
        (outputs.identification_logits.argmax(-1) == batch["identification_labels"]).double().tolist()
    )


# Code for model cards, see `Task.example`.
EXAMPLE = """inputs = processor(caption, "{other}", **seen)
with torch.no_grad():
    shares = model(**inputs).identification_logits.softmax(-1)[0].tolist()
for which, share in zip(("both captions describe", "the first alone describes", "the second alone describes"), shares):
    print(f"{{which}} the image: {{share:.0%}}")"""

TASK = Task(
    name="vgp",
    title="visually grounded paraphrases",
    builder="vgp",
    columns=("image_id", "caption1", "caption2", "phrases", "phrase_pairs", "identification_label"),
    head="vgp",
    model_inputs=(*TEXT_AND_REGIONS, "phrase_mask", "phrase_pairs"),
    # Equations 1 and 4.
    losses=(
        classification("identification", "identification_logits", "identification_labels"),
        classification("vgp", "vgp_logits", "vgp_labels"),
    ),
    metrics=lambda: [
        ClassificationAccuracy("identification", "identification_logits", "identification_labels"),
        ClassificationAccuracy("vgp", "vgp_logits", "vgp_labels"),
    ],
    collate=collate,
    judge=judge_vgp,
    example=EXAMPLE,
    explained=Explained(read_identification, identification_scores),
    citation=VGP_CITATION,
)
