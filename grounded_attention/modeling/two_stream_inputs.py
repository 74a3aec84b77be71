# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks and completes the region inputs of models with two streams.

Shape letters: B batch, T text, R regions, D text width, F feature width.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from .sequence_inputs import check_region_shapes, check_shape


class RegionInputs(NamedTuple):
    """
    What the regions' stream embeds.

    Args:
        features (`torch.Tensor` of shape `(B, R, F)`): at least one column.
        boxes (`torch.Tensor` of shape `(B, R, 4)`): corners in [0, 1].
        mask (`torch.BoolTensor` of shape `(B, R)`): true for regions.
    """

    features: torch.Tensor
    boxes: torch.Tensor
    mask: torch.Tensor


def check_two_stream_regions(
    region_features: torch.Tensor | None,
    region_boxes: torch.Tensor | None,
    region_attention_mask: torch.Tensor | None,
    batch_size: int,
    field: str,
    width: int,
    kwargs: Mapping[str, Any],
) -> None:
    """
    Checks the region inputs; features and boxes belong together.
    """
    if kwargs.get("pixel_values") is not None:
        raise ValueError("pixel_values are given, but the model has no pixel network: give region_features.")
    check_region_shapes(region_features, region_boxes, region_attention_mask, batch_size, field, width)
    if region_features is None:
        for name, value in {"region_boxes": region_boxes, "region_attention_mask": region_attention_mask}.items():
            if value is not None and value.numel() > 0:
                raise ValueError(f"{name} are given without region_features.")
    elif region_boxes is None:
        raise ValueError(
            "region_boxes are missing: the model embeds the location of each region; give (x1, y1, x2, y2) divided by "
            "image width and height."
        )


def take_region_inputs(
    region_features: torch.Tensor | None,
    region_boxes: torch.Tensor | None,
    region_attention_mask: torch.Tensor | None,
    inputs_embeds: torch.Tensor,
    width: int,
) -> RegionInputs:
    """
    The checked region inputs. Without regions there is one column of zeros, which the mask hides.
    """
    if region_features is None or region_boxes is None or region_features.shape[1] == 0:
        batch_size = len(inputs_embeds)
        features, boxes = (inputs_embeds.new_zeros(batch_size, 1, size) for size in (width, 4))
        return RegionInputs(features, boxes, torch.zeros_like(features[..., 0], dtype=torch.bool))
    mask = torch.ones_like(region_features[..., 0], dtype=torch.bool)
    mask = mask if region_attention_mask is None else region_attention_mask.bool()
    return RegionInputs(region_features, region_boxes, mask)


def locate_boxes(boxes: torch.Tensor, numbers: int) -> torch.Tensor:
    """The location (B, R, numbers) of boxes (B, R, 4): their corners and, for 5 numbers, their area."""
    if numbers == 4:
        return boxes
    left, top, right, bottom = boxes.unbind(-1)
    return torch.stack([left, top, right, bottom, (right - left) * (bottom - top)], dim=-1)


def hide_regions(region_features: torch.Tensor | None, masked_regions: torch.Tensor | None) -> torch.Tensor | None:
    """Region features (B, R, F) with zeros for masked regions (B, R), as in the public code of ViLBERT and LXMERT."""
    if region_features is None or masked_regions is None:
        return region_features
    check_shape("masked_regions", masked_regions, tuple(region_features.shape[:2]))
    return region_features.masked_fill(masked_regions.bool()[..., None], 0.0)


__all__ = ["RegionInputs", "check_two_stream_regions", "hide_regions", "locate_boxes", "take_region_inputs"]
