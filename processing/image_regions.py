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
"""Images of a batch: opened, given to a detector where there is one, and turned into pixels.

Shapes: B batch, H and W of the padded canvas.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from .image_processing_fast_rcnn import FastRCNNImageProcessor, pad_pixels
from .number_arrays import to_array
from .open_images import open_image

# What a detector finds itself, so that it cannot be given beside one.
FOUND = (
    "region_features",
    "region_boxes",
    "image_sizes",
    "image_features",
    "region_scores",
)


def read_images(
    given: Mapping[str, Any], image_processor: FastRCNNImageProcessor | None, detector: Any
) -> tuple[dict[str, Any], list[Image.Image | None] | None]:
    """The arguments of a batch with what a detector finds in its images, and the pictures the model shall look at.

    Returns:
        `given`, with `region_features`, `region_boxes` and `region_scores` of the detector; and B RGB pictures, `None`
        where an example has no image, or `None` in their place where features are given or found, or nothing is.

    Raises:
        ValueError: Arguments that do not go together, an image that cannot be read, or a detector that returns another
            number of results than it got images.
    """
    if given["images"] is None:
        if detector is not None:
            raise ValueError("detector given without images.")
        return dict(given), None
    _check_arguments(given, image_processor, detector)
    upright = image_processor is not None and image_processor.upright
    images = enumerate(given["images"])
    pictures = [None if image is None else open_image(image, f"Example {i}", upright) for i, image in images]
    if detector is None:
        _check_sizes(given["image_sizes"], pictures)
        return dict(given), pictures
    found = {**given, **detect_regions(detector, pictures)}
    if found["region_features"] is not None:
        return found, None
    if image_processor is None:
        raise ValueError(
            "The detector finds boxes without features, and this processor has no image_processor for a model that "
            "computes them; give the extractor a feature model."
        )
    return found, pictures


def _check_arguments(given: Mapping[str, Any], image_processor: Any, detector: Any) -> None:
    if detector is not None:
        beside = [name for name in FOUND if given[name] is not None]
        if beside:
            raise ValueError(f"{', '.join(beside)} given beside a detector, which finds regions itself.")
        if not callable(getattr(detector, "extract", None)):
            raise ValueError(f"detector: {type(detector).__name__} has no extract(images); give a RegionExtractor.")
        return
    features = [name for name in ("region_features", "image_features") if given[name] is not None]
    if features:
        raise ValueError(f"{', '.join(features)} given beside images: features are either given or made from pixels.")
    if given["region_boxes"] is None:
        raise ValueError("images are given without region_boxes and without a detector to find them.")
    if image_processor is None:
        raise ValueError(
            "images are given with region_boxes, but this processor has no image_processor for a model that computes "
            "features; set one (FastRCNNImageProcessor), or give region_features."
        )


def _check_sizes(image_sizes: Sequence[Any] | None, pictures: Sequence[Image.Image | None]) -> None:
    """Boxes may be measured on a larger or smaller copy of the image, but not on one of another shape."""
    for example, picture in enumerate(pictures):
        if image_sizes is None or picture is None:
            continue
        size = to_array(image_sizes[example], f"Example {example}: image_sizes")
        if size.shape == (2,) and abs(size[0] * picture.height - size[1] * picture.width) > max(*size, *picture.size):
            raise ValueError(
                f"Example {example}: image_sizes says {size.tolist()}, but the image has {picture.width} x "
                f"{picture.height} pixels, another shape; is it turned (EXIF), or another image?"
            )


def detect_regions(detector: Any, pictures: Sequence[Image.Image | None]) -> dict[str, list[Any] | None]:
    """`region_features`, `region_boxes` and `region_scores` of B pictures, `None` in each list where there is none.

    Without features of every picture `region_features` is `None`.
    """
    shown = [picture for picture in pictures if picture is not None]
    found = list(detector.extract(shown)) if shown else []
    if len(found) != len(shown):
        raise ValueError(f"The detector returns {len(found)} results for {len(shown)} images.")
    results = iter(found)
    rows = [None if picture is None else next(results) for picture in pictures]
    featured = all(row is None or row.features is not None for row in rows)
    return {
        "region_features": [None if row is None else row.features for row in rows] if featured else None,
        "region_boxes": [None if row is None else row.boxes for row in rows],
        "region_scores": [None if row is None else row.scores for row in rows],
    }


def pixel_arrays(
    pictures: Sequence[Image.Image | None], image_processor: FastRCNNImageProcessor
) -> dict[str, np.ndarray]:
    """`pixel_values` (B, 3, H, W) float32 and `image_sizes` (B, 2) int64, both zero for an example without image."""
    nothing = np.zeros((3, 0, 0), dtype=np.float32)
    pixels = [nothing if picture is None else image_processor.pixels(picture) for picture in pictures]
    canvas = image_processor.canvas([array.shape[1:] for array in pixels if array.size] or [(1, 1)])
    sizes = np.array([array.shape[:0:-1] for array in pixels], dtype=np.int64)
    return {"pixel_values": pad_pixels(pixels, canvas), "image_sizes": sizes}
