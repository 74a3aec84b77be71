# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Speaks up, and then refuses to train, if nothing is supervised: the loss would be constant, or 0."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from transformers.utils import logging

logger = logging.get_logger(__name__)

SPOKEN = 2  # batches without a supervised row before one line
# So many batches may have rows that see no gold column, for example because texts are shorter than a layer's window.
HIDDEN_LIMIT = 8
# So many may have no grounded row at all: few rows of a mixture of data sets may have phrases.
EMPTY_LIMIT = 1000
HIDDEN = (
    "no supervised layer lets these rows see the regions they should attend to, so the loss is constant; put images "
    "before the words, give directions=['text_to_region'], or choose layers without a sliding window"
)
EMPTY = (
    "no phrase has both words and regions, so nothing is supervised; check that rows have phrases with boxes or "
    "regions, that regions fit the boxes (the right table, an IoU that is reached), and that max_length does not cut "
    "the phrases (`dropped_phrases` of a batch)"
)


class VisibleRows:
    """Checks the losses of a method in training until each direction had a row that sees a gold column."""

    def __init__(self, empty: str = EMPTY) -> None:
        self._empty = empty
        self._waited: dict[str, dict[str, int]] = {}  # direction -> problem -> batches; none after the first row

    def check(
        self, losses: Mapping[str, tuple[Tensor, Tensor]], counts: Callable[[], Mapping[str, Tensor | int]]
    ) -> None:
        """Checks the losses of one batch: component -> (sum, number of rows that see a gold column)."""
        for name, (_, seen) in losses.items() if torch.is_grad_enabled() else ():
            waited = self._waited.setdefault(name, {HIDDEN: 0, self._empty: 0})
            if waited and int(seen):
                waited.clear()
            if not waited:
                continue
            problem = HIDDEN if int(counts().get(name, 0)) else self._empty
            waited[problem] += 1
            limit = HIDDEN_LIMIT if problem == HIDDEN else EMPTY_LIMIT
            if waited[problem] == SPOKEN:
                logger.warning(f"{name}, {SPOKEN} batches: {problem}; training ends after {limit} such batches")
            if waited[problem] == limit:
                raise ValueError(f"{name}: {problem}")
