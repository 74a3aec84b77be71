# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shared by commands that read images: options, the pipeline, known regions, folders of images."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from grounded_attention.families import FAMILIES, find_family
from grounded_attention.training.recipes.config_sizes import check_sizes
from grounded_attention.utils.plain_text import first_sentences, has_surrogates, printable
from grounded_attention.utils.safe_paths import path_below, refuse_same_files

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from grounded_attention.modeling.pipeline_visual_grounding import VisualGroundingPipeline
    from grounded_attention.processing.region_extraction import DetectedRegions

SUFFIXES = (".jpg", ".jpeg", ".png")


def add_region_options(parser: argparse.ArgumentParser, with_rows: bool = False) -> None:
    """Adds the options that select the source of the regions and of their features: one, or with rows perhaps none,
    for then `--boxes` says how rows write their boxes."""
    source = parser.add_mutually_exclusive_group(required=not with_rows)
    source.add_argument("--detector", metavar="NAME_OR_PATH", help='detector of transformers, or "scenes"')
    (parser if with_rows else source).add_argument(
        "--boxes",
        metavar="FILE",
        help="JSON file: image file name without suffix -> boxes x1 y1 x2 y2 in pixels"
        + ('; with --data how boxes are written, such as "xywh pixels"' if with_rows else ""),
    )
    source.add_argument("--regions", metavar="DIR", help="folder of a region table that contains the image")
    add = parser.add_argument
    add("--features", metavar="NAME_OR_PATH", help='region-feature network, vision backbone, or "scenes"')
    add("--queries", nargs="+", metavar="TEXT", help="what a zero-shot detector looks for")


def open_input(options: argparse.Namespace) -> Image.Image:
    """Opens the image and checks the caption."""
    from grounded_attention.utils.open_images import open_image

    refuse_same_files({"IMAGE": options.image, "--output": options.output})
    image = open_image(options.image)
    if not options.caption.strip():
        raise ValueError("the caption is empty: give the text for the model in quotation marks")
    if has_surrogates(options.caption):
        shown = printable(ascii(options.caption), 120)
        raise ValueError(
            f"the caption is not UTF-8: found {shown} (its bytes are written as \\udc..), give it as UTF-8"
        )
    return image


def load_pipeline(options: argparse.Namespace, device: str | torch.device = "cpu") -> VisualGroundingPipeline:
    """Loads the pipeline of a checkpoint of this project, with the detector and the feature model of the options."""
    from transformers import AutoConfig, AutoProcessor

    from grounded_attention.dataset_scripts.scenes.shape_regions import SOURCE, SceneFeatures, ShapeDetector
    from grounded_attention.modeling.finite_numbers import check_finite
    from grounded_attention.modeling.pipeline_visual_grounding import VisualGroundingPipeline
    from grounded_attention.training.recipes.adapters import load_base_model

    try:
        config = AutoConfig.from_pretrained(options.model)
        check_sizes(config.to_dict(), "config.json: ")
        if find_family(config.model_type) is None:
            known = " or ".join(FAMILIES)
            raise ValueError(f"model type {config.model_type} is not supported, expected {known}")
        model, processor = load_base_model(options.model), AutoProcessor.from_pretrained(options.model)
        check_finite(model, "its weights")
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"--model {options.model}: {first_sentences(error)}") from error
    parts = {
        "detector": ShapeDetector() if options.detector == SOURCE else options.detector,
        "feature_model": SceneFeatures() if options.features == SOURCE else options.features,
        "queries": options.queries,
    }
    finds = {name: value for name, value in parts.items() if value is not None and options.regions is None}
    return VisualGroundingPipeline(model.eval(), processor=processor, device=device, task="visual-grounding", **finds)


def read_regions(options: argparse.Namespace, image_id: str) -> dict[str, Any]:
    """Reads the known regions of an image: a record of a table, or boxes of a file; empty with a detector."""
    from grounded_attention.dataset_scripts.regions.boxes import read_boxes

    if options.regions is not None:
        return {"regions": _from_table(options.regions, image_id)}
    if options.boxes is None:
        return {}
    records = read_boxes(options.boxes)
    if image_id not in records:
        raise ValueError(f"{options.boxes}: no boxes for image {image_id!r}")
    return {key: value for key, value in records[image_id].items() if key in ("boxes", "scores", "labels")}


def _from_table(path: str, image_id: str) -> DetectedRegions:
    import numpy as np

    from grounded_attention.dataset_scripts.regions.table import RegionTable
    from grounded_attention.processing.region_extraction import DetectedRegions

    regions = RegionTable.open(path)
    row = regions[image_id]
    count = len(row)
    classes = np.zeros(count, np.int32) if row.classes is None else row.classes
    scores = np.ones(count, np.float32) if row.scores is None else row.scores
    features = row.features.astype(np.float32)
    return DetectedRegions(
        image_id,
        row.width,
        row.height,
        row.boxes,
        scores,
        classes,
        features,
        None,
        regions.class_names,
        regions.provenance,
    )


def folder_pictures(folder: str | Path) -> Callable[[str], Any]:
    """Returns a function from an image id to its picture in a folder, a .jpg, .jpeg or .png file."""
    from grounded_attention.utils.open_images import open_image

    def open_picture(image_id: str) -> Any:
        paths = [path_below(folder, f"{image_id}{suffix}") for suffix in SUFFIXES]
        return open_image(next((path for path in paths if path.is_file()), paths[0]))

    return open_picture


def check_pictures(folder: str | Path, image_ids: Iterable[str]) -> None:
    """Checks that a folder has the picture of each image, before any work is done."""
    wanted = dict.fromkeys(image_ids)
    missing = [
        image_id
        for image_id in wanted
        if not any(path_below(folder, f"{image_id}{suffix}").is_file() for suffix in SUFFIXES)
    ]
    if missing:
        raise ValueError(
            f"--images {folder}: {len(missing)} of {len(wanted)} images are missing, the first is {missing[0]}; "
            f"expected {missing[0]}{', '.join(SUFFIXES)}"
        )
