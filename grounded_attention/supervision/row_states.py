# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The states that the attention of chosen rows over chosen columns is computed from, of one layer or of several.

Shape letters: L layers, B batch, H heads, G heads of keys (H is a multiple of G), Q queried rows, K queried columns,
d head width.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .score_masks import LOWEST_SCORE, ScoreMask, gather_columns, is_hidden

# log_alpha and log_share of `SupervisedAttention`.
AttentionPair = tuple[Tensor, Tensor | None]

# Limit of numbers that are copied to compute several layers at once: 4 MiB on a CPU. On a GPU each operation costs the
# time of its launch: more layers at once made a training step of VL-BERT base a quarter shorter on an H100.
JOINED_NUMBERS = 2**20
JOINED_ON_A_GPU = 2**28

# float32 numbers in the widest vector register of a CPU (AVX-512).
FLOATS_PER_VECTOR = 16


class HandedStates(NamedTuple):
    """What an attention module hands to a reader of rows (`heads/attention_readers.py`) in a pass."""

    layer: int
    query: Tensor  # (B, H, N, d)
    key: Tensor  # (B, G, M, d)
    late: tuple[Any, ...]  # how a token that sees all keys scores, see `late_states`; () if it does not
    own: int  # how many of the keys are positions of the queries' sequence
    read: Callable[..., list["RowStates"]]  # reads any rows, from queries and plans


class RowStates(NamedTuple):
    """Queries and keys at positions of a layer, or L layers in front; with `columns` the keys of all M positions."""

    rows: Tensor  # (B, H, Q, d) or (L, B, H, Q, d)
    keys: Tensor  # (B, G, K or M, d) or (L, B, G, K or M, d)
    scaling: float  # factor of the scores
    mask: ScoreMask  # what is hidden, for scores (B, H, Q, K or M); padded columns are, if there are no `columns`
    softcap: float | None = None  # limit of the scores, see [`cap`]
    columns: Tensor | None = None  # (B, K), from 0 on
    padded: Tensor | None = None  # (B, 1, 1, K) bool, True for padded columns
    sinks: Tensor | None = None  # (H, 1) or (B, H, Q), scores of a column without a value (gpt-oss)

    def log_alpha(self) -> Tensor:
        """Computes the log-probabilities over the columns (equation 6)."""
        rows = self.rows * self.scaling
        keys = self.keys
        offsets = self.mask.offsets()
        if rows.shape[-3] > keys.shape[-3] or not _is_slow(keys.shape[-2], keys.device):
            return log_softmax(cap(score(rows, keys), self.softcap) + offsets)
        scores = cap(score(keys, rows), self.softcap) + offsets.transpose(-2, -1)
        return scores.log_softmax(-2).transpose(-2, -1)

    def pair(self) -> AttentionPair:
        """Computes `log_alpha`, -1e9 at hidden columns, and `log_share` if it has the keys of all positions."""
        if self.columns is None or self.padded is None:
            return self.mask.hide(self.log_alpha()), None
        scores, total = self._scores()
        selected = gather_columns(scores, self.columns).masked_fill(self.padded, LOWEST_SCORE)
        log_alpha = log_softmax(selected).masked_fill(is_hidden(selected), LOWEST_SCORE)
        return log_alpha, selected.logsumexp(-1) - total

    def attention(self) -> Tensor:
        """Computes the attention (..., B, H, Q, M) of the rows to the keys of all positions."""
        scores, total = self._scores()
        return (scores - total[..., None]).exp()

    def _scores(self) -> tuple[Tensor, Tensor]:
        """The scores of all positions (..., H, Q, M), and the logarithm of the sum of their exponentials."""
        scores = self.mask.apply(cap(score(self.rows * self.scaling, self.keys), self.softcap))
        total = scores.logsumexp(-1)
        if self.sinks is not None:
            total = torch.logaddexp(total, self.sinks.float())
        return scores, total

    def visible_columns(self) -> Tensor:
        """(B, 1 or Q, K) bool, the columns that are visible to all heads."""
        hidden = self.mask.hidden
        assert hidden is not None  # padding at least
        return ~(hidden[:, 0] if hidden.shape[1] == 1 else hidden.any(1))

    def select_heads(self, heads: Sequence[int]) -> "RowStates":
        """Returns the states of some heads of one layer."""
        shared = self.rows.shape[-3] // self.keys.shape[-3]
        keys = self.keys[:, [head // shared for head in heads]]
        return RowStates(self.rows[:, heads], keys, self.scaling, self.mask.select_heads(heads), self.softcap)

    def select_rows(self, rows: slice | Sequence[int]) -> "RowStates":
        """Returns the states of some of the rows of one layer."""
        number = self.rows.shape[2]
        mask = []
        for part in self.mask:
            if part is not None and part.shape[2] == number:
                part = part[:, :, rows]
            mask.append(part)
        if self.sinks is None or self.sinks.dim() == 2:
            sinks = self.sinks
        else:
            sinks = self.sinks[..., rows]
        return self._replace(rows=self.rows[:, :, rows], mask=ScoreMask(*mask), sinks=sinks)

    def select_example(self, number: int) -> "RowStates":
        """Returns the states of one example of one layer, as a batch of 1."""
        chosen = slice(number, number + 1)
        every = len(self.rows)

        def part_of(values: Tensor | None) -> Tensor | None:
            return values if values is None or len(values) != every else values[chosen]

        sinks = self.sinks
        if sinks is not None and sinks.dim() == 3:
            sinks = part_of(sinks)
        states = self._replace(rows=self.rows[chosen], keys=self.keys[chosen], sinks=sinks)
        mask = ScoreMask(*map(part_of, self.mask))
        return states._replace(mask=mask, columns=part_of(self.columns), padded=part_of(self.padded))

    def select_columns(self, count: int) -> "RowStates":
        """Returns the states with the first columns alone; they have the keys of all positions."""
        assert self.columns is not None and self.padded is not None
        return self._replace(columns=self.columns[:, :count], padded=self.padded[..., :count])

    def size(self) -> int:
        """The number of numbers; with the keys of all positions these count eight times, and the scores too."""
        numbers = self.rows.numel() + self.keys.numel()
        if self.columns is None:
            return numbers
        return 8 * numbers + self.rows.numel() // self.rows.shape[-1] * self.keys.shape[-2]

    def fits(self, other: "RowStates") -> bool:
        """Whether both have the same shapes and the same mask, so that they can be stacked."""
        alike = ((self.columns, other.columns), (self.padded, other.padded), *zip(self.mask, other.mask, strict=True))
        if any(one is not another for one, another in alike) or self.sinks is not None or self.rows.dim() > 4:
            return False
        shapes = self.rows.shape == other.rows.shape and self.keys.shape == other.keys.shape
        return shapes and (self.scaling, self.softcap) == (other.scaling, other.softcap)


def layers_at_once(numbers: int, device: torch.device) -> int:
    """How many layers of so many numbers each are copied to compute them at once; 0 or 1 if they are too large."""
    return (JOINED_NUMBERS if device.type == "cpu" else JOINED_ON_A_GPU) // max(1, numbers)


def stack_states(states: Sequence[RowStates]) -> RowStates:
    """Stacks the states of layers that fit together: the layers become a dimension in front of the batch."""
    rows = torch.stack([each.rows for each in states])
    keys = torch.stack([each.keys for each in states])
    return RowStates(rows, keys, *states[0][2:])


def log_softmax(scores: Tensor) -> Tensor:
    """log_softmax(-1), fast also for few columns."""
    if _is_slow(scores.shape[-1], scores.device):
        return scores.transpose(-2, -1).log_softmax(-2).transpose(-2, -1)
    return scores.log_softmax(-1)


def _is_slow(columns: int, device: torch.device) -> bool:
    """Whether log_softmax is faster in another order of memory.

    PyTorch computes rows that are shorter than a vector register number by number. With the columns in front of the
    rows it takes a tenth of the time for 15 columns on a CPU with AVX-512.
    """
    return columns < FLOATS_PER_VECTOR and device.type == "cpu" and not torch.compiler.is_compiling()


def cap(scores: Tensor, softcap: float | None) -> Tensor:
    """Keeps scaled scores within the limit of a model that has one (Gemma 2): softcap * tanh(scores / softcap)."""
    if softcap is None:
        return scores
    return softcap * torch.tanh(scores / softcap)


def score(rows: Tensor, keys: Tensor) -> Tensor:
    """(..., H, Q, d) with (..., G, K, d) -> (..., H, Q, K) float32, one product for all heads that share a key."""
    *batch, heads, number, width = rows.shape
    groups = keys.shape[-3]
    grouped = rows.reshape(*batch, groups, heads // groups * number, width)
    return (grouped @ keys.transpose(-2, -1)).reshape(*batch, heads, number, keys.shape[-2]).float()
