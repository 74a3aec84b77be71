# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which predictions of a model are worth looking at, chosen by a rule that depends on them and a seed alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# From this score on a prediction counts as right; a VQA answer that one or two of ten humans gave does not.
RIGHT = 0.5
GOLD, PREDICTED, MEANT = "gold", "predicted", "meant"


@dataclass(frozen=True)
class Box:
    """A box to draw.

    Args:
        role (`str`): `"gold"`, `"predicted"` or `"meant"` (what the example is about).
        corners (`tuple[float, float, float, float]`): x1, y1, x2, y2 divided by the image's width and height.
        label (`str`, *optional*, defaults to `""`): what stands beside it.
    """

    role: str
    corners: tuple[float, float, float, float]
    label: str = ""


@dataclass(frozen=True)
class Choice:
    """One of several texts to choose from."""

    text: str
    gold: bool
    predicted: bool


@dataclass(frozen=True)
class Judged:
    """One prediction beside what is right.

    Args:
        example_id (`str`): of the row.
        image_id (`str`): of its image.
        group (`str`): what was decided, the prefix of its figures (`identification`, `vgp`, `words`, ...).
        score (`float | None`): in [0, 1]; None where what is right is not known.
        confidence (`float`): the model's own probability of its prediction, in [0, 1].
        gold (`str`): what is right, in words; empty where it is not known.
        predicted (`str`): what was predicted, in words.
        texts (`tuple[tuple[str, str], ...]`, *optional*, defaults to `()`): what the model read: (what it is, the
            text).
        kinds (`Mapping[str, str]`, *optional*): for tables: what kind of thing it is -> the kind (`answer type` ->
            `number`).
        chance (`float`, *optional*): the score to expect of a prediction drawn at random, where that is known.
        worth (`Mapping[str, float]`, *optional*): prediction -> the score it would have had; of those that would have
            scored at all.
        boxes (`tuple[Box, ...]`, *optional*, defaults to `()`): to draw in the image.
        choices (`tuple[Choice, ...]`, *optional*, defaults to `()`): the texts it chose from.
    """

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
    choices: tuple[Choice, ...] = ()

    @property
    def right(self) -> bool:
        """Whether it counts as right."""
        return self.score is not None and self.score >= RIGHT

    def to_dict(self) -> dict[str, Any]:
        """What a line of the file of predictions says."""
        said: dict[str, Any] = {"example_id": self.example_id, "image_id": self.image_id, "group": self.group}
        said |= {"predicted": self.predicted, "gold": self.gold, "score": self.score}
        boxes = {box.role + "_box": list(box.corners) for box in self.boxes if box.role in (GOLD, PREDICTED)}
        return {**said, "confidence": round(self.confidence, 6), **boxes}


@dataclass(frozen=True)
class Selection:
    """Some predictions, and by which rule they were chosen."""

    heading: str
    rule: str
    items: tuple[Judged, ...]


def choose(items: Sequence[Judged], seed: int, confident: int = 8, drawn: int = 4, right: int = 4) -> list[Selection]:
    """Failures first, some right ones for comparison.

    1. The wrong predictions that the model was most confident of, at most one an image; equals in the order of ids.
    2. Wrong predictions drawn among the rest.
    3. Right predictions drawn among all.

    Draws depend on the seed and the ids, not on the order of `items`. Predictions without score are left out; an
    empty selection is too.

    Args:
        items (`Sequence[Judged]`): predictions of one group.
        seed (`int`): of the draws.
        confident, drawn, right: how many of each.
    """
    scored = sorted((item for item in items if item.score is not None), key=lambda item: item.example_id)
    wrong = [item for item in scored if not item.right]
    sure = _one_an_image(sorted(wrong, key=lambda item: -item.confidence), confident)
    taken = {id(item) for item in sure}
    rest = [item for item in wrong if id(item) not in taken]
    fine = [item for item in scored if item.right]
    selections = [
        Selection(
            "Confident and wrong",
            f"The {len(sure)} of {len(wrong)} wrong predictions that the model gave most probability, one an image.",
            tuple(sure),
        ),
        _drawn("Other mistakes", "wrong", rest, drawn, seed),
        _drawn("Right, for comparison", "right", fine, right, seed + 1),
    ]
    return [selection for selection in selections if selection.items]


def _one_an_image(items: Iterable[Judged], limit: int) -> list[Judged]:
    first: dict[str, Judged] = {}
    for item in items:
        first.setdefault(item.image_id, item)
    return list(first.values())[:limit]


def _drawn(heading: str, what: str, items: Sequence[Judged], limit: int, seed: int) -> Selection:
    places = np.sort(np.random.default_rng(seed).permutation(len(items))[:limit])
    rule = f"{len(places)} drawn at random from {len(items)} {what} predictions (seed {seed})."
    return Selection(heading, rule, tuple(items[place] for place in places))


def by_group(items: Iterable[Judged]) -> dict[str, list[Judged]]:
    """The predictions of each group, in the order in which groups first occur."""
    return _gather(items, lambda item: item.group)


def by_kind(items: Iterable[Judged], name: str) -> dict[str, list[Judged]]:
    """The predictions with a score of each kind of `name`, most frequent kinds first."""
    found = _gather((i for i in items if name in i.kinds and i.score is not None), lambda item: item.kinds[name])
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def _gather(items: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def mean_score(items: Iterable[Judged]) -> float | None:
    """The mean score of those that have one."""
    scores = [item.score for item in items if item.score is not None]
    return sum(scores) / len(scores) if scores else None


def baselines(items: Sequence[Judged]) -> dict[str, float]:
    """What needs no model: `chance`, and `majority`, of the one prediction that is best for the whole split."""
    scored = [item for item in items if item.score is not None]
    found: dict[str, float] = {}
    chances = [item.chance for item in scored if item.chance is not None]
    if scored and len(chances) == len(scored):
        found["chance"] = sum(chances) / len(chances)
    worth: dict[str, float] = {}
    for item in scored:
        for prediction, score in item.worth.items():
            worth[prediction] = worth.get(prediction, 0.0) + score
    if worth:
        found["majority"] = max(worth.values()) / len(scored)
    return found
