# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where the regions of the pipeline `visual-grounding` come from: given ones, a detector, a feature model.

Shape letters: n regions of an image, D features of a region.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ..utils.boxes import same_shape
from ..utils.named_types import Columns
from .grounding_items import GroundingItem, download_image, image_size, is_url, normalise, of_each, rows_of_boxes
from .region_feature_models import load_region_features

# The features of drawn scenes are not a model of transformers, so an error message refers to this class.
SCENES_HINT = "feature_model=SceneFeatures() of grounded_attention.dataset_scripts.scenes.shape_regions"


class RegionSource:
    """The part of the pipeline that finds boxes and features.

    Attributes:
        extractor (`Any`): finds the regions of images that are given without boxes, or `None`.
        feature_model (`Any`): computes features of boxes that are given without features, or `None`.
        feature_model_name (`str`): its name, "" for an object.
    """

    model: Any
    processor: Any
    device: Any
    extractor: Any
    feature_model: Any
    feature_model_name: str
    _warn: Callable[[str], None]

    @property
    def reads_pixels(self) -> bool:
        """Whether the model computes region features from pixels."""
        return getattr(self.model.config, "vision_config", None) is not None

    def _make_extractor(self, boxes: Any, queries: Sequence[str] | None = None, **options: Any) -> Any:
        if self.feature_model is None and not self.reads_pixels:
            trained_on = (self.processor.region_feature_source or {}).get("name")
            named = "" if trained_on is None else f" ({trained_on!r})"
            raise ValueError(f"the model needs features: give feature_model, the same as in training{named}")
        return self.processor.load_extractor(
            boxes, self.feature_model, self.feature_model_name, queries=queries, device=self.device, **options
        )

    def _check_width(self, width: int) -> None:
        expected = self.processor.region_feature_size
        if width != expected:
            raise ValueError(
                f"the features have {width} values, but the model was trained with {expected}; use the feature model "
                "of training"
            )

    def _check_source(self, detector: Any) -> None:
        """Warns if the `provenance` of an extractor or a record differs from the features of training."""
        source = self.processor.feature_source(getattr(detector, "provenance", None))
        line = None if self.reads_pixels else self.processor.feature_mismatch(source)
        if line is not None:
            self._warn(line)

    # Of one caption

    def _take_record(self, item: GroundingItem, inputs: Columns) -> None:
        """Sets the regions of a record; for a model that reads pixels only the boxes, without features."""
        extra = [name for name in ("boxes", "features", "scores", "labels") if inputs.get(name) is not None]
        if extra:
            raise ValueError(f"{', '.join(extra)} given together with regions, which already contain them")
        record = inputs["regions"]
        image = inputs.get("image")
        if not hasattr(record, "boxes") or not hasattr(record, "width"):
            expected = "a record with boxes, width and height, such as RegionTable.open(folder)[image_id]"
            raise ValueError(f"regions is of type {type(record).__name__}, expected {expected}")
        item.size = (int(record.width), int(record.height))
        # Of a picture on the web only the boxes are needed, unless the model reads its pixels.
        opened = None
        if self.reads_pixels or not is_url(image):
            opened = self._open(image)
        if opened is not None:
            if not same_shape(opened.size, item.size):
                raise ValueError(
                    f"the image has {opened.width} x {opened.height} pixels, but the regions are of an image of "
                    f"{item.size[0]} x {item.size[1]}: give the image that they were found in"
                )
            item.size = opened.size
        item.boxes = np.asarray(record.boxes, np.float32)
        item.scores = None
        if record.scores is not None:
            item.scores = np.asarray(record.scores, np.float32).tolist()
        named = callable(getattr(record, "label", None))
        item.labels = [(record.label(index) or None) if named else None for index in range(len(item.boxes))]
        if self.reads_pixels:
            item.image = opened
        elif record.features is None:
            raise ValueError("the regions have no features, which the model needs")
        else:
            item.features = np.asarray(record.features, np.float32)
            self._check_source(record)

    def _take_regions(self, item: GroundingItem, inputs: Columns) -> None:
        """Sets the given boxes, or the image for the detector."""
        boxes = inputs.get("boxes")
        features = inputs.get("features")
        if boxes is None:
            orphans = [name for name in ("features", "scores", "labels") if inputs.get(name) is not None]
            if orphans:
                raise ValueError(f"{', '.join(orphans)} given without boxes")
            if self.extractor is None:
                raise ValueError("no boxes: give boxes or regions, or a detector to the pipeline")
        if features is not None and self.reads_pixels:
            raise ValueError("the model reads pixels and does not use features: remove features")
        if boxes is not None and features is None and self.feature_model is None and not self.reads_pixels:
            raise ValueError("the model needs features: give those of the boxes, or a feature_model to the pipeline")
        if features is None or inputs.get("image_size") is None:
            item.image = self._open(inputs.get("image"))
        item.size = image_size(item.image, inputs.get("image_size"))
        if boxes is not None:
            item.boxes, count = normalise(boxes, item.size), len(boxes)
            item.features = None if features is None else rows_of_boxes(features, count)
            item.scores = of_each(inputs.get("scores"), count, "scores")
            item.labels = of_each(inputs.get("labels"), count, "labels") or [None] * count

    def _open(self, image: Any) -> Image.Image | None:
        if is_url(image):
            return self.processor.open_image(download_image(image), f"image {image}")
        if image is None:
            return None
        return self.processor.open_image(image)

    # Of a batch

    def _find_regions(self, items: Sequence[GroundingItem]) -> None:
        """Adds missing boxes, and missing features if the model needs them."""
        lacking = [item for item in items if item.boxes is None]
        if lacking:
            extracted = self.extractor.extract([item.image for item in lacking])
            for item, regions in zip(lacking, extracted, strict=True):
                item.boxes = regions.boxes
                item.features = regions.features
                item.scores = regions.scores.tolist()
                item.labels = [regions.label(index) or None for index in range(len(regions))]
        lacking = [item for item in items if item.features is None]
        if lacking and not self.reads_pixels:
            self._find_features(lacking)

    def _find_features(self, items: Sequence[GroundingItem]) -> None:
        """Adds features of known boxes; the extractor widens those below a pixel."""
        ids = [str(index) for index in range(len(items))]
        records = {key: {"boxes": item.pixels} for key, item in zip(ids, items, strict=True)}
        extractor = self._make_extractor(records, max_regions=max(100, *(len(item.known_boxes) for item in items)))
        self._check_source(extractor)
        for item, regions in zip(items, extractor.extract([item.image for item in items], ids), strict=True):
            item.boxes = regions.boxes
            item.features = regions.features


def load_features(name: str) -> Any:
    """Loads a feature model by its name. `ValueError` if there is no such model."""
    try:
        return load_region_features(name)
    except OSError as error:
        hint = "; for the features of drawn scenes use " + SCENES_HINT if name == "scenes" else ""
        raise ValueError(f"feature model {name}: {' '.join(str(error).split())}{hint}") from error
