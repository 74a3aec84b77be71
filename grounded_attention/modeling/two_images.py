# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reasoning over two images with a model of one image: one row for the text with each image.

Shape letters: B batch, T text, R regions, F feature width.
"""

from typing import Any

import torch

from .sequence_inputs import check_shape


def split_images(
    *,
    region_features: torch.Tensor | None,
    region_boxes: torch.Tensor | None,
    region_attention_mask: torch.Tensor | None,
    region_token_type_ids: torch.Tensor | None,
    grounding_queries: Any,
    positions: Any,
    whole_image: bool,
    **texts: torch.Tensor | None,
) -> dict[str, Any]:
    """
    Splits the regions of two images into rows 2i and 2i + 1; the text is the same in both.
    """
    if grounding_queries is not None or positions is not None:
        raise ValueError("grounding_queries are given, but a text with two images has two rows of attention.")
    rows: dict[str, Any] = {
        name: None if value is None else value.repeat_interleave(2, dim=0) for name, value in texts.items()
    }
    if region_features is None:
        return {**rows, "region_features": None, "region_boxes": None, "region_attention_mask": None}
    if region_token_type_ids is None:
        raise ValueError(
            "region_token_type_ids are missing: give the image of each region, 0 or 1 (region_image_indices of the "
            "processor)."
        )
    check_shape("region_token_type_ids", region_token_type_ids, tuple(region_features.shape[:2]))
    mask = torch.ones_like(region_token_type_ids, dtype=torch.bool)
    mask = mask if region_attention_mask is None else region_attention_mask.bool()
    images = torch.arange(2, device=mask.device)[:, None]
    own = mask[:, None] & (region_token_type_ids[:, None] == images)  # (B, 2, R)
    features = region_features[:, None].expand(-1, 2, -1, -1)
    if whole_image:
        first = torch.arange(mask.shape[1], device=mask.device) == 0
        own = own & ~first
        weights = own.to(features.dtype)
        mean = (weights / weights.sum(2, keepdim=True).clamp(min=1)) @ region_features  # (B, 2, F)
        features = torch.where(first[:, None], mean[:, :, None], features)
        own = own | (first & mask[:, None])
    return {
        **rows,
        "region_features": features.flatten(0, 1),
        "region_boxes": None if region_boxes is None else region_boxes.repeat_interleave(2, dim=0),
        "region_attention_mask": own.flatten(0, 1).long(),
    }


__all__ = ["split_images"]
