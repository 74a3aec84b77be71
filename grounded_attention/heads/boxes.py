# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes from the attention of chosen heads, without training, and how good they are.

Shape letters: n phrases, L layers, H heads, R image tokens, Y and X rows and columns of a grid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.metrics.intervals import Interval
from grounded_attention.processing.patch_grounding import match_coverage
from grounded_attention.supervision.steering import SteeredColumns
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou

from .maps import BOX_RULES, TokenGrid, attended_cells
from .statistics import ratio_intervals

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
    sets: Mapping[str, Heads]
    found: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    gold: list[np.ndarray] = field(default_factory=list)
    chance: list[float] = field(default_factory=list)

    def add(
        self,
        attention: Tensor,
        gold_tokens: Tensor,
        gold_boxes: np.ndarray,
        tokens: tuple[Tensor, Tensor, TokenGrid | None],
    ) -> None:
        """Adds a phrase: attention (L, H, R) on regions, which have a grid if they are image tokens."""
        boxes, candidates, grid = tokens
        for name, chosen in self.sets.items():
            layers, numbers = torch.tensor(chosen, device=attention.device).T
            if grid is None:
                token = int((attention[layers, numbers] * candidates).sum(0).argmax())
                self._add(name, bool(gold_tokens[token]), _fits(boxes[token].tolist(), gold_boxes))
            else:
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

    def scores(self, image_ids: Sequence[str]) -> list["BoxScore"]:
        """The score of each way to ground, with intervals over images; `image_ids` has the image of each phrase."""
        names, index = np.unique(np.array(image_ids, dtype=object).astype(str), return_inverse=True)
        found = []
        for name, columns in self.columns(image_ids).items():
            sums = np.zeros((len(names), 2))
            np.add.at(sums, index, columns)
            (point_low, box_low), (point_high, box_high) = ratio_intervals(sums, np.bincount(index))
            point, box = columns.mean(0)
            ends = (float(point_low), float(point_high)), (float(box_low), float(box_high))
            found.append(BoxScore(name, float(point), ends[0], float(box), ends[1]))
        return found


def _fits(box: Sequence[float] | np.ndarray, gold: np.ndarray) -> bool:
    return bool((box_iou(box, gold) >= IOU_THRESHOLD).any())


# What `steer_heads` steers towards


def box_columns(
    batch: Mapping[str, Any], boxes: Sequence[Any], coverage_threshold: float = 0.5, image: int = 0
) -> SteeredColumns:
    """Finds the image tokens in boxes; the rows after the last image token of an example are steered.

    Args:
        batch (`Mapping[str, Any]`): a batch of `PatchGroundingProcessor`.
        boxes (`Sequence`): for each of the B examples boxes (n, 4), x1, y1, x2, y2 divided by width and height of the
            original image; n may be 0, then the example is not steered.
        coverage_threshold (`float`, *optional*, defaults to 0.5): as for `PatchGroundingProcessor`.
        image (`int`, *optional*, defaults to 0): the image of the boxes, for examples with several.

    Returns:
        `SteeredColumns`: for `steer_heads`.

    Raises:
        ValueError: if there are not B entries, or a box is not in the image.
    """
    positions, places = batch["region_positions"], batch["region_boxes"]
    if len(boxes) != len(positions):
        raise ValueError(f"boxes of {len(boxes)} examples, but the batch has {len(positions)}")
    shown = (batch["region_candidate_mask"] & (batch["region_image"] == image)).cpu().numpy()
    found = []
    for example, given in enumerate(boxes):
        array = np.asarray(given, dtype=np.float64).reshape(-1, 4)
        if not ((array >= 0) & (array <= 1)).all() or (array[:, :2] > array[:, 2:]).any():
            raise ValueError(f"example {example}: boxes {array.tolist()}, expected x1, y1, x2, y2 in [0, 1]")
        patches = np.where(shown[example][:, None], places[example].cpu().numpy(), 0.0)
        marks = match_coverage(array, np.broadcast_to(patches, (len(array), *patches.shape)), coverage_threshold)
        found.append(positions[example].cpu()[torch.from_numpy(marks.any(0))])
    columns = torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=-1)
    return SteeredColumns(columns, positions.cpu().amax(1) + 1)
