# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Images of a batch: opened, processed by a detector if there is one, and converted to pixels.

Shapes: B batch, H and W of the padded canvas.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from ..utils.boxes import same_shape
from ..utils.named_types import Columns, Fields
from ..utils.open_images import open_image
from .image_processing_fast_rcnn import FastRCNNImageProcessor, pad_pixels
from .number_arrays import Arrays, to_array

# Arguments that a detector computes, so that they cannot be given together with one.
DETECTOR_OUTPUTS = ("region_features", "region_boxes", "image_sizes", "image_features", "region_scores")


def read_images(
    arguments: Columns, image_processor: FastRCNNImageProcessor | None, detector: Any
) -> tuple[Fields, list[Image.Image | None] | None]:
    """Opens the images of a batch and runs the detector on them."""
    if arguments["images"] is None:
        if detector is not None:
            raise ValueError("detector is given without images; give images too.")
        return dict(arguments), None
    _check_arguments(arguments, image_processor, detector)
    images = enumerate(arguments["images"])
    pictures = []
    for i, image in images:
        pictures.append(None if image is None else open_image(image, f"Example {i}"))
    if detector is None:
        # Boxes refer to a copy of the image with the same aspect ratio; it may be larger or smaller.
        image_sizes = arguments["image_sizes"]
        for example, picture in enumerate(pictures):
            if image_sizes is None or picture is None:
                continue
            size = to_array(image_sizes[example], f"Example {example}: image_sizes")
            if size.shape == (2,) and not same_shape(tuple(size.tolist()), picture.size):
                raise ValueError(
                    f"Example {example}: image_sizes is {size.tolist()}, but the image has {picture.width} x "
                    f"{picture.height} pixels, another aspect ratio; check for a rotation (EXIF) or for another image."
                )
        return dict(arguments), pictures
    inputs = {**arguments, **detect_regions(detector, pictures)}
    if inputs["region_features"] is not None:
        return inputs, None
    if image_processor is None:
        raise ValueError(
            "The detector finds boxes without features, and this processor has no image_processor for a model that "
            "computes them; add a feature model to the extractor."
        )
    return inputs, pictures


def _check_arguments(inputs: Columns, image_processor: Any, detector: Any) -> None:
    if detector is not None:
        conflicting = [name for name in DETECTOR_OUTPUTS if inputs[name] is not None]
        if conflicting:
            raise ValueError(f"{', '.join(conflicting)} given together with a detector, which computes them.")
        if not callable(getattr(detector, "extract", None)):
            raise ValueError(
                f"detector: {type(detector).__name__} has no method extract(images); give a RegionExtractor."
            )
        return
    features = [name for name in ("region_features", "image_features") if inputs[name] is not None]
    if features:
        raise ValueError(f"{', '.join(features)} given together with images; remove one of the two.")
    if inputs["region_boxes"] is None:
        raise ValueError("images are given without region_boxes and without a detector; give one of the two.")
    if image_processor is None:
        raise ValueError(
            "images are given with region_boxes, but this processor has no image_processor for a model that computes "
            "features; set one (FastRCNNImageProcessor), or give region_features."
        )


def detect_regions(detector: Any, pictures: Sequence[Image.Image | None]) -> dict[str, list[Any] | None]:
    """Runs a detector on B pictures."""
    present = [picture for picture in pictures if picture is not None]
    detected = list(detector.extract(present)) if present else []
    if len(detected) != len(present):
        raise ValueError(f"The detector returns {len(detected)} results for {len(present)} images.")
    results = iter(detected)
    rows = [None if picture is None else next(results) for picture in pictures]
    has_features = all(row is None or row.features is not None for row in rows)
    return {
        "region_features": [None if row is None else row.features for row in rows] if has_features else None,
        "region_boxes": [None if row is None else row.boxes for row in rows],
        "region_scores": [None if row is None else row.scores for row in rows],
    }


def pixel_arrays(pictures: Sequence[Image.Image | None], image_processor: FastRCNNImageProcessor) -> Arrays:
    """Converts pictures to pixels."""
    nothing = np.zeros((3, 0, 0), dtype=np.float32)
    pixels = []
    for picture in pictures:
        pixels.append(nothing if picture is None else image_processor.pixels(picture))
    sizes = np.array([array.shape[:0:-1] for array in pixels], dtype=np.int64)
    return {"pixel_values": pad_pixels(pixels), "image_sizes": sizes}
