# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The scenes' regions for any picture of coloured shapes: boxes from its pixels, and the features of training.

`ShapeDetector` replaces a detector, `SceneFeatures` a feature model:

    own = {"detector": ShapeDetector(), "feature_model": SceneFeatures()}
    pipeline("visual-grounding", model="runs/scenes_vgp/direct", **own)

Pictures are first scaled to the size of drawn scenes, because the features depend on the number of pixels in a box.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from .features import FEATURE_SIZE, pixel_features
from .painter import PAINTS
from .shape_finder import find_shapes, scene_size

SOURCE = "scenes"


class ShapeDetector:
    """A `BoxSource` that finds coloured shapes on a ground of one colour; its labels are the colours."""

    selected = True
    label_names = list(PAINTS)
    provenance = {"name": SOURCE, "label_names": label_names}

    def detect(self, images: Sequence[Image.Image], image_ids: Sequence[str] | None = None) -> list[Any]:
        """Finds the shapes of images."""
        return [_detections(image) for image in images]


def _detections(image: Image.Image) -> SimpleNamespace:
    """Returns boxes (n, 4) float32 in pixels, scores (n,) float32, classes (n,) int64."""
    found = find_shapes(image)
    classes = torch.tensor([ShapeDetector.label_names.index(colour) for colour in found.colours], dtype=torch.long)
    boxes = torch.from_numpy(found.boxes)
    return SimpleNamespace(boxes=boxes, scores=torch.ones(len(boxes)), classes=classes, class_probs=None)


class ScenePixels:
    """The image processor of `SceneFeatures`: pictures at the size of drawn scenes, with unchanged pixel values."""

    def __call__(self, images: Sequence[Image.Image], return_tensors: str = "pt") -> dict[str, Tensor]:
        """Converts images to tensors."""
        pixels = [np.asarray(_as_scene(image)) for image in images]
        sizes = torch.tensor([array.shape[1::-1] for array in pixels])
        values = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float()
        return {"pixel_values": values, "image_sizes": sizes}

    def to_dict(self) -> dict[str, Any]:
        """Returns its settings; there are none."""
        return {"image_processor_type": type(self).__name__}


def _as_scene(image: Image.Image) -> Image.Image:
    size = scene_size(*image.size)
    return image if size == image.size else image.resize(size, Image.Resampling.BICUBIC)


class _Config(SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


class SceneFeatures(nn.Module):
    """`pixel_features` as a region-feature model; its features are those of the scenes generator's region tables."""

    name = SOURCE
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self) -> None:
        super().__init__()
        self.config = _Config(model_type=SOURCE, feature_size=FEATURE_SIZE)
        self.image_processor = ScenePixels()

    def forward(self, pixel_values: Tensor, region_boxes: Tensor, region_attention_mask: Tensor) -> SimpleNamespace:
        """Computes the features of regions."""
        features = torch.zeros(*region_boxes.shape[:2], FEATURE_SIZE)
        for row, (values, boxes, mask) in enumerate(
            zip(pixel_values.cpu(), region_boxes.cpu(), region_attention_mask.cpu(), strict=True)
        ):
            image = Image.fromarray(values.permute(1, 2, 0).to(torch.uint8).numpy())
            limit = np.tile(np.array(image.size, dtype=np.float32), 2)
            inside = np.clip(boxes[mask].numpy(), 0, limit)
            features[row, mask] = torch.from_numpy(pixel_features(image, inside).astype(np.float32))
        return SimpleNamespace(region_features=features)
