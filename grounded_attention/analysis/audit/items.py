# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The questions of an audit in one batch, and their right answers; what the model attends to plays no part here.

From words to regions an item is a phrase with gold boxes, its answer any candidate region that overlaps them enough.
From regions to words an item is a candidate region that some phrase means, its answer any word of such a phrase.

Shape letters: B batch, T text, R regions, P phrases, Q asked rows, K asked columns, M items, W tokens of an item.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.utils.boxes import box_iou, enclosing_box

from .examples import AuditExample

# Which of a phrase's tokens are asked, as indices into them. The paper (Li et al., 2020) says "word" and leaves open
# which of a phrase; its grounding fine-tuning, appendix B.4, reads the last sub-word, which is our default.
WORDS: dict[str, slice] = {"last": slice(-1, None), "first": slice(0, 1), "mean": slice(None)}
DEFAULT_WORD = "last"
IOU_THRESHOLD = 0.5


@dataclass(frozen=True, eq=False)
class Rules:
    """What counts as right.

    Args:
        word (`str`, *optional*, defaults to `DEFAULT_WORD`): of `WORDS`.
        iou_threshold (`float`, *optional*, defaults to `IOU_THRESHOLD`): overlap from which a region answers a phrase.
        merged (`bool`, *optional*, defaults to `False`): whether several gold boxes are one, the smallest around all
            of them, instead of any of them.
        not_words (`Collection[int]`, *optional*, defaults to `()`): ids of the special tokens, which answer nothing
            from regions to words.

    Raises:
        ValueError: an unknown word, or a threshold outside (0, 1].
    """

    word: str = DEFAULT_WORD
    iou_threshold: float = IOU_THRESHOLD
    merged: bool = False
    not_words: Collection[int] = ()

    def __post_init__(self):
        if self.word not in WORDS:
            raise ValueError(f"word={self.word!r} is unknown; expected one of {', '.join(WORDS)}")
        if not 0 < self.iou_threshold <= 1:
            raise ValueError(f"iou_threshold={self.iou_threshold}: expected a number above 0 and at most 1")

    def hits(self, region_boxes: np.ndarray, gold: np.ndarray) -> np.ndarray:
        """(R,) bool: which regions answer a phrase with the gold boxes (G, 4)."""
        targets = enclosing_box(gold)[None] if self.merged else gold
        return np.any(box_iou(region_boxes, targets) >= self.iou_threshold, axis=1)


@dataclass(frozen=True, eq=False)
class Items:
    """The M items of one direction in a batch.

    Args:
        rows (`Tensor`): (B, Q) int64, indices of the asked tokens (or regions), -1 pads.
        columns (`Tensor`): (B, K) int64, indices of the candidates among regions (or tokens), -1 at all others.
        example (`np.ndarray`): (M,) int64, the row of the batch of each item.
        places (`np.ndarray`): (M, W) int64, where in `rows` its tokens are, -1 pads.
        gold (`np.ndarray`): (M, K) bool, the columns that answer it; none where no candidate does.
        baseline (`np.ndarray`): (M,) bool, whether the rule's choice answers it.
        groups (`list[tuple[str, ...]]`): what each is reported under besides "all".
    """

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
        """(M,) float64, the gold share of the candidates."""
        candidates = (self.columns >= 0).sum(1).numpy()[self.example]
        return self.gold.sum(1) / np.maximum(candidates, 1)


@dataclass(frozen=True, eq=False)
class _Grounded:
    """A phrase that the model reads: its row of the batch, its tokens, the candidate regions that answer it (R,)."""

    example: int
    tokens: np.ndarray
    regions: np.ndarray
    groups: tuple[str, ...]


def ground(batch: Mapping[str, Any], examples: Sequence[AuditExample], rules: Rules) -> list[_Grounded]:
    """The phrases of a batch that the model reads, with their answers; phrases cut from the text are not among them.

    Args:
        batch (`Mapping[str, Any]`): what the processor made of the captions, regions and phrases of `examples`.
        examples (`Sequence[AuditExample]`): all of whose phrases have gold boxes.
        rules (`Rules`): what counts as right.
    """
    boxes, candidates = (batch[name].cpu().numpy() for name in ("region_boxes", "region_candidate_mask"))
    mask = batch["phrase_mask"].cpu().numpy()
    found = []
    for row, example in enumerate(examples):
        for number, phrase in enumerate(example.phrases):
            tokens = np.flatnonzero(mask[row, number])
            if len(tokens):
                regions = rules.hits(boxes[row], phrase.boxes) & candidates[row].astype(bool)
                found.append(_Grounded(row, tokens, regions, phrase.groups))
    return found


def text_items(
    grounded: Sequence[_Grounded], batch: Mapping[str, Any], rules: Rules, scores: Sequence[np.ndarray | None]
) -> Items:
    """From words to regions.

    Args:
        scores (`Sequence[np.ndarray | None]`): of each example, the detector's confidence in its candidates in their
            order; without it the rule's choice is the first candidate.
    """
    columns = _columns(batch["region_candidate_mask"].bool().cpu())
    chosen = [_most_confident(row, given) for row, given in zip(columns.numpy(), scores, strict=True)]
    return _items(
        columns,
        [(one.example, one.tokens[WORDS[rules.word]], one.regions, one.groups) for one in grounded],
        lambda example: chosen[example],
    )


def _most_confident(columns: np.ndarray, scores: np.ndarray | None) -> int:
    """The column of an example's most confident candidate, -1 where it has none."""
    candidates = np.flatnonzero(columns >= 0)
    if not len(candidates):
        return -1
    return int(candidates[0 if scores is None else np.argmax(scores[: len(candidates)])])


def region_items(grounded: Sequence[_Grounded], batch: Mapping[str, Any], rules: Rules) -> Items:
    """From regions to words; the rule's choice is the caption's first word."""
    ids = batch["input_ids"].cpu()
    words = batch["attention_mask"].bool().cpu() & ~torch.isin(ids, torch.tensor(sorted(rules.not_words)).to(ids))
    columns = _columns(words)
    asked: dict[tuple[int, int], tuple[np.ndarray, list[str]]] = {}
    for one in grounded:
        for region in np.flatnonzero(one.regions).tolist():
            tokens, groups = asked.setdefault((one.example, region), (np.zeros(ids.shape[1], dtype=bool), []))
            tokens[one.tokens] = True
            groups.extend(one.groups)
    first = [_most_confident(row, None) for row in columns.numpy()]
    return _items(
        columns,
        [
            (example, np.array([region]), tokens, tuple(groups))
            for (example, region), (tokens, groups) in sorted(asked.items(), key=lambda item: item[0])
        ],
        lambda example: first[example],
    )


def _columns(candidates: Tensor) -> Tensor:
    """(B, K) bool -> the index of each candidate, -1 elsewhere."""
    return torch.arange(candidates.shape[1]).expand(candidates.shape).masked_fill(~candidates, -1)


def _items(
    columns: Tensor,
    asked: Sequence[tuple[int, np.ndarray, np.ndarray, tuple[str, ...]]],
    rule: Callable[[int], int],
) -> Items:
    """Items of (example, its rows, its gold columns (K,), groups); a row that several ask is asked once."""
    rows: list[dict[int, int]] = [{} for _ in columns]
    width = max((len(wanted) for _, wanted, _, _ in asked), default=1)
    places = np.full((len(asked), width), -1, dtype=np.int64)
    for number, (example, wanted, _, _) in enumerate(asked):
        known = rows[example]
        places[number, : len(wanted)] = [known.setdefault(row, len(known)) for row in wanted.tolist()]
    padded = torch.full((len(rows), max(1, *map(len, rows))), -1, dtype=torch.int64)
    for row, known in zip(padded, rows, strict=True):
        row[: len(known)] = torch.tensor(list(known), dtype=torch.int64)
    gold = np.array([golden for _, _, golden, _ in asked], dtype=bool).reshape(len(asked), columns.shape[1])
    examples = np.array([example for example, *_ in asked], dtype=np.int64)
    choices = [rule(example) for example, *_ in asked]
    right = [choice >= 0 and bool(golden[choice]) for choice, golden in zip(choices, gold, strict=True)]
    groups = [tuple(dict.fromkeys(named)) for *_, named in asked]
    return Items(padded, columns, examples, places, gold, np.array(right, dtype=bool), groups)
