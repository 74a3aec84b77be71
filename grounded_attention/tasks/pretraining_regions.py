# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The targets of masked regions in pre-training, by model family.

Shape letters: B batch, R regions, C classes of the detector.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.modeling.task_config import RegionTargets
from grounded_attention.modeling.task_losses import UNLABELLED

from .masking import ChosenRegions


def region_targets(
    candidates: Tensor, regions: Sequence[Any], chosen: Sequence[ChosenRegions], options: Any, wanted: RegionTargets
) -> dict[str, Tensor]:
    """Makes the targets of masked regions."""
    masks = {
        "predicted_regions": [each.predicted for each in chosen],
        "masked_regions": [each.hidden for each in chosen],
    }
    targets = {
        name: place_regions(candidates, values, candidates.new_zeros(candidates.shape))
        for name, values in masks.items()
    }
    all_regions = wanted.normalizer is not None
    labelled = candidates if all_regions else targets["predicted_regions"]
    if wanted.classes and options.region_targets == "soft":
        probs = [_class_probs(record) for record in regions]
        empty = torch.zeros(*candidates.shape, probs[0].shape[1])
        return {**targets, "region_label_probs": place_regions(candidates, probs, empty) * labelled[..., None]}
    columns = []
    if wanted.classes:
        columns.append(
            ("region_label", [_classes(r, options.background and wanted.background) for r in regions], "scores")
        )
    if wanted.attributes:
        columns.append(("attribute_label", [_attributes(record) for record in regions], "attribute_scores"))
    for name, values, scores in columns:
        labels = place_regions(candidates, values, torch.full(candidates.shape, UNLABELLED))
        targets[f"{name}s"] = labels.masked_fill(~labelled, UNLABELLED)
        if all_regions:
            weights = [_scores(record, scores) for record in regions]
            targets[f"{name}_weights"] = place_regions(candidates, weights, torch.zeros(candidates.shape))
    return targets


def check_classes(targets: dict[str, Tensor], known: int) -> None:
    """Raises ValueError if the regions have other classes than the `known` ones that the model predicts."""
    probs = targets.get("region_label_probs")
    labels = targets.get("region_labels")
    classes = known if labels is None or not labels.numel() else max(known, int(labels.max()) + 1)
    if probs is not None:
        classes = probs.shape[-1]
    if classes != known:
        raise ValueError(
            f"the regions have {classes} detector classes or more, but model.config.region_classes is {known}: "
            "set it to the number of classes of the detector (plus background, if it has this class)"
        )


def place_regions(candidates: Tensor, values: Sequence[np.ndarray], out: Tensor) -> Tensor:
    """Writes the values of each image's regions into their columns of `out` (B, R, ...)."""
    for row, columns, own in zip(out, candidates, values, strict=True):
        row[columns] = torch.from_numpy(own[: int(columns.sum())]).to(row.dtype)
    return out


def _attributes(record: Any) -> np.ndarray:
    if record.attributes is None:
        raise ValueError(_missing(record, "attributes", "model.config.visual_attr_loss=true"))
    return record.attributes


def _scores(record: Any, name: str) -> np.ndarray:
    values = getattr(record, name)
    if values is None:
        raise ValueError(_missing(record, f"{name} (confidence of the detector)", "model.config.visual_loss=released"))
    return values


def _classes(record: Any, background: bool) -> np.ndarray:
    if record.classes is None:
        raise ValueError(_missing(record, "detector classes", "options.region_targets=hard"))
    return record.classes + int(background)


def _class_probs(record: Any) -> np.ndarray:
    if record.class_probs is None:
        raise ValueError(_missing(record, "class probabilities (class_probs)", "options.region_targets=soft"))
    return record.class_probs


def _missing(record: Any, what: str, option: str) -> str:
    return (
        f"image {record.image_id}: the region table has no {what}, but {option} needs them: import or extract "
        "features with them, or set options.regions=false"
    )
