# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Regions that a recipe has made when they are first needed, and the loading of what finds and describes them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch

from grounded_attention.dataset_scripts.builders.local_builder import fingerprint
from grounded_attention.dataset_scripts.files.image_files import ImageFile
from grounded_attention.dataset_scripts.regions.extraction_run import extract_table
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes.shape_regions import SOURCE, SceneFeatures, ShapeDetector
from grounded_attention.modeling.region_feature_models import load_region_features
from grounded_attention.processing.region_detection import GRID, BoxSource, GivenBoxes, GridBoxes, load_detector
from grounded_attention.processing.region_extraction import RegionExtractor, load_feature_processor
from grounded_attention.training.loop.side_by_side import say_once
from grounded_attention.training.recipes.recipe import MadeRegions, RecipeError, recipe_key_errors
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.plain_text import explained
from grounded_attention.utils.safe_paths import path_below

ROWS = "rows"  # as a detector: the boxes of the rows themselves
COUNTED = 1000  # images, on which boxes that a region reaches are counted
OWN: Mapping[str, type] = {SOURCE: ShapeDetector, GRID: GridBoxes}  # detectors that are no model


def load_extractor(
    detector: str | BoxSource,
    features: str,
    *,
    queries: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> RegionExtractor:
    """Loads a detector and a feature model by their names; `options` are those of `RegionExtractor`."""
    source: BoxSource
    if not isinstance(detector, str):
        source = detector
    elif detector in OWN:
        source = OWN[detector]()
    else:
        source = load_detector(detector, queries, device, dtype)
    model: Any
    if features == SOURCE:
        model = SceneFeatures()
        processor = model.image_processor
    else:
        processor = load_feature_processor(features)
        with explained(f"Feature model {features!r} cannot be used", OSError):
            model = load_region_features(features, dtype=dtype)
    return RegionExtractor(source, model.to(device), processor, features_name=features, **options)


def make_regions(made: MadeRegions, splits: Columns, images: str | None, quiet: bool, cpu: bool) -> str:
    """Extracts the regions of all images of the rows, or finds them; a broken run is continued."""
    unused = [name for name in ("queries", "min_regions") if getattr(made, name) != getattr(MadeRegions, name)]
    if unused and made.detector in (ROWS, *OWN):
        raise RecipeError(f"data.regions.{unused[0]} is for the boxes of a detector; of {made.detector} all are taken")
    if images is None:
        raise RecipeError("data.regions has a detector, but there are no pictures: give data.images")
    files = picture_files(splits, images)
    options = {key: value for key, value in asdict(made).items() if key != "folder"}
    boxes = boxes_of_rows(splits, files) if made.detector == ROWS else {}
    pictures = sorted((image_id, str(path)) for image_id, path in files.items())
    # Other pixels under the same name, or other boxes of the same rows, are other regions.
    identity = json.dumps([options, pictures, fingerprint(Path(path) for _, path in pictures), sorted(boxes.items())])
    state = hashlib.sha256(identity.encode()).hexdigest()[:16]
    kept = Path(datasets.config.HF_DATASETS_CACHE, "regions", state)
    device = "cpu" if cpu or not torch.cuda.is_available() else "cuda"
    with recipe_key_errors("data.regions"):
        extractor = load_extractor(
            GivenBoxes(boxes, ROWS) if made.detector == ROWS else made.detector,
            made.features,
            queries=made.queries,
            device=device,
            min_regions=made.min_regions,
            max_regions=made.max_regions,
        )
        folder = str(made.folder or kept)
        table = extract_table(
            [ImageFile(image_id, path) for image_id, path in files.items()],
            extractor,
            folder,
            open_image,
            source=f"{made.detector} {state}",
            progress=not quiet,
        )
    if table is not None:
        say_once(f"{table['regions']:,} regions of {table['images']:,} images ({made.detector}), kept in {folder}")
        say_once(_reached(folder, boxes or boxes_of_rows(splits, files)))
    return folder


def _reached(folder: str, boxes: Mapping[str, Columns]) -> str | None:
    """How many boxes of the rows a region finds; a model that chooses among regions can be right there alone."""
    table = RegionTable.open(folder)
    hits = wanted = 0
    for image_id, record_of_rows in list(boxes.items())[:COUNTED]:
        record = table[image_id]
        own = np.reshape(record_of_rows["boxes"], (-1, 4))
        if len(own) and len(record):
            sides = np.array([record.width, record.height] * 2)
            hits += int((box_iou(own, record.boxes * sides).max(axis=1) >= IOU_THRESHOLD).sum())
        wanted += len(own)
    if not wanted:
        return None
    line = f"{hits:,} of {wanted:,} boxes of the rows are found by a region (IoU {IOU_THRESHOLD} or more)"
    return f"{line}: with these regions no answer can be right; take another detector, or {ROWS}" * (not hits) or line


def picture_files(splits: Columns, folder: str) -> dict[str, Path]:
    """The picture of each image of the rows."""
    files: dict[str, Path] = {}
    for rows in splits.values():
        if "file_name" in rows.column_names:
            names = rows["file_name"]
        else:
            names = [None] * len(rows)
        for image_id, name in zip(rows["image_id"], names, strict=True):
            files.setdefault(image_id, path_below(folder, name or f"{image_id}.jpg"))
    return files


def boxes_of_rows(splits: Columns, files: Mapping[str, Path]) -> dict[str, Fields]:
    """The boxes that the rows of each image have, each once, in pixels."""
    distinct: dict[str, dict[tuple[float, ...], None]] = {image_id: {} for image_id in files}
    for rows in splits.values():
        for row in rows:
            boxes = list(row.get("objects") or ())
            for phrase in row.get("phrases") or ():
                boxes += phrase["boxes"]
            size = (row["width"], row["height"])
            distinct[row["image_id"]] |= {
                tuple(side * size[place % 2] for place, side in enumerate(box)): None for box in boxes
            }
    return {image_id: {"boxes": [*boxes]} for image_id, boxes in distinct.items()}
