# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Direct attention supervision as the paper writes it: loops over full attention maps, to be read and to test against.

Training uses `direct.py`, which needs no maps. Shape letters: B batch, P phrases, T tokens, R regions, H heads,
N and M the rows and columns of a map.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def gold_pairs(batch: Mapping[str, Tensor]) -> Tensor:
    """A token and a region belong together if a phrase contains both."""
    (size, phrases, tokens), regions = batch["phrase_mask"].shape, batch["phrase_regions"].shape[2]
    gold = torch.zeros(size, tokens, regions, dtype=torch.bool)
    for b in range(size):
        for p in range(phrases):
            for t in range(tokens):
                for r in range(regions):
                    if batch["phrase_mask"][b, p, t] and batch["phrase_regions"][b, p, r]:
                        gold[b, t, r] = True
    return gold


def direct_loss(
    maps: Sequence[Tensor], gold: Tensor, rows: Tensor, columns: Tensor, target: str = "uniform"
) -> Tensor:
    """Computes equations 6 and 7 of Samaran et al. (2021); equation 8 is the same with words and regions exchanged."""
    losses = []
    for b in range(len(gold)):
        kept = [y for y in range(gold.shape[2]) if columns[b, y] >= 0]
        for x in range(gold.shape[1]):
            wanted = [y for y in kept if gold[b, x, y]]
            if rows[b, x] < 0 or not wanted:
                continue
            of_heads = []
            for layer in maps:
                for attention in layer[b, :, rows[b, x]]:  # one head's row of the map, (M,)
                    everywhere = sum(attention[columns[b, y]] for y in kept)  # a row is normalised over one side only
                    alpha = torch.stack([attention[columns[b, y]] / everywhere for y in wanted])
                    ways = {"uniform": -alpha.log().mean(), "sum": -alpha.log().sum(), "any": -alpha.sum().log()}
                    of_heads.append(ways[target])
            losses.append(torch.stack(of_heads).mean())
    return torch.stack(losses).mean()
