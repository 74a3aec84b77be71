# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region boxes and features of any image: detector, selection of its boxes, and feature model in one object.

Pixels for a region-feature model are complete images, never cropped, so that boxes keep their position.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoConfig
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from ..utils.named_types import Columns, Fields
from ..utils.open_images import open_image, open_images
from ..utils.plain_text import explained, first_sentences
from .image_processing_fast_rcnn import FastRCNNImageProcessor, pad_pixels
from .region_boxes import box_iou
from .region_detection import BoxSource, Detections, dictionary_digest, model_provenance

try:
    from torchvision.ops import nms as torchvision_nms
except (ImportError, RuntimeError, OSError):  # a torchvision for another torch fails in other ways than a missing one
    torchvision_nms = None

# VL-BERT's region-feature network reads 600 x 1000 pixels; other backbones get the same ratio of the sides.
LONGEST_TO_SHORTEST = 5 / 3


class BackbonePixels:
    """Images for a vision backbone of transformers, normalised as its image processor does.

    The shorter side becomes `shortest_edge` unless the longer one would exceed 5/3 of it. Images are not cropped, and
    their aspect ratio does not change. Images of a batch are padded with zeros on the right and at the bottom. Mean
    and standard deviation are of red, green, blue after `rescale_factor`.
    """

    def __init__(
        self,
        image_mean: Sequence[float],
        image_std: Sequence[float],
        shortest_edge: int,
        rescale_factor: float = 1 / 255,
    ) -> None:
        self.image_mean = list(image_mean)
        self.image_std = list(image_std)
        self.shortest_edge = shortest_edge
        self.rescale_factor = rescale_factor

    @classmethod
    def from_image_processor(cls, processor: Any) -> "BackbonePixels":
        """Makes an instance with the numbers of an image processor of transformers."""
        size = dict(processor.size or {})
        edge = size.get("shortest_edge") or min(size.get("height") or 0, size.get("width") or 0)
        if not edge:
            raise ValueError(f"{type(processor).__name__} has no size in pixels: {size}.")
        if processor.do_rescale is not False:
            factor = processor.rescale_factor or 1 / 255
        else:
            factor = 1.0
        if processor.do_normalize is False:
            return cls([0.0] * 3, [1.0] * 3, edge, factor)
        return cls(processor.image_mean, processor.image_std, edge, factor)

    def __call__(self, images: Any, return_tensors: str = "pt") -> dict[str, Tensor]:
        """Converts images to tensors."""
        pixels = [self._pixels(picture) for picture in open_images(images)]
        sizes = torch.tensor([array.shape[:0:-1] for array in pixels])
        return {"pixel_values": torch.from_numpy(pad_pixels(pixels)), "image_sizes": sizes}

    def _pixels(self, picture: Image.Image) -> np.ndarray:
        shorter, longer = sorted(picture.size)
        scale = min(self.shortest_edge / shorter, self.shortest_edge * LONGEST_TO_SHORTEST / longer)
        width, height = (max(1, round(side * scale)) for side in picture.size)
        resized = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
        array = (resized * self.rescale_factor - self.image_mean) / self.image_std
        return np.ascontiguousarray(array.transpose(2, 0, 1), dtype=np.float32)

    def to_dict(self) -> Fields:
        """Returns the numbers in a form that JSON can store."""
        return {**self.__dict__, "image_processor_type": type(self).__name__}


def load_feature_processor(name_or_path: str) -> FastRCNNImageProcessor | BackbonePixels:
    """Loads the image processor of a region-feature model, by name or folder."""
    with explained(f"Feature model {name_or_path!r} cannot be used", OSError, ValueError):
        model_type = AutoConfig.from_pretrained(name_or_path).model_type
    try:
        if model_type == "fast_rcnn":
            return FastRCNNImageProcessor.from_pretrained(name_or_path)
        return BackbonePixels.from_image_processor(AutoImageProcessor.from_pretrained(name_or_path))
    except (OSError, ValueError, ImportError) as error:
        if model_type == "fast_rcnn":  # converted checkpoints may lack it; the defaults fit all of them
            return FastRCNNImageProcessor()
        raise ValueError(f"Feature model {name_or_path!r} has no image processor: {first_sentences(error)}") from error


# A region needs at least one pixel for a feature.
MIN_SIDE = 1.0


def suppress(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Applies greedy, class-agnostic non-maximum suppression: drops boxes that overlap a better one too much."""
    if torchvision_nms is not None:
        return torchvision_nms(boxes, scores, iou_threshold)
    return greedy_suppression(boxes, scores, iou_threshold)


def greedy_suppression(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Implements `suppress` without torchvision, one row of the overlap matrix at a time."""
    order = scores.argsort(descending=True, stable=True)
    ranked = boxes[order]
    kept = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    for rank in range(len(order)):
        if kept[rank]:
            overlap = box_iou(ranked[rank : rank + 1], ranked[rank + 1 :])[0]
            kept[rank + 1 :] &= overlap <= iou_threshold
    return order[kept]


def clip_boxes(boxes: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Clips pixel boxes to the image."""
    limit = torch.tensor([width, height, width, height], dtype=boxes.dtype, device=boxes.device)
    finite = boxes.isfinite().all(-1)
    clipped = torch.minimum(boxes.nan_to_num().clamp(min=0), limit)
    # An image one pixel wide still has regions.
    smallest = limit[:2].clamp(max=MIN_SIDE)
    sides = clipped[:, 2:] - clipped[:, :2]
    return clipped, finite & (sides >= smallest).all(-1)


def widen_boxes(boxes: Tensor, width: int, height: int) -> Tensor:
    """Clips pixel boxes (n, 4) to the image; a side below one pixel becomes one pixel inside the image."""
    limit = torch.tensor([width, height], dtype=boxes.dtype, device=boxes.device)
    smallest = limit.clamp(max=MIN_SIDE)
    low = torch.minimum(boxes[:, :2].clamp(min=0), limit - smallest)
    high = torch.maximum(torch.minimum(boxes[:, 2:], limit), low + smallest)
    return torch.cat([low, high], dim=1)


def select_regions(
    boxes: Tensor,
    scores: Tensor,
    min_regions: int = 10,
    max_regions: int = 100,
    score_threshold: float = 0.2,
    nms_threshold: float = 0.7,
) -> Tensor:
    """Selects the regions of one image (VL-BERT, section 4.1: 10 to 100, by a threshold on the detection scores).

    Duplicates are suppressed first. Of the remaining boxes, all with a score of at least `score_threshold` are kept,
    but at least the best `min_regions` and at most the best `max_regions`. There are fewer than `min_regions` only if
    suppression leaves fewer.
    """
    kept = suppress(boxes, scores, nms_threshold)
    confident = int((scores[kept] >= score_threshold).sum())
    return kept[: min(max(confident, min_regions), max_regions)]


@dataclass(eq=False)
class DetectedRegions:
    """The regions of one image; n regions, D feature values, C columns."""

    image_id: str | None
    width: int
    height: int
    boxes: np.ndarray  # (n, 4) float32, x1 y1 x2 y2 divided by width and height, in [0, 1]; at least one, best first
    scores: np.ndarray  # (n,) float32
    classes: np.ndarray  # (n,) int32, indices into `label_names`
    features: np.ndarray | None  # (n, D) float32; None without a feature model
    # (n, C) float32, if the detector returns a distribution: "no object" is column 0, class c is column c + 1
    class_probs: np.ndarray | None
    label_names: list[str]  # The detector's label of each class; may be empty
    # Detector, feature model and options, see [`RegionExtractor`]; None if unknown
    provenance: Columns | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def label(self, region: int) -> str:
        """Returns the label of a region; empty if the detector has no labels."""
        index = int(self.classes[region])
        if index < len(self.label_names):
            return self.label_names[index]
        return ""


class RegionExtractor:
    """Finds regions in images and computes their features.

    Images of the same size are computed together and without padding, so the regions of an image do not depend on the
    other images. An image without detections has one region, the whole image, with score 0 and class 0.

    Args:
        detector (`BoxSource`): A `RegionDetector`, `GivenBoxes`, or another `BoxSource`.
        features (*optional*): `FastRCNNFeatures`, `BackboneRegionFeatures`, or another model whose arguments are
            `pixel_values`, `region_boxes` (in pixels) and `region_attention_mask`, which returns `region_features` (B,
            R, D) and has `config.feature_size`; None for boxes only.
        feature_processor (*optional*): The feature model's image processor: RGB images to `pixel_values` and
            `image_sizes`.
        min_regions (`int`, *optional*, defaults to `10`): See `select_regions`.
        max_regions (`int`, *optional*, defaults to `100`): See `select_regions`. Given boxes are neither suppressed
            nor dropped by score, and one below a pixel is widened to it; of more than `max_regions` the best stay.
        score_threshold (`float`, *optional*, defaults to `0.2`): See `select_regions`.
        nms_threshold (`float`, *optional*, defaults to `0.7`): See `select_regions`.
        batch_size (`int`, *optional*, defaults to `8`): Number of images that are computed together.
        features_name (`str`, *optional*): Name of the feature model in the provenance.

    Attributes:
        provenance (`dict`): The detector, the feature model, and the options, in a form that JSON can store. Two
            extractors with equal provenance give equal regions up to rounding.

    Raises:
        ValueError: An option is out of range, or a feature model has no processor.

    Example:

    ```python
    >>> from grounded_attention.processing.region_detection import load_detector  # doctest: +SKIP
    >>> extractor = RegionExtractor(load_detector("PekingU/rtdetr_r50vd"), features, processor)  # doctest: +SKIP
    >>> regions = extractor.extract([Image.open("dog.jpg")])[0]  # doctest: +SKIP
    >>> regions.boxes.shape, regions.features.shape  # doctest: +SKIP
    ((17, 4), (17, 2048))

    ```
    """

    def __init__(
        self,
        detector: BoxSource,
        features: Any = None,
        feature_processor: Any = None,
        min_regions: int = 10,
        max_regions: int = 100,
        score_threshold: float = 0.2,
        nms_threshold: float = 0.7,
        batch_size: int = 8,
        features_name: str = "",
    ) -> None:
        thresholds = (score_threshold, nms_threshold)
        bounded = all(0 <= threshold <= 1 for threshold in thresholds)  # False for NaN
        if not 1 <= min_regions <= max_regions or not bounded or batch_size < 1:
            raise ValueError(
                f"min_regions={min_regions}, max_regions={max_regions}, score_threshold={score_threshold}, "
                f"nms_threshold={nms_threshold}, batch_size={batch_size}: expected 1 <= min_regions <= max_regions, "
                "thresholds in [0, 1], and at least one image in a batch."
            )
        if features is not None and feature_processor is None:
            raise ValueError("A feature model needs its image processor: give feature_processor.")
        self.detector = detector
        self.features = None if features is None else features.eval()
        self.feature_processor = feature_processor
        self.batch_size = batch_size
        self.options: Fields = {
            "min_regions": min_regions,
            "max_regions": max_regions,
            "score_threshold": score_threshold,
            "nms_threshold": nms_threshold,
        }
        self.provenance: Fields = {
            "detector": detector.provenance,
            "features": None if features is None else self._features_provenance(features_name),
            "options": {"max_regions": max_regions} if detector.selected else self.options,
        }

    def _features_provenance(self, name: str) -> Fields:
        processor = dictionary_digest(self.feature_processor.to_dict())
        return {**model_provenance(self.features, name), "processor": processor, "feature_size": self.feature_size}

    @property
    def feature_size(self) -> int | None:
        """D, the number of feature values of a region; None without a feature model."""
        if self.features is None:
            return None
        return self.features.config.feature_size

    def extract(self, images: Sequence[Image.Image], image_ids: Sequence[str] | None = None) -> list[DetectedRegions]:
        """Extracts the regions of each image, in the order of the images."""
        if image_ids is not None and len(image_ids) != len(images):
            raise ValueError(f"{len(images)} images have {len(image_ids)} ids; expected one id for each image.")
        pictures = [open_image(image, f"image {index}") for index, image in enumerate(images)]
        extracted: dict[int, DetectedRegions] = {}
        for batch in self._batches(pictures):
            if image_ids is None:
                ids = None
            else:
                ids = [image_ids[i] for i in batch]
            regions = self._extract_batch([pictures[i] for i in batch], ids)
            extracted.update(zip(batch, regions, strict=True))
        return [extracted[i] for i in range(len(pictures))]

    def _batches(self, images: Sequence[Image.Image]) -> Iterator[list[int]]:
        """Yields indices of images of the same size, at most `batch_size` at once."""
        by_size: dict[tuple[int, int], list[int]] = {}
        for index, image in enumerate(images):
            by_size.setdefault(image.size, []).append(index)
        for indices in by_size.values():
            for start in range(0, len(indices), self.batch_size):
                yield indices[start : start + self.batch_size]

    def _extract_batch(self, images: list[Image.Image], ids: list[str] | None) -> list[DetectedRegions]:
        detections = []
        for detected, image in zip(self.detector.detect(images, ids), images, strict=True):
            detections.append(self._choose(detected, *image.size))
        # One division by width and height, so that right and lower edges of the image become exactly 1.
        sizes = [torch.tensor([image.width, image.height] * 2, dtype=torch.float32) for image in images]
        boxes = [detected.boxes / size for detected, size in zip(detections, sizes, strict=True)]
        features = self._features(images, boxes)
        regions = []
        for i, image in enumerate(images):
            detected = detections[i]
            probs = detected.class_probs
            found = DetectedRegions(
                image_id=None if ids is None else ids[i],
                width=image.width,
                height=image.height,
                boxes=boxes[i].numpy(),
                scores=detected.scores.numpy(),
                classes=detected.classes.numpy().astype(np.int32),
                features=features[i],
                class_probs=None if probs is None else probs.numpy(),
                label_names=self.detector.label_names,
                provenance=self.provenance,
            )
            regions.append(found)
        return regions

    def _choose(self, detected: Detections, width: int, height: int) -> Detections:
        """Selects boxes inside the image; returns the whole image if there is none."""
        boxes, usable = clip_boxes(detected.boxes, width, height)
        if self.detector.selected:  # others count these boxes, so that none may be dropped
            boxes = widen_boxes(detected.boxes, width, height)
            usable = torch.ones_like(usable)
        detected = Detections(boxes, detected.scores, detected.classes, detected.class_probs)[usable]
        if not len(detected):
            return _whole_image_region(detected, width, height)
        if not self.detector.selected:
            return detected[select_regions(detected.boxes, detected.scores, **self.options)]
        best = detected.scores.argsort(descending=True, stable=True)[: self.options["max_regions"]]
        return detected[best.sort().values]

    @torch.no_grad()
    def _features(self, images: list[Image.Image], boxes: list[Tensor]) -> Sequence[np.ndarray | None]:
        if self.features is None:
            return [None] * len(images)
        inputs = self.feature_processor(images=images, return_tensors="pt")
        device = self.features.device
        dtype = self.features.dtype
        sizes = inputs["image_sizes"].to(torch.float32).repeat(1, 2)
        padded = torch.nn.utils.rnn.pad_sequence(boxes, batch_first=True) * sizes[:, None]
        counts = torch.tensor([len(rows) for rows in boxes])
        mask = torch.arange(padded.shape[1]) < counts[:, None]
        outputs = self.features(
            pixel_values=inputs["pixel_values"].to(device, dtype),
            region_boxes=padded.to(device),
            region_attention_mask=mask.to(device),
        )
        rows = outputs.region_features.float().cpu()
        return [row[:count].numpy() for row, count in zip(rows, counts.tolist(), strict=True)]


def _whole_image_region(template: Detections, width: int, height: int) -> Detections:
    boxes = torch.tensor([[0.0, 0.0, width, height]])
    probs = None
    if template.class_probs is not None:  # nothing was found: "no object"
        probs = torch.zeros(1, template.class_probs.shape[1])
        probs[0, 0] = 1.0
    return Detections(boxes, torch.zeros(1), torch.zeros(1, dtype=torch.long), probs)
