# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores as modules of `evaluate`: one adapter over the streaming metrics, and the table of what it computes.

`training/publish/score_folders.py` writes the folders that `evaluate.load` opens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import evaluate
import numpy as np
import torch
from datasets import ClassLabel, Features, List, Value

from grounded_attention.dataset_scripts.builders.gqa import FEATURES as GQA_FEATURES
from grounded_attention.dataset_scripts.builders.vgp import IDENTIFICATION_LABELS
from grounded_attention.dataset_scripts.builders.vgp_pairs import KINDS
from grounded_attention.heads.boxes import fits_box
from grounded_attention.heads.points import is_hit
from grounded_attention.metrics import gqa_scores, vqa_accuracy
from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.metrics.item_scores import ItemScores, Scored, StreamingMetric
from grounded_attention.utils.named_types import Batch, Fields

from .gqa import GROUP, QUESTION
from .referring_expressions import CONVENTIONS, is_right
from .visual_reasoning import StatementScores

REFERENCES = "references"
DEFAULT = "default"  # the name that `evaluate` gives to a module that was loaded without one
TEXT = Value("string")
NUMBERS = List(Value("float64"))
VGP_LABELS = {
    **{name: kind.labels for name, kind in KINDS.items()},
    "identification": IDENTIFICATION_LABELS,
}
STATEMENT = {"example_id": TEXT, "label": Value("bool")}
BOXES_IN = "x1, y1, x2, y2 in pixels, or divided by width and height; both in the same unit"


@dataclass(frozen=True)
class Score:
    """A score that `evaluate` loads.

    Args:
        title (`str`): its name in words.
        says (`str`): what it is, in a sentence or two.
        predictions (`str`): what one prediction is.
        references (`str`): what one reference is.
        source (`str`): who defined it.
        features (`Callable[[str], tuple[Any, Any]]`): kind -> the types of a prediction and of a reference.
        metric (`Callable[[str], StreamingMetric]`): kind -> a new metric. Its `update` takes the predictions and a
            batch with `example_id`, `image_id` and the references.
        example (`tuple[Any, Any]`): a prediction and its reference.
        kinds (`tuple[str, ...]`): what the `config_name` of `evaluate.load` may be, the first by default.
        columns (`tuple[str, ...]`): what `compute` takes besides, a list with a value for each prediction.
        entry (`str`): the entry of the batch that has the references.
    """

    title: str
    says: str
    predictions: str
    references: str
    source: str
    features: Callable[[str], tuple[Any, Any]]
    metric: Callable[[str], StreamingMetric]
    example: tuple[Any, Any]
    kinds: tuple[str, ...] = (DEFAULT,)
    columns: tuple[str, ...] = ()
    entry: str = REFERENCES


class ScoreModule(evaluate.Metric):
    """A score of `SCORES` as a module of `evaluate`; subclasses name it.

    `compute` returns the numbers of the streaming metric: means in [0, 1] and `<name>_count`, over how many items.

    Raises:
        ValueError: for a kind or a column that the score does not have, a list of another length, and items that it
            cannot score; the message names the item.
    """

    score: ClassVar[str]

    @property
    def kind(self) -> str:
        """The `config_name` of `evaluate.load`, or the first kind of the score."""
        kinds = SCORES[self.score].kinds
        if self.config_name == DEFAULT:
            return kinds[0]
        if self.config_name not in kinds:
            raise ValueError(f"{self.score} {self.config_name!r}: expected one of {', '.join(kinds)}")
        return self.config_name

    def _info(self) -> evaluate.MetricInfo:
        score = SCORES[self.score]
        prediction, reference = score.features(self.kind)
        return evaluate.MetricInfo(
            description=score.says,
            citation=score.source,
            inputs_description=f"predictions: {score.predictions}. references: {score.references}.",
            features=Features({"predictions": prediction, "references": reference}),
        )

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Adds items; of a row the columns are taken that the score reads."""
        picked = references
        if references is not None:
            picked = [self._columns_of(reference) for reference in references]
        super().add_batch(predictions=predictions, references=picked, **kwargs)

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Adds an item, as `add_batch`."""
        super().add(prediction=prediction, reference=self._columns_of(reference), **kwargs)

    def _columns_of(self, reference: Any) -> Any:
        _, kinds = SCORES[self.score].features(self.kind)
        if not isinstance(kinds, Mapping) or not isinstance(reference, Mapping):
            return reference
        return {name: reference.get(name) for name in kinds}

    def _compute(self, predictions: Sequence[Any], references: Sequence[Any], **columns: Sequence[Any]) -> Fields:
        score = SCORES[self.score]
        for name, values in columns.items():
            if name not in score.columns:
                raise ValueError(
                    f"{self.score} takes no {name}; it takes {', '.join(score.columns) or 'nothing'} besides"
                )
            if len(values) != len(predictions):
                raise ValueError(f"{name} has {len(values)} values for {len(predictions)} predictions")
        names = [str(number) for number in range(len(predictions))]
        if references and isinstance(references[0], Mapping):
            _check_whole(references)
            names = [each["example_id"] for each in references]
        batch = {"example_id": names, "image_id": names, score.entry: list(references), **columns}
        metric: Any = score.metric(self.kind)
        metric.update(list(predictions), batch)
        return metric.compute(metric.state())


def _check_whole(references: Sequence[Fields]) -> None:
    """Refuses a reference without one of its entries; the steps of GQA's programs may be unknown."""
    for number, reference in enumerate(references):
        missing = [name for name, value in reference.items() if value is None and name != "semantic"]
        if missing:
            raise ValueError(f"item {number}: the reference has no {', '.join(missing)}")


def _numbers(values: Sequence[float], count: int, number: int, what: str) -> np.ndarray:
    """`count` finite numbers of an item, with x1 <= x2 and y1 <= y2."""
    found = np.array(values, dtype=np.float64)
    if found.shape != (count,) or not np.isfinite(found).all() or (found[:2] > found[-2:]).any():
        expected = "x, y" if count == 2 else "x1 <= x2, y1 <= y2"
        raise ValueError(f"item {number}: {what} {list(values)}, expected {count} numbers, {expected}")
    return found


class LabelAccuracy(ClassificationAccuracy):
    """Accuracy of chosen classes, in the place of their logits."""

    def __init__(self, name: str, classes: int):
        super().__init__(name, "logits", REFERENCES)
        self.classes = classes

    def update(self, outputs: Sequence[int], batch: Batch) -> None:
        """Counts one batch of class numbers."""
        chosen = torch.nn.functional.one_hot(torch.tensor(outputs), self.classes)
        super().update(SimpleNamespace(logits=chosen), {REFERENCES: torch.tensor(batch[REFERENCES])})


def _score_answers(predicted: Sequence[str], batch: Batch) -> Scored:
    humans = batch[REFERENCES]
    for number, answers in enumerate(humans):
        if not answers:
            raise ValueError(f"item {number}: no human answers")
    return vqa_accuracy.score_answers(predicted, humans, batch.get("answer_types") or [""] * len(humans))


def _score_expressions(predicted: Sequence[Any], batch: Batch, convention: str) -> Scored:
    right = []
    for number, (box, reference) in enumerate(zip(predicted, batch[REFERENCES], strict=True)):
        gold = _numbers(reference, 4, number, "gold box")
        found = _numbers(box, 4, number, "box") if len(box) else None
        right.append(is_right(None if found is None else found.tolist(), gold.tolist(), convention))
    return Scored({"expressions_accuracy": right})


def _score_places(predicted: Sequence[Any], batch: Batch, name: str) -> Scored:
    """Whether each point is in a gold box, or each box fits one; nothing found is a miss."""
    count = {"pointing": 2, "box": 4}[name]
    is_there: Any = is_hit if name == "pointing" else fits_box
    right = []
    for number, (place, reference) in enumerate(zip(predicted, batch[REFERENCES], strict=True)):
        gold = np.array([_numbers(box, 4, number, "gold box") for box in reference])
        if not len(gold):
            raise ValueError(f"item {number}: no gold box")
        found = len(place) > 0 and is_there(_numbers(place, count, number, "prediction"), gold)
        right.append(bool(found))
    return Scored({f"{name}_accuracy": right})


def _score_statements(predicted: Sequence[bool], batch: Batch) -> Scored:
    labels = [each["label"] for each in batch[REFERENCES]]
    return Scored({"nlvr2_accuracy": [each == label for each, label in zip(predicted, labels, strict=True)]})


def _gqa_metric(kind: str) -> StreamingMetric:
    return gqa_scores.GQAScores(
        GROUP, lambda predicted, batch: gqa_scores.score_answers(predicted, batch["questions"], GROUP)
    )


def _vgp_metric(kind: str) -> StreamingMetric:
    return LabelAccuracy("identification" if kind == "identification" else "vgp", len(VGP_LABELS[kind]))


def _vgp_features(kind: str) -> tuple[ClassLabel, ClassLabel]:
    label = ClassLabel(names=list(VGP_LABELS[kind]))
    return label, label


SCORES: dict[str, Score] = {
    "vqa_accuracy": Score(
        "VQA accuracy",
        "The accuracy of VQA v2: min(1, matching humans / 3), averaged over the sets of nine of ten humans, after the "
        "official normalisation.",
        "an answer, a string",
        "the human answers of the question, ten strings",
        "Goyal et al., 2017: Making the V in VQA Matter",
        lambda kind: (TEXT, List(TEXT)),
        lambda kind: ItemScores("vqa", _score_answers),
        ("2", ["two"] * 4 + ["3"] * 6),
        columns=("answer_types",),
    ),
    "refcoco_accuracy": Score(
        "RefCOCO accuracy",
        "The share of referring expressions whose box has an overlap (IoU) of at least one half with the object. "
        "Papers differ in one pixel and in the equal case: the kind is one of their conventions.",
        "a box, x1, y1, x2, y2 in pixels, or an empty list if there is none",
        "the box of the object, in pixels",
        "Yu et al., 2016: Modeling Context in Referring Expressions",
        lambda kind: (NUMBERS, NUMBERS),
        lambda kind: ItemScores("expressions", partial(_score_expressions, convention=kind)),
        ([10, 10, 50, 60], [12, 10, 52, 58]),
        kinds=tuple(CONVENTIONS),
    ),
    "vgp_accuracy": Score(
        "Accuracy of visually grounded paraphrases",
        "The accuracy of the relation of two phrases, or with the kind identification of which caption describes the "
        "image; beside it that of the most frequent class, and of chance.",
        "the name of a class of the kind, or its number",
        "the right class; -1 does not count",
        "Samaran et al., 2021: Attending Self-Attention",
        _vgp_features,
        _vgp_metric,
        ("equivalence", "equivalence"),
        kinds=tuple(VGP_LABELS),
    ),
    "gqa_scores": Score(
        "Scores of GQA",
        "Accuracy of the balanced questions, by type and length too, with validity, plausibility, consistency and "
        "distribution (lower is better) by the rules of the official script.",
        "an answer, a string",
        "the question, a row of the builder gqa: " + ", ".join(QUESTION),
        "Hudson and Manning, 2019: GQA",
        lambda kind: (TEXT, {name: GQA_FEATURES[name] for name in (*QUESTION, "semantic")}),
        _gqa_metric,
        (
            "red",
            {
                **{
                    "example_id": "1",
                    "image_id": "1",
                    "text": "What color is it?",
                    "answer": "red",
                    "is_balanced": True,
                },
                **{"structural_type": "query", "semantic_type": "attr", "detailed_type": "directOf"},
                **{"global_group": "color", "entailed": ["1"], "valid": ["red", "blue"], "plausible": ["red"]},
                "semantic": [],
            },
        ),
        entry="questions",
    ),
    "nlvr2_scores": Score(
        "Scores of NLVR2",
        "The accuracy of statements about two images, and the share of statements that are right for all of their "
        "pairs of images (consistency).",
        "whether the statement is true",
        "example_id, such as dev-850-0-1, and label, whether it is true",
        "Suhr et al., 2019: A Corpus for Reasoning About Natural Language Grounded in Photographs",
        lambda kind: (Value("bool"), STATEMENT),
        lambda kind: StatementScores("nlvr2", _score_statements, "nlvr2_accuracy"),
        (True, {"example_id": "dev-850-0-1", "label": True}),
    ),
    "pointing_accuracy": Score(
        "Pointing accuracy",
        "The pointing game: the share of phrases whose point, such as that of a head's map, is in one of their boxes.",
        "a point, x, y, or an empty list if there is none",
        f"the boxes of the phrase, {BOXES_IN}",
        "Zhang et al., 2016: Top-down Neural Attention by Excitation Backprop",
        lambda kind: (NUMBERS, List(NUMBERS)),
        lambda kind: ItemScores("pointing", partial(_score_places, name="pointing")),
        ([0.4, 0.3], [[0.1, 0.1, 0.5, 0.6]]),
    ),
    "box_accuracy": Score(
        "Box accuracy",
        "The share of phrases whose box, such as that of heads, overlaps one of theirs by at least one half (IoU).",
        f"a box, {BOXES_IN}, or an empty list if there is none",
        "the boxes of the phrase",
        "Kang et al., 2025: Your Large Vision-Language Model Only Needs A Few Attention Heads For Visual Grounding",
        lambda kind: (NUMBERS, List(NUMBERS)),
        lambda kind: ItemScores("box", partial(_score_places, name="box")),
        ([0.1, 0.1, 0.5, 0.5], [[0.1, 0.1, 0.5, 0.6]]),
    ),
}
