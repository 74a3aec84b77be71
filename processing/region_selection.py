# Copyright 2026 The grounded-attention authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Which of a detector's boxes become regions: clipped to the image, without duplicates, the best by score. n boxes."""

import torch
from torch import Tensor
from transformers.utils import is_torchvision_available

from .region_boxes import box_iou

if is_torchvision_available():
    from torchvision.ops import nms as torchvision_nms

# A region needs at least one pixel to hold a feature.
SMALLEST_SIDE = 1.0


def suppress(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Greedy non-maximum suppression whatever the class: a box that overlaps a better one too much is left out.

    Args:
        boxes: (n, 4) float32, x1 y1 x2 y2, any unit.
        scores: (n,) float32; of equal scores the first is the better.
        iou_threshold: boxes whose intersection over union with a kept box is above this are left out.

    Returns:
        (k,) int64, indices of the kept boxes, best first. torchvision's kernel where it is installed, else equal
        PyTorch operations.
    """
    if is_torchvision_available():
        return torchvision_nms(boxes, scores, iou_threshold)
    return greedy_suppression(boxes, scores, iou_threshold)


def greedy_suppression(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """`suppress` without torchvision; one row of the overlap matrix at a time."""
    order = scores.argsort(descending=True, stable=True)
    ranked = boxes[order]
    alive = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    for rank in range(len(order)):
        if alive[rank]:
            alive[rank + 1 :] &= box_iou(ranked[rank : rank + 1], ranked[rank + 1 :])[0] <= iou_threshold
    return order[alive]


def clip_boxes(boxes: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Pixel boxes (n, 4) moved into the image, and (n,) bool: which are numbers and have sides of a pixel or more."""
    limit = torch.tensor([width, height, width, height], dtype=boxes.dtype, device=boxes.device)
    finite = boxes.isfinite().all(-1)
    clipped = torch.minimum(boxes.nan_to_num().clamp(min=0), limit)
    # An image one pixel wide still has regions.
    smallest = limit[:2].clamp(max=SMALLEST_SIDE)
    return clipped, finite & ((clipped[:, 2:] - clipped[:, :2]) >= smallest).all(-1)


def select_regions(
    boxes: Tensor,
    scores: Tensor,
    min_regions: int = 10,
    max_regions: int = 100,
    score_threshold: float = 0.2,
    nms_threshold: float = 0.7,
) -> Tensor:
    """The regions of one image (VL-BERT, section 4.1: 10 to 100, by a threshold on the detection scores).

    Duplicates are suppressed first. Of what stays every box that scores at least `score_threshold` is kept, but at
    least the best `min_regions`, and at most the best `max_regions`; fewer than `min_regions` only where suppression
    leaves no more.

    Args:
        boxes: (n, 4) float32, x1 y1 x2 y2, any unit.
        scores: (n,) float32.
        min_regions: 1 or more.
        max_regions: `min_regions` or more.
        score_threshold: in the unit of the scores.
        nms_threshold: intersection over union in [0, 1].

    Returns:
        (k,) int64, indices of the regions, best first.
    """
    kept = suppress(boxes, scores, nms_threshold)
    confident = int((scores[kept] >= score_threshold).sum())
    return kept[: min(max(confident, min_regions), max_regions)]
