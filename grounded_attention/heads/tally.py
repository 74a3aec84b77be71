# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Sums the right answers and the attention of each image; merges the sums of several processes.

Shape letters: L layers, B batch, H heads, Q query rows, K key columns, M items, W tokens of an item.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from grounded_attention.heads.head_counts import HeadCounts
from grounded_attention.heads.items import Items
from grounded_attention.supervision.row_states import AttentionPair
from grounded_attention.supervision.score_masks import is_hidden

ALL = "all"


def read_answers(pair: AttentionPair, items: Items) -> tuple[Tensor, Tensor]:
    """The answer of each head to each item, and the share of its attention on the candidates.

    The attention of an item is the mean over its tokens. It is summed in log space, because in float32 a very small
    attention on the candidates would be 0 for all of them.
    """
    log_alpha, log_share = pair[0], cast(Tensor, pair[1])
    device = log_alpha.device
    example = torch.from_numpy(items.example).to(device)[:, None]
    places = torch.from_numpy(items.places).to(device)
    absent = (places < 0)[:, :, None, None]
    index = (example.expand_as(places), places.clamp(min=0))
    shares = log_share.permute(1, 3, 0, 2)[index].masked_fill(absent, -torch.inf)  # (M, W, L, H)
    scores = log_alpha.permute(1, 3, 0, 2, 4)[index] + shares[..., None]  # (M, W, L, H, K)
    tokens = (places >= 0).sum(1)[:, None, None]
    pooled = shares.logsumexp(1)
    return scores.logsumexp(1).argmax(-1).masked_fill(is_hidden(pooled), -1), pooled.exp() / tokens


@dataclass
class _ImageSums:
    """The sums of one image, see `HeadCounts`; `first` is the number of its first example."""

    first: int
    items: int
    correct: np.ndarray
    share: np.ndarray
    baseline: int
    chance: float
    reachable: int

    def add(self, other: "_ImageSums") -> None:
        self.first = min(self.first, other.first)
        self.items += other.items
        self.correct = self.correct + other.correct
        self.share = self.share + other.share
        self.baseline += other.baseline
        self.chance += other.chance
        self.reachable += other.reachable


class Tally:
    """Counts of one direction, per group and image; its size does not depend on the number of phrases."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, _ImageSums]] = {}

    def add(self, items: Items, pair: AttentionPair, images: Sequence[str], numbers: Sequence[int]) -> None:
        """Counts the items of a batch."""
        if not len(items):
            return
        answers, share = (tensor.cpu().numpy() for tensor in read_answers(pair, items))
        right = np.take_along_axis(items.gold, answers.reshape(len(items), -1), 1).reshape(answers.shape)
        right &= answers >= 0
        for number, sums in enumerate(_of_items(items, right, share, numbers)):
            for group in (ALL, *items.groups[number]):
                self._add(group, images[items.example[number]], sums)

    def _add(self, group: str, image: str, sums: _ImageSums) -> None:
        known = self.groups.setdefault(group, {})
        if image in known:
            known[image].add(sums)
        else:
            known[image] = _ImageSums(**vars(sums))

    def merge(self, other: "Tally") -> None:
        """Adds the counts of another process."""
        for group, images in other.groups.items():
            for image, sums in images.items():
                self._add(group, image, sums)

    def counts(self) -> dict[str, HeadCounts]:
        """Group -> its counts; "all" first, the others sorted by name; images in the order of the examples."""
        names = sorted(self.groups, key=lambda name: (name != ALL, name))
        return {name: _to_counts(self.groups[name]) for name in names}


def _of_items(items: Items, right: np.ndarray, share: np.ndarray, numbers: Sequence[int]) -> Iterator[_ImageSums]:
    reachable, chance, share = np.any(items.gold, axis=1), items.chance, share.astype(np.float64)
    for n, example in enumerate(items.example):
        yield _ImageSums(
            numbers[example],
            1,
            right[n].astype(np.int64),
            share[n].copy(),  # a view would keep the shares of the whole batch in memory
            int(items.baseline[n]),
            float(chance[n]),
            int(reachable[n]),
        )


def _to_counts(images: dict[str, _ImageSums]) -> HeadCounts:
    ordered = sorted(images.items(), key=lambda item: item[1].first)
    sums = [one for _, one in ordered]
    return HeadCounts(
        tuple(image for image, _ in ordered),
        np.array([one.items for one in sums], dtype=np.int64),
        np.stack([one.correct for one in sums]),
        np.stack([one.share for one in sums]),
        np.array([one.baseline for one in sums], dtype=np.int64),
        np.array([one.chance for one in sums]),
        np.array([one.reachable for one in sums], dtype=np.int64),
    )
