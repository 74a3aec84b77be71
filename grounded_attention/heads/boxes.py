# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes from the attention of chosen heads, without training, and how good they are.

Shape letters: n phrases, L layers, H heads, R image tokens, Y and X rows and columns of a grid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from grounded_attention.heads.maps import BOX_RULES, TokenGrid, attended_cells
from grounded_attention.metrics.intervals import Interval
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou

CENTRE, RANDOM = "centre box", "chance"

Heads = Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class GroundedBox:
    """Where heads look."""

    box: tuple[float, float, float, float]
    token: int
    share: float
    map: np.ndarray
    frame: tuple[float, float, float, float]


def ground_box(attention: Tensor, candidates: Tensor, grid: TokenGrid, rule: str = BOX_RULES[0]) -> GroundedBox:
    """Finds the box of a phrase: the summed maps of the heads are smoothed and cut; the largest part wins.

    The steps are those of Localization Heads (arXiv 2503.06287, section 5); see `attended_cells` for the cut.
    """
    summed = (attention * candidates).sum(0)
    cells = grid.maps(summed)
    total = float(cells.sum())
    chosen = attended_cells(cells, rule)
    share = float(cells[chosen].sum()) / total if total > 0 else 0.0
    shown = cells / total if total > 0 else torch.full_like(cells, 1 / cells.numel())
    return GroundedBox(grid.box(chosen), int(summed.argmax()), share, shown.cpu().numpy(), grid.frame)


@dataclass(frozen=True)
class BoxScore:
    """How well a way to ground phrases finds their boxes."""

    name: str
    pointing: float
    pointing_interval: Interval
    accuracy: float
    accuracy_interval: Interval


@dataclass
class BoxTally:
    """Collects, for each way to ground, whether point and box of each phrase are right."""

    centre_size: tuple[float, float]
    found: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    gold: list[np.ndarray] = field(default_factory=list)
    chance: list[float] = field(default_factory=list)

    def add(
        self,
        attention: Tensor,
        heads: Mapping[str, Heads],
        gold_tokens: Tensor,
        gold_boxes: np.ndarray,
        tokens: tuple[Tensor, Tensor, TokenGrid],
    ) -> None:
        """Adds a phrase."""
        boxes, candidates, grid = tokens
        for name, chosen in heads.items():
            layers, numbers = torch.tensor(chosen, device=attention.device).T
            found = ground_box(attention[layers, numbers], candidates, grid)
            self._add(name, bool(gold_tokens[found.token]), _fits(found.box, gold_boxes))
        width, height = self.centre_size
        centre = (0.5 - width / 2, 0.5 - height / 2, 0.5 + width / 2, 0.5 + height / 2)
        offsets = ((boxes[:, :2] + boxes[:, 2:]) / 2 - 0.5).norm(dim=1).masked_fill(~candidates, torch.inf)
        self._add(CENTRE, bool(gold_tokens[offsets.argmin()]), _fits(centre, gold_boxes))
        self.gold.append(gold_boxes)
        self.chance.append(float(gold_tokens[candidates].float().mean()))

    def _add(self, name: str, point: bool, box: bool) -> None:
        self.found.setdefault(name, []).append((float(point), float(box)))

    def columns(self, image_ids: Sequence[str], seed: int = 0) -> dict[str, np.ndarray]:
        """Way -> (n, 2): whether point and box of each phrase are right.

        For chance these are a random image token, as its probability, and the box of a phrase of another image.
        """
        generator, images = np.random.default_rng(seed), np.array(image_ids)
        boxes = np.zeros(len(images))
        for index, gold in enumerate(self.gold):
            others = np.flatnonzero(images != images[index])
            if len(others):
                boxes[index] = _fits(self.gold[generator.choice(others)][0], gold)
        chance = np.stack([np.array(self.chance), boxes], 1)
        return {**{name: np.array(pairs) for name, pairs in self.found.items()}, RANDOM: chance}


def _fits(box: Sequence[float] | np.ndarray, gold: np.ndarray) -> bool:
    return bool((box_iou(box, gold) >= IOU_THRESHOLD).any())
