# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The image tokens in boxes, towards which `steer_heads` steers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from grounded_attention.processing.patch_grounding import match_coverage
from grounded_attention.supervision.steering import SteeredColumns


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
    shown = (batch["region_candidate_mask"] & (batch["region_token_type_ids"] == image)).cpu().numpy()
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
