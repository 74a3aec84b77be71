# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""RoIAlign: the one of torchvision if it is installed, otherwise an equivalent in plain torch."""

from typing import Any

import torch
from torch import Tensor

try:
    from torchvision.ops import roi_align as _imported_roi_align
# A torchvision for a different torch version fails with other errors than a missing one.
except (ImportError, RuntimeError, OSError):
    _torchvision_roi_align: Any = None
else:
    _torchvision_roi_align = _imported_roi_align

# Size of the plain version's largest temporary tensor: 64 MB of float32.
_CHUNK_NUMBERS = 2**24


def roi_align(
    features: Tensor,
    boxes: Tensor,
    batch_index: Tensor,
    output_size: int,
    spatial_scale: float,
    sampling_ratio: int,
) -> Tensor:
    """
    Reads a grid of cells from feature maps for every box. A cell is the mean of bilinear samples (Mask R-CNN, section
    3), without the half-pixel shift of later versions (`aligned=False` in torchvision).

    Smaller boxes are enlarged to one cell of the map in width and height. A sample more than one cell outside the map
    is 0.
    """
    if sampling_ratio < 1 or output_size < 1:
        raise ValueError(f"sampling_ratio ({sampling_ratio}) and output_size ({output_size}) must be at least 1.")
    if boxes.shape != (len(batch_index), 4):
        raise ValueError(
            f"boxes have the shape {tuple(boxes.shape)}, expected ({len(batch_index)}, 4): one row per batch_index."
        )
    if features.dtype == torch.float64:
        dtype = features.dtype
    else:
        dtype = torch.float32
    align = roi_align_torch if _torchvision_roi_align is None else _roi_align_torchvision
    # Autocast would round the positions of the samples.
    with torch.autocast(features.device.type, enabled=False):
        cells = align(
            features.to(dtype), boxes.detach().to(dtype), batch_index, output_size, spatial_scale, sampling_ratio
        )
    return cells.to(features.dtype)


def _roi_align_torchvision(
    features: Tensor,
    boxes: Tensor,
    batch_index: Tensor,
    output_size: int,
    spatial_scale: float,
    sampling_ratio: int,
) -> Tensor:
    rois = torch.cat([batch_index.to(boxes.dtype)[:, None], boxes], dim=1)
    return _torchvision_roi_align(features, rois, output_size, spatial_scale, sampling_ratio, aligned=False)


def roi_align_torch(
    features: Tensor,
    boxes: Tensor,
    batch_index: Tensor,
    output_size: int,
    spatial_scale: float,
    sampling_ratio: int,
) -> Tensor:
    """[`roi_align`] in plain torch, for float32 or float64."""
    height, width = features.shape[-2:]
    with torch.no_grad():
        start, end = (boxes * spatial_scale).split(2, dim=1)  # (K, 2): x, y
        size = (end - start).clamp(min=1.0)
        columns = _interpolation(start[:, 0], size[:, 0], width, output_size, sampling_ratio)  # (K, S, w)
        rows = _interpolation(start[:, 1], size[:, 1], height, output_size, sampling_ratio)  # (K, S, h)
    chunk = max(1, _CHUNK_NUMBERS // (output_size * features.shape[1] * width))
    output = features.new_zeros(len(boxes), features.shape[1], output_size, output_size)
    for image in range(len(features)):
        for members in (batch_index == image).nonzero()[:, 0].split(chunk):
            # Empty if the image has no boxes.
            mixed = torch.einsum("ksh,chw->kscw", rows[members], features[image])
            cells = mixed.flatten(1, 2) @ columns[members].transpose(1, 2)  # (k, S * C, S)
            output[members] = cells.unflatten(1, (output_size, -1)).transpose(1, 2)
    return output


def _interpolation(start: Tensor, size: Tensor, cells: int, output_size: int, sampling_ratio: int) -> Tensor:
    """The weight of each cell of the map in each cell of the result, along one axis: (K, S, cells)."""
    count = output_size * sampling_ratio
    steps = (torch.arange(count, device=start.device, dtype=start.dtype) + 0.5) / count
    positions = start[:, None] + size[:, None] * steps  # (K, S * ratio)
    inside = (positions >= -1.0) & (positions <= cells)
    # Linear interpolation gives a cell 1 minus its distance from the sample.
    places = torch.arange(cells, device=start.device, dtype=start.dtype)
    weights = (1.0 - (positions.clamp(0, cells - 1)[..., None] - places).abs()).clamp(min=0.0)
    return (weights * inside[..., None]).unflatten(1, (output_size, sampling_ratio)).mean(dim=2)
