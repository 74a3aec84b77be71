# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention on image tokens as maps: from tokens to a grid, spatial entropy, and the box of the attended area.

Entropy and box follow Localization Heads (Kang et al., CVPR 2025, arXiv 2503.06287, sections 4.1 and 5). Shape
letters: R image tokens, Y and X rows and columns of the grid, C cells, Z parts of tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv1d, interpolate, pad

from grounded_attention.utils.components import label_components
from grounded_attention.utils.named_types import Corners
from grounded_attention.utils.plain_text import check_one_of

# The Gaussian of the paper, in cells of its maps, which have 24 x 24 (LLaVA-1.5).
SIGMA = 1.0
KERNEL = 7
SIDE = 24
# The finest grid, in cells along an edge; a page shows a coarser one.
MOST_CELLS = 128
# Maps are cut with at least this many cells along an edge, if 8 times as many as there were are enough.
FINE_CELLS = 64
MOST_FINER = 8
# Boxes are float32.
ROUNDING = 1e-4


@dataclass(frozen=True, eq=False)
class TokenGrid:
    """A regular grid over the part of an image that its tokens show, with cells as small as the smallest tokens.

    If the tokens are one grid of patches, each cell is one token. If tiles and the whole image show the same place,
    the attention of each token is spread evenly over its box and added.

    Part z of Z is what cell `cells[z]` gets of token `tokens[z]`: `weights[z]` of its attention.
    """

    tokens: Tensor
    cells: Tensor
    weights: Tensor
    rows: int
    columns: int
    frame: Corners

    @classmethod
    def of_tokens(cls, boxes: Tensor, has_place: Tensor, most_cells: int = MOST_CELLS) -> "TokenGrid":
        """Makes the grid of the tokens of one image."""
        if not has_place.any():
            raise ValueError("no image token shows a part of the image")
        device = boxes.device
        # some devices have no float64
        boxes = boxes.cpu().double()
        has_place = has_place.cpu()
        shown = boxes[has_place]
        low = shown[:, :2].amin(0)
        high = shown[:, 2:].amax(0)
        # Tokens at the edge of a picture may be cut, so the size of most tokens decides.
        sides = (shown[:, 2:] - shown[:, :2]).median(0).values
        columns, rows = ((high - low) / sides).round().clamp(1, most_cells).int().tolist()
        x, across = _shares(boxes[:, 0], boxes[:, 2], low[0], high[0], columns)
        y, down = _shares(boxes[:, 1], boxes[:, 3], low[1], high[1], rows)
        spread = down[:, :, None] * across[:, None] * has_place[:, None, None]
        tokens, row, column = spread.nonzero(as_tuple=True)
        cells = y[tokens, row] * columns + x[tokens, column]
        weights = spread[spread > 0].float()
        frame = (*low.tolist(), *high.tolist())
        return cls(tokens.to(device), cells.to(device), weights.to(device), rows, columns, frame)

    def maps(self, attention: Tensor) -> Tensor:
        """Turns attention on tokens (..., R) into maps (..., Y, X) float32 with the same sum."""
        tokens = self.tokens.to(attention.device)
        cells = self.cells.to(attention.device)
        weights = self.weights.to(attention.device)
        parts = attention.float()[..., tokens] * weights
        empty = parts.new_zeros(*parts.shape[:-1], self.rows * self.columns)
        return empty.scatter_add_(-1, cells.expand_as(parts), parts).unflatten(-1, (self.rows, self.columns))

    def cell_boxes(self) -> np.ndarray:
        """Returns the box of each cell, (C, 4) float32, divided by width and height of the image."""
        x1, y1, x2, y2 = self.frame
        across = np.linspace(x1, x2, self.columns + 1)
        down = np.linspace(y1, y2, self.rows + 1)
        left, top = np.meshgrid(across[:-1], down[:-1])
        right, bottom = np.meshgrid(across[1:], down[1:])
        return np.stack([left, top, right, bottom], -1).reshape(-1, 4).clip(0, 1).astype(np.float32)

    def box(self, cells: Tensor) -> Corners:
        """Returns the smallest box around the cells that are True, divided by width and height; they may be finer."""
        down = cells.any(1).nonzero().flatten().tolist()
        across = cells.any(0).nonzero().flatten().tolist()
        x1, y1, x2, y2 = self.frame
        width = (x2 - x1) / cells.shape[1]
        height = (y2 - y1) / cells.shape[0]
        edges = (x1 + across[0] * width, y1 + down[0] * height)
        ends = (x1 + (across[-1] + 1) * width, y1 + (down[-1] + 1) * height)
        left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in (*edges, *ends))
        return left, top, right, bottom

    def attended(self, cells: Tensor, rule: str) -> tuple[Corners, float]:
        """The box of the place that a map (Y, X) attends to, and the part of the attention that is there."""
        (chosen,) = attended_cells(cells, [rule])
        inside = adaptive_avg_pool2d(chosen[None].float(), (cells.shape[0], cells.shape[1]))[0]
        total = float(cells.sum())
        return self.box(chosen), float((cells * inside).sum()) / total if total > 0 else 0.0


def _shares(starts: Tensor, ends: Tensor, low: Tensor, high: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(R, n) each: which of `count` equal parts of [low, high] an interval [start, end] meets, and its share in them.

    Intervals meet n parts at most; those that meet fewer have shares of 0.
    """
    edges = torch.linspace(0, 1, count + 1, dtype=torch.float64) * (high - low) + low
    begin = starts[:, None]
    stop = ends[:, None]
    shared = (torch.minimum(stop, edges[1:]) - torch.maximum(begin, edges[:-1])).clamp(min=0)
    # A token covers its cells exactly, up to rounding, so slivers of its neighbours are removed.
    shared = shared.where(shared > ROUNDING * (high - low) / count, 0.0)
    most = int((shared > 0).sum(1).max())
    shares = shared / shared.sum(1, keepdim=True).clamp(min=1e-12)
    largest, parts = shares.topk(most)
    return parts, largest


def smooth(maps: Tensor) -> Tensor:
    """Smooths maps (n, Y, X) with the Gaussian of the paper; cells at the edge are repeated.

    Sigma is 1 and the kernel 7 cells wide on maps of at least 24 cells along their longer side. On smaller maps sigma
    is 1/24 of this side, the same part of the image, since it would else erase an object of one or two cells.
    """
    sigma = SIGMA * min(1.0, max(maps.shape[1:]) / SIDE)
    steps = torch.arange(KERNEL, dtype=maps.dtype, device=maps.device) - KERNEL // 2
    kernel = torch.exp(-(steps**2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum())[None, None]
    for _ in range(2):
        lines = pad(maps.flatten(0, 1)[:, None], (KERNEL // 2, KERNEL // 2), mode="replicate")
        maps = conv1d(lines, kernel)[:, 0].unflatten(0, maps.shape[:2]).transpose(1, 2)
    return maps


def spatial_entropy(maps: Tensor, means: float = 1.0, noise: float = 0.0) -> Tensor:
    """The spatial entropy of maps (n, Y, X): 0 if all attention above the mean is in one place, larger if scattered.

    The mean of the map is subtracted (`means` times), and what remains above `noise` falls into connected components.
    The entropy is that of their shares of the remaining attention, in nats (section 4.1); a map without a component
    has the largest. vl-saliency subtracts twice the mean, and leaves out what is below 0.001.
    """
    above = (maps - means * maps.mean((1, 2), keepdim=True)).clamp(min=0)
    labels = label_components(above > noise).flatten(1)
    mass = torch.zeros(len(maps), labels.shape[1] + 1, device=maps.device, dtype=above.dtype)
    mass.scatter_add_(1, labels, above.flatten(1))
    total = above.sum((1, 2))
    least = torch.finfo(mass.dtype).tiny
    shares = mass[:, 1:] / total.clamp(min=least)[:, None]
    entropy = torch.special.entr(shares).sum(1)
    largest = torch.tensor(float(labels.shape[1]), device=maps.device).log()
    return torch.where((labels > 0).any(1), entropy, largest.to(entropy)).float()


# From a map to a box


def _smooth(cells: Tensor) -> Tensor:
    return smooth(cells[None])[0]


def _fine(cells: Tensor) -> Tensor:
    """The map with smaller cells, linear between the middles of the large ones, so that a box may end inside one."""
    factor = min(max(FINE_CELLS // max(cells.shape), 1), MOST_FINER)
    return interpolate(cells[None, None], scale_factor=factor, mode="bilinear")[0, 0]


def _otsu(values: Tensor) -> Tensor:
    """The value of Otsu's threshold: the cells above it and the others have the largest variance between them."""
    ordered = values.flatten().double().cpu().sort().values
    sums = ordered.cumsum(0)
    count = len(ordered)
    below = torch.arange(1, count, dtype=torch.float64)
    gap = sums[:-1] / below - (sums[-1] - sums[:-1]) / (count - below)
    between = below * (count - below) * gap**2
    if count > 1:
        return ordered[between.argmax()].to(values)
    return ordered[0].to(values) - 1


def _of_maximum(share: float, values: Tensor) -> Tensor:
    return values.max() * share


def _of_mass(share: float, values: Tensor) -> Tensor:
    """The cut above which the fewest cells hold a share of the attention."""
    ordered = values.flatten().sort(descending=True).values
    held = ordered.cumsum(0)
    count = int((held < share * held[-1]).sum())
    return ordered[min(count, len(ordered) - 1)]


# How a map becomes a box: what is done with it first, and where it is then cut. The first is the default; `heads.json`
# names the one that makes the best boxes on the examples of the choice.
BOX_RULES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "otsu": (_fine, _otsu),
    "mean": (_smooth, torch.mean),
    **{f"max-{share}": (_fine, partial(_of_maximum, share)) for share in (0.3, 0.4, 0.5, 0.6)},
    **{f"mass-{share}": (_fine, partial(_of_mass, share)) for share in (0.5, 0.6, 0.7, 0.8)},
}
BOX_RULE = "otsu"


def attended_cells(attention_map: Tensor, rules: Sequence[str] = (BOX_RULE,)) -> list[Tensor]:
    """Finds the place that a map (Y, X) attends to: of the cells above a cut, the component with the most attention.

    One answer for each rule. `mean` is the rule of Localization Heads (section 5): the map is smoothed and cut at its
    mean. Objects that are small beside the kernel then get boxes that are far too large. The others cut the map with
    smaller cells: `otsu` where the variance between both sides is largest (Otsu, 1979), `max` at a share of the
    maximum, `mass` around the fewest cells with a share of the attention. tests/heads/test_box_rules.py measures them
    on planted maps. Localization Heads takes the component with the largest convex hull; with the most attention, a
    long thin edge does not win over an object.
    """
    found: dict[str, Tensor] = {}
    for prepare in dict.fromkeys(BOX_RULES[check_rule(rule)][0] for rule in rules):
        names = [rule for rule in rules if BOX_RULES[rule][0] is prepare]
        cells = prepare(attention_map.float())
        above = torch.stack([cells > BOX_RULES[name][1](cells) for name in names])
        labels = label_components(above).flatten(1)
        mass = torch.zeros(len(names), cells.numel() + 1, device=labels.device)
        mass.scatter_add_(1, labels, cells.flatten().expand(len(names), -1))
        mass[:, 0] = -1.0
        chosen = (labels == mass.argmax(1, keepdim=True)) | ~labels.any(1, keepdim=True)
        found |= zip(names, chosen.view_as(above), strict=True)
    return [found[rule] for rule in rules]


def check_rule(rule: str) -> str:
    """The rule, if it is one of `BOX_RULES`."""
    check_one_of(rule, BOX_RULES, "box rule ")
    return rule
