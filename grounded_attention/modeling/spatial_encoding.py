# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A fixed sine code of the place of a region (DETR, Carion et al., 2020; Chou et al., 2022, section III-C)."""

import math

import torch
from torch import Tensor

TEMPERATURE = 10000.0


def sine_encoding(region_boxes: Tensor, width: int) -> Tensor:
    """Encodes the centre of boxes, y then x, as sines and cosines. A coordinate in [0, 1] times 2 pi is an angle; each
    has `width / 2` channels, of which channels 2 i and 2 i + 1 are the sine and the cosine of the angle divided by
    `10000 ** (4 i / width)`.
    """
    boxes = region_boxes.float()
    places = ((boxes[..., :2] + boxes[..., 2:]) / 2).flip(-1)
    channels = width // 2
    steps = torch.arange(0, channels, 2, device=boxes.device, dtype=torch.float32)
    angles = (2 * math.pi * places)[..., None] / TEMPERATURE ** (steps / channels)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-3)
