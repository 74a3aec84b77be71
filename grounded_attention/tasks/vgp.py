# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Visually grounded paraphrases: which caption matches the image, and the relation of two phrases for one object."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from grounded_attention.analysis.relevancy import ReadOut
from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.pages.failures import Judged
from grounded_attention.pages.overlay import MEANT, Box
from grounded_attention.supervision.method import VGP_CITATION
from grounded_attention.utils.named_types import Batch, Columns, Fields, Row

from .judges import JudgeContext, Rows, classified
from .task import TEXT_AND_REGIONS, Examples, Metric, Task, classification, pad_labels, seen_arguments

# Name, logits and labels of equations 1 and 4.
CHOICES = (
    ("identification", "identification_logits", "identification_labels"),
    ("vgp", "vgp_logits", "vgp_labels"),
)


class VGP(Task):
    """The task of Samaran et al. (2021)."""

    name = "vgp"
    title = "visually grounded paraphrases"
    builder = "vgp"
    columns = ("image_id", "captions", "phrases", "phrase_pairs", "identification_label")
    head = "vgp"
    model_inputs = (*TEXT_AND_REGIONS, "phrase_mask", "phrase_pairs")
    explains = True
    citation = VGP_CITATION
    example = """inputs = processor(caption, "{other}", **seen)
with torch.no_grad():
    shares = model(**inputs).identification_logits.softmax(-1)[0].tolist()
for which, share in zip(("both captions describe", "the first alone describes", "the second alone describes"), shares):
    print(f"{{which}} the image: {{share:.0%}}")"""
    losses = tuple(classification(*each) for each in CHOICES)

    def metrics(self) -> list[Metric]:
        return [ClassificationAccuracy(*each) for each in CHOICES]

    def collate(self, examples: Examples, processor: Any) -> Fields:
        rows = examples.rows
        grounded = examples.regions is not None
        phrases = []
        phrase_pairs = []
        for row in rows:
            own = row["phrases"]
            if not grounded:
                own = [{**phrase, "boxes": []} for phrase in own]
            phrases.append(own)
            phrase_pairs.append([(pair["phrase1"], pair["phrase2"]) for pair in row["phrase_pairs"]])
        inputs = processor(
            text=[row["captions"][0] for row in rows],
            text_pair=[row["captions"][1] for row in rows],
            phrases=phrases,
            phrase_pairs=phrase_pairs,
            return_tensors="pt",
            **seen_arguments(examples.images, examples.regions),
        )
        pairs = inputs["phrase_pairs"]
        labels = pad_labels([[pair["label"] for pair in row["phrase_pairs"]] for row in rows], pairs.shape[1])
        labels[(pairs < 0).any(dim=-1)] = -100  # a pair with a phrase that was cut has no label
        identification = torch.tensor([row["identification_label"] for row in rows])
        return {**inputs.reported(), "vgp_labels": labels, "identification_labels": identification}

    def read_out(self, outputs: Any, inputs: Batch) -> ReadOut:
        """The score of the chosen caption and the position that it is read from, [CLS]."""
        return ReadOut(outputs.identification_logits.max(-1).values, inputs["attention_mask"].argmax(1))

    def example_scores(self, outputs: Any, batch: Batch) -> Sequence[float | None]:
        return (outputs.identification_logits.argmax(-1) == batch["identification_labels"]).double().tolist()

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        """Judges the identification of captions once per example, and the relation of each labelled pair."""
        captions = outputs.identification_logits.float().softmax(-1)
        pairs = outputs.vgp_logits.float().softmax(-1)
        for number, row in enumerate(rows):
            yield _identification(row, captions[number], context)
            for place, label in enumerate(batch["vgp_labels"][number].tolist()):
                if label >= 0:
                    yield _phrase_pair(row, place, label, pairs[number, place], context)


def _identification(row: Row, probabilities: Tensor, context: JudgeContext) -> Judged:
    named = [context.label("identification_label", number) for number in range(len(probabilities))]
    return Judged(
        row["example_id"],
        row["image_id"],
        "identification",
        **classified(probabilities, row["identification_label"], named),
        texts=tuple(_captions(row)),
        boxes=_phrase_boxes(row["phrases"]),
    )


def _phrase_pair(row: Row, place: int, label: int, probabilities: Tensor, context: JudgeContext) -> Judged:
    pair = row["phrase_pairs"][place]
    phrases = [row["phrases"][pair[name]] for name in ("phrase1", "phrase2")]
    named = [context.label("label", number) for number in range(len(probabilities))]
    return Judged(
        f"{row['example_id']}:{place}",
        row["image_id"],
        "vgp",
        **classified(probabilities, label, named),
        texts=(
            ("phrases", " / ".join(phrase["text"] for phrase in phrases)),
            *_captions(row),
        ),
        boxes=_phrase_boxes(phrases),
    )


def _captions(row: Row) -> Iterator[tuple[str, str]]:
    return zip(("first caption", "second caption"), row["captions"], strict=True)


def _phrase_boxes(phrases: Sequence[Columns]) -> tuple[Box, ...]:
    """The boxes of phrases; a box that several phrases share is drawn once."""
    named = {}
    for phrase in reversed(phrases):
        for box in phrase["boxes"]:
            named[tuple(box)] = phrase["text"]
    return tuple(Box(MEANT, corners, text) for corners, text in named.items())


TASK = VGP()
