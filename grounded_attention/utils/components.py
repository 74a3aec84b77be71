# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Connected components of cells, on any device."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def label_components(cells: Tensor, diagonal: bool = True) -> Tensor:
    """Numbers the connected components of cells (n, Y, X) by their last cell, from 1; other cells have 0. Neighbours
    share an edge, or with `diagonal` a corner.

    Each cell names a cell of its component. A named cell takes over the largest name beside all that name it, and
    names are followed from one to the next, so few rounds are enough for any shape.
    """
    count = cells.shape[1] * cells.shape[2]
    names = torch.arange(1, count + 1, device=cells.device).view(1, *cells.shape[1:]) * cells
    while True:
        # No device lacks the maximum of float32, which holds these whole numbers exactly.
        beside = names.float()
        up = pad(beside, (0, 0, 1, 1)).unfold(1, 3, 1).amax(-1)
        across = pad(up if diagonal else beside, (1, 1)).unfold(2, 3, 1).amax(-1)
        beside = torch.maximum(up, across)
        index = names.flatten(1)
        largest = (beside * cells).flatten(1)
        named = largest.new_zeros(len(cells), count + 1).scatter_reduce_(1, index, largest, "amax").long()
        for _ in range(4):
            named = named.gather(1, named)
        larger = named.gather(1, index).view_as(names)
        if torch.equal(larger, names):
            return names
        names = larger
