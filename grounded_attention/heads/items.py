# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The items of an audit in one batch, and their gold answers; independent of the model's attention.

From words to regions, an item is a phrase with gold boxes; a gold answer is any candidate region with enough overlap.
From regions to words, an item is a candidate region that answers a phrase; a gold answer is any word of such a phrase.

Shape letters: B batch, T text, R regions, P phrases, Q query rows, K key columns, M items, W tokens of an item.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.heads.examples import AuditExample
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou, enclosing_box

# The tokens of a phrase that give its attention, as indices into them. The paper (Li et al., 2020) writes "word"
# without saying which word of a phrase; its grounding fine-tuning (appendix B.4) uses the last sub-word, our default.
WORDS: dict[str, slice] = {"last": slice(-1, None), "first": slice(0, 1), "mean": slice(None)}
DEFAULT_WORD = "last"


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules for a right answer."""

    word: str = DEFAULT_WORD
    iou_threshold: float = IOU_THRESHOLD
    merged: bool = False

    def __post_init__(self):
        if self.word not in WORDS:
            raise ValueError(f"word={self.word!r} is unknown; expected one of {', '.join(WORDS)}")
        if not 0 < self.iou_threshold <= 1:
            raise ValueError(f"iou_threshold={self.iou_threshold}: expected a number above 0 and at most 1")

    def hits(self, region_boxes: np.ndarray, gold: np.ndarray) -> np.ndarray:
        """Mask of the regions (R, 4) that answer a phrase with the gold boxes (G, 4): (R,) bool."""
        targets = enclosing_box(gold)[None] if self.merged else gold
        return np.any(box_iou(region_boxes, targets) >= self.iou_threshold, axis=1)


@dataclass(frozen=True, eq=False)
class AuditBatch:
    """A batch, and what an audit has to know about it."""

    inputs: Mapping[str, Any]
    phrase_mask: np.ndarray
    gold: np.ndarray
    candidates: Tensor
    words: Tensor
    scores: Sequence[np.ndarray | None]
    dropped: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Items:
    """The M items of one direction in a batch."""

    rows: Tensor
    columns: Tensor
    example: np.ndarray
    places: np.ndarray
    gold: np.ndarray
    baseline: np.ndarray
    groups: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.example)

    @property
    def chance(self) -> np.ndarray:
        """The share of gold columns among the candidates of each item, (M,) float64 in [0, 1]."""
        candidates = (self.columns >= 0).sum(1).numpy()[self.example]
        return self.gold.sum(1) / np.maximum(candidates, 1)


@dataclass(frozen=True, eq=False)
class _Grounded:
    """A phrase in the model input: its batch row, its token indices, and the mask (R,) of regions that answer it."""

    example: int
    tokens: np.ndarray
    regions: np.ndarray
    groups: tuple[str, ...]


def ground(batch: AuditBatch, examples: Sequence[AuditExample]) -> list[_Grounded]:
    """Finds the phrases of the batch of `examples`, and their answers; a phrase cut with its text is skipped."""
    found = []
    for row, example in enumerate(examples):
        for number, phrase in enumerate(example.phrases):
            tokens = np.flatnonzero(batch.phrase_mask[row, number])
            if len(tokens):
                found.append(_Grounded(row, tokens, batch.gold[row, number], tuple(phrase.types)))
    return found


def text_items(grounded: Sequence[_Grounded], batch: AuditBatch, word: str) -> Items:
    """Makes the items from words (a key of `WORDS`) to regions; the baseline chooses the most confident candidate."""
    columns = _columns(batch.candidates)
    chosen = [_most_confident(row, given) for row, given in zip(columns.numpy(), batch.scores, strict=True)]
    return _items(
        columns,
        [(one.example, one.tokens[WORDS[word]], one.regions, one.groups) for one in grounded],
        lambda example: chosen[example],
    )


def _most_confident(columns: np.ndarray, scores: np.ndarray | None) -> int:
    """The column of the most confident candidate of an example; -1 if it has none."""
    candidates = np.flatnonzero(columns >= 0)
    if not len(candidates):
        return -1
    return int(candidates[0 if scores is None else np.argmax(scores[: len(candidates)])])


def region_items(grounded: Sequence[_Grounded], batch: AuditBatch) -> Items:
    """Makes the items from regions to words; the baseline rule chooses the first word of the caption."""
    columns = _columns(batch.words)
    queried: dict[tuple[int, int], tuple[np.ndarray, list[str]]] = {}
    for one in grounded:
        for region in np.flatnonzero(one.regions).tolist():
            tokens, groups = queried.setdefault((one.example, region), (np.zeros(columns.shape[1], dtype=bool), []))
            tokens[one.tokens] = True
            groups.extend(one.groups)
    first = [_most_confident(row, None) for row in columns.numpy()]
    return _items(
        columns,
        [
            (example, np.array([region]), tokens, tuple(groups))
            for (example, region), (tokens, groups) in sorted(queried.items(), key=lambda item: item[0])
        ],
        lambda example: first[example],
    )


def _columns(candidates: Tensor) -> Tensor:
    """Mask (B, K) -> the index of each candidate, -1 elsewhere: (B, K) int64."""
    return torch.arange(candidates.shape[1]).expand(candidates.shape).masked_fill(~candidates, -1)


def _items(
    columns: Tensor,
    queries: Sequence[tuple[int, np.ndarray, np.ndarray, tuple[str, ...]]],
    rule: Callable[[int], int],
) -> Items:
    """Makes items of (example, query rows, gold columns (K,), groups); a row of several items is queried once."""
    rows: list[dict[int, int]] = [{} for _ in columns]
    width = max((len(wanted) for _, wanted, _, _ in queries), default=1)
    places = np.full((len(queries), width), -1, dtype=np.int64)
    for number, (example, wanted, _, _) in enumerate(queries):
        known = rows[example]
        places[number, : len(wanted)] = [known.setdefault(row, len(known)) for row in wanted.tolist()]
    padded = torch.full((len(rows), max(1, *map(len, rows))), -1, dtype=torch.int64)
    for row, known in zip(padded, rows, strict=True):
        row[: len(known)] = torch.tensor(list(known), dtype=torch.int64)
    gold = np.array([golden for _, _, golden, _ in queries], dtype=bool).reshape(len(queries), columns.shape[1])
    examples = np.array([example for example, *_ in queries], dtype=np.int64)
    choices = [rule(example) for example, *_ in queries]
    right = [choice >= 0 and bool(golden[choice]) for choice, golden in zip(choices, gold, strict=True)]
    groups = [tuple(dict.fromkeys(named)) for *_, named in queries]
    return Items(padded, columns, examples, places, gold, np.array(right, dtype=bool), groups)
