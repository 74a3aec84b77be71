# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Chooses predictions of a model for a report, by a rule that depends only on the predictions and a seed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grounded_attention.utils.named_types import Fields

from .overlay import GOLD, PREDICTED, Box

# A prediction with at least this score counts as right; a VQA answer of only one or two of ten humans does not.
RIGHT = 0.5


@dataclass(frozen=True)
class Alternative:
    """One of several texts in a choice: the text, and whether it is gold and whether it was predicted."""

    text: str
    gold: bool
    predicted: bool


@dataclass(frozen=True)
class Judged:
    """One prediction with its gold answer and score."""

    example_id: str
    image_id: str
    group: str
    score: float | None
    confidence: float
    gold: str
    predicted: str
    texts: tuple[tuple[str, str], ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    chance: float | None = None
    worth: Mapping[str, float] = field(default_factory=dict)
    boxes: tuple[Box, ...] = ()
    choices: tuple[Alternative, ...] = ()

    @property
    def right(self) -> bool:
        """Whether the prediction counts as right."""
        return self.score is not None and self.score >= RIGHT

    def to_dict(self) -> Fields:
        """The content of one line in the file of predictions."""
        line: Fields = {"example_id": self.example_id, "image_id": self.image_id, "group": self.group}
        line |= {"predicted": self.predicted, "gold": self.gold, "score": self.score}
        boxes = {box.role + "_box": list(box.corners) for box in self.boxes if box.role in (GOLD, PREDICTED)}
        return {**line, "confidence": round(self.confidence, 6), **boxes}


@dataclass(frozen=True)
class Selection:
    """Some predictions, and the rule that chose them."""

    heading: str
    rule: str
    items: tuple[Judged, ...]


# How many predictions are shown: the most confident mistakes, and drawn ones.
CONFIDENT = 8
DRAWN = 4


def choose(items: Sequence[Judged], seed: int) -> list[Selection]:
    """Chooses failures, and some right predictions for comparison.

    1. The wrong predictions with the highest confidence, at most one per image; ties in the order of ids.
    2. Other wrong predictions, drawn at random.
    3. Right predictions, drawn at random.

    The draws depend on the seed and the ids, not on the order of `items`. Predictions without a score and empty
    selections are omitted.
    """
    scored = sorted((item for item in items if item.score is not None), key=lambda item: item.example_id)
    wrong = [item for item in scored if not item.right]
    of_image: dict[str, Judged] = {}
    for item in sorted(wrong, key=lambda item: -item.confidence):
        of_image.setdefault(item.image_id, item)
    sure = list(of_image.values())[:CONFIDENT]
    taken = {id(item) for item in sure}
    rest = [item for item in wrong if id(item) not in taken]
    fine = [item for item in scored if item.right]
    selections = [
        Selection(
            "Confident and wrong",
            f"The {len(sure)} of {len(wrong)} wrong predictions with the highest probability, at most one per image.",
            tuple(sure),
        ),
        _drawn("Other mistakes", "wrong", rest, seed),
        _drawn("Right, for comparison", "right", fine, seed + 1),
    ]
    return [selection for selection in selections if selection.items]


def _drawn(heading: str, what: str, items: Sequence[Judged], seed: int) -> Selection:
    places = np.sort(np.random.default_rng(seed).permutation(len(items))[:DRAWN])
    rule = f"{len(places)} drawn at random from {len(items)} {what} predictions (seed {seed})."
    return Selection(heading, rule, tuple(items[place] for place in places))


def by_group(items: Iterable[Judged]) -> dict[str, list[Judged]]:
    """Group -> its predictions, in the order in which groups first occur."""
    return _gather(items, lambda item: item.group)


def by_kind(items: Iterable[Judged], name: str) -> dict[str, list[Judged]]:
    """Category of `name` -> its predictions with a score, most frequent categories first."""
    grouped = _gather((i for i in items if name in i.kinds and i.score is not None), lambda item: item.kinds[name])
    return dict(sorted(grouped.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def _gather(items: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    gathered: dict[str, list[Judged]] = {}
    for item in items:
        gathered.setdefault(key(item), []).append(item)
    return gathered


def mean_score(items: Iterable[Judged]) -> float | None:
    """The mean score of the items with a score; `None` if there are none."""
    scores = [item.score for item in items if item.score is not None]
    if scores:
        return sum(scores) / len(scores)
    return None


def baselines(items: Sequence[Judged]) -> dict[str, float]:
    """Baselines without a model: `chance`, and `majority`, the best constant prediction for the whole split."""
    scored = [item for item in items if item.score is not None]
    baselines: dict[str, float] = {}
    chances = [item.chance for item in scored if item.chance is not None]
    if scored and len(chances) == len(scored):
        baselines["chance"] = sum(chances) / len(chances)
    worth: dict[str, float] = {}
    for item in scored:
        for prediction, score in item.worth.items():
            worth[prediction] = worth.get(prediction, 0.0) + score
    if worth:
        baselines["majority"] = max(worth.values()) / len(scored)
    return baselines
