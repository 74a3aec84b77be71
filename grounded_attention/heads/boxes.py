# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes from the attention of chosen heads, without training, and how good they are.

Shape letters: n phrases, L layers, H heads, R image tokens, Y and X rows and columns of a grid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.metrics.intervals import Interval
from grounded_attention.processing.patch_grounding import match_coverage
from grounded_attention.supervision.steering import SteeredColumns
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou
from grounded_attention.utils.named_types import Batch, Corners

from .maps import BOX_RULE, TokenGrid, attended_cells
from .statistics import ratio_intervals

CENTRE = "centre box"
RANDOM = "chance"

Heads = Sequence[tuple[int, int]]
# Heads, and how their map becomes a box.
Way = tuple[Heads, str]


@dataclass(frozen=True, eq=False)
class GroundedBox:
    """Where heads look."""

    box: Corners
    token: int
    share: float
    map: np.ndarray
    frame: Corners


def ground_box(attention: Tensor, candidates: Tensor, grid: TokenGrid, rule: str = BOX_RULE) -> GroundedBox:
    """Finds the box of a phrase: the summed maps of the heads are smoothed and cut; the largest part wins.

    The steps are those of Localization Heads (arXiv 2503.06287, section 5); see `attended_cells` for the cut.
    """
    summed = (attention * candidates).sum(0)
    cells = grid.maps(summed)
    total = float(cells.sum())
    box, share = grid.attended(cells, rule)
    if total > 0:
        shown = cells / total
    else:
        shown = torch.full_like(cells, 1 / cells.numel())
    return GroundedBox(box, int(summed.argmax()), share, shown.cpu().numpy(), grid.frame)


@dataclass(frozen=True)
class BoxScore:
    """How well a way to ground phrases finds their boxes."""

    name: str
    pointing: float
    pointing_interval: Interval
    accuracy: float
    accuracy_interval: Interval
    count: int = 0  # of phrases; 0 in files of earlier versions


@dataclass(frozen=True, eq=False)
class MappedPhrase:
    """What is kept of one of the first phrases with a right answer.

    `boxes` are the gold ones. `entropy` (L, H), of image tokens only, if heads are ranked by it.
    """

    image_id: str
    boxes: np.ndarray
    entropy: np.ndarray | None = None


def judge_ways(
    sets: Mapping[str, Way],
    centre_size: tuple[float, float],
    attention: Tensor,
    gold: tuple[Tensor, np.ndarray],
    regions: tuple[Tensor, Tensor, TokenGrid | None],
) -> dict[str, tuple[float, float]]:
    """Whether point and box of a phrase are right, for each set of heads and the baselines.

    `attention` (L, H, R); `gold`: the right regions (R,), and boxes; `regions`: boxes, candidates (R,), and the grid
    of image tokens. Heads that see no candidate find nothing. The box of chance is found by `box_scores`.
    """
    right, gold_boxes = gold
    boxes, candidates, grid = regions
    right = right.to(attention.device)
    boxes = boxes.to(attention.device)
    candidates = candidates.to(attention.device)
    judged = dict.fromkeys(sets, (0.0, 0.0))
    same_heads: dict[tuple, list[str]] = {}
    for name, (heads, _) in sets.items():
        same_heads.setdefault(tuple(heads), []).append(name)
    for heads, names in same_heads.items():
        layers, numbers = torch.tensor(heads, device=attention.device).T
        received = (attention[layers, numbers] * candidates).sum(0)
        if received.any():
            token = int(received.argmax())
            point = float(right[token])
            found = len(names) * [tuple(boxes[token].tolist())]
            if grid is not None:
                places = attended_cells(grid.maps(received), [sets[name][1] for name in names])
                found = [grid.box(place) for place in places]
            judged |= {name: (point, fits_box(box, gold_boxes)) for name, box in zip(names, found, strict=True)}
    width, height = centre_size
    centre = (0.5 - width / 2, 0.5 - height / 2, 0.5 + width / 2, 0.5 + height / 2)
    middles = (boxes[:, :2] + boxes[:, 2:]) / 2
    offsets = (middles - 0.5).norm(dim=1).masked_fill(~candidates, torch.inf)
    judged[CENTRE] = (float(right[offsets.argmin()]), fits_box(centre, gold_boxes))
    chance = float(right[candidates].float().mean()) if candidates.any() else 0.0
    judged[RANDOM] = (chance, 0.0)
    return judged


def box_scores(right: Mapping[str, np.ndarray], items: np.ndarray, phrases: Sequence[MappedPhrase]) -> list[BoxScore]:
    """The score of each way to ground, with intervals over images.

    Chance points at a random candidate, and takes the box of a phrase of another image: of the first phrases alone.

    Args:
        right (`Mapping[str, np.ndarray]`): way to ground -> sums (I, 2) over the phrases of each image: whether point
            and box are right.
        items (`np.ndarray`): (I,) number of phrases of each image.
        phrases (`Sequence[MappedPhrase]`): the first of them.
    """
    count = int(items.sum())
    scores = []
    for name, sums in right.items():
        point, box = (sums.sum(0) / count).tolist()
        (point_low, box_low), (point_high, box_high) = ratio_intervals(sums, items).tolist()
        box_interval = (box_low, box_high)
        if name == RANDOM:
            box, box_interval = chance_of_boxes(phrases)
        scores.append(BoxScore(name, point, (point_low, point_high), box, box_interval, count))
    return scores


def chance_of_boxes(phrases: Sequence[MappedPhrase]) -> tuple[float, Interval]:
    """How often the box of a phrase of another image fits, with its interval over images."""
    generator = np.random.default_rng(0)
    names, index = np.unique([phrase.image_id for phrase in phrases], return_inverse=True)
    fits = np.zeros((len(names), 1))
    for image, phrase in zip(index, phrases, strict=True):
        others = np.flatnonzero(index != image)
        if len(others):
            other = phrases[generator.choice(others)]
            fits[image] += fits_box(other.boxes[0], phrase.boxes)
    low, high = ratio_intervals(fits, np.bincount(index))[:, 0].tolist()
    return float(fits.sum() / len(phrases)), (low, high)


def fits_box(box: Sequence[float] | np.ndarray, gold: np.ndarray) -> float:
    """1 if a box overlaps one of the gold boxes (n, 4) enough, else 0."""
    return float((box_iou(box, gold) >= IOU_THRESHOLD).any())


# What `steer_heads` steers towards


def box_columns(batch: Batch, boxes: Sequence[Any], coverage_threshold: float = 0.5, image: int = 0) -> SteeredColumns:
    """Finds the image tokens or regions in boxes; the rows after the last image token of an example are steered.

    A model that reads regions attends in both directions: all rows are steered.

    Args:
        batch (`Mapping[str, Any]`): a batch of `PatchGroundingProcessor`, or of a processor of regions.
        boxes (`Sequence`): for each of the B examples boxes (n, 4), x1, y1, x2, y2 divided by width and height of the
            original image; n may be 0, then the example is not steered.
        coverage_threshold (`float`, *optional*, defaults to 0.5): as for `PatchGroundingProcessor`.
        image (`int`, *optional*, defaults to 0): the image of the boxes, for examples with several.

    Returns:
        `SteeredColumns`: for `steer_heads`.

    Raises:
        ValueError: if there are not B entries, or a box is not in the image.
    """
    positions = batch["region_positions"]
    places = batch["region_boxes"]
    if len(boxes) != len(positions):
        raise ValueError(f"boxes of {len(boxes)} examples, but the batch has {len(positions)}")
    shown = (batch["region_candidate_mask"] & (batch["region_image"] == image)).cpu().numpy()
    kept = []
    for example, of_example in enumerate(boxes):
        array = np.asarray(of_example, dtype=np.float64).reshape(-1, 4)
        if not ((array >= 0) & (array <= 1)).all() or (array[:, :2] > array[:, 2:]).any():
            raise ValueError(f"example {example}: boxes {array.tolist()}, expected x1, y1, x2, y2 in [0, 1]")
        patches = np.where(shown[example][:, None], places[example].cpu().numpy(), 0.0)
        marks = match_coverage(array, np.broadcast_to(patches, (len(array), *patches.shape)), coverage_threshold)
        kept.append(positions[example].cpu()[torch.from_numpy(marks.any(0))])
    columns = torch.nn.utils.rnn.pad_sequence(kept, batch_first=True, padding_value=-1)
    last = positions.cpu().amax(1)
    if "cross_attention_mask" in batch:  # (B, N, images, tiles): its last change is at the last image
        seen = batch["cross_attention_mask"].cpu().flatten(2)
        changes = (seen[:, 1:] != seen[:, :-1]).any(-1)
        places = torch.arange(1, seen.shape[1])
        return SteeredColumns(columns, (changes * places).amax(1))
    # They are no tokens of the sequence.
    regions = int(last.max()) >= batch["input_ids"].shape[1] or "decoder_input_ids" in batch
    return SteeredColumns(columns, torch.zeros_like(last) if regions else last + 1)
