# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The scenes' regions for any picture of coloured shapes: boxes from its pixels, and the features of training.

`ShapeDetector` replaces a detector, `SceneFeatures` a feature model:

    own = {"detector": ShapeDetector(), "feature_model": SceneFeatures()}
    pipeline("visual-grounding", model="runs/scenes_vgp/direct", **own)

Pictures are first scaled to the size of drawn scenes, because the features depend on the number of pixels in a box.
"""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from grounded_attention.utils.components import label_components
from grounded_attention.utils.named_types import Fields, Size

from . import SOURCE
from .features import FEATURE_SIZE, pixel_features
from .shapes import PAINTS


class ShapeDetector:
    """A `BoxSource` that finds coloured shapes on a ground of one colour; its labels are the colours."""

    selected = True
    label_names = list(PAINTS)
    provenance = {"name": SOURCE, "label_names": label_names}

    def detect(self, images: Sequence[Image.Image], image_ids: Sequence[str] | None = None) -> list[Any]:
        """Finds the shapes of images."""
        return [_find_shapes(image) for image in images]


class ScenePixels:
    """The image processor of `SceneFeatures`: pictures at the size of drawn scenes, with unchanged pixel values."""

    def __call__(self, images: Sequence[Image.Image], return_tensors: str = "pt") -> dict[str, Tensor]:
        """Converts images to tensors."""
        pixels = [np.asarray(_as_scene(image)) for image in images]
        sizes = torch.tensor([array.shape[1::-1] for array in pixels])
        values = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float()
        return {"pixel_values": values, "image_sizes": sizes}

    def to_dict(self) -> Fields:
        """Returns its settings; there are none."""
        return {"image_processor_type": type(self).__name__}


def _as_scene(image: Image.Image) -> Image.Image:
    return image.resize(scene_size(*image.size), Image.Resampling.BICUBIC)


class _Config(SimpleNamespace):
    def to_dict(self) -> Fields:
        return dict(self.__dict__)


class SceneFeatures(nn.Module):
    """`pixel_features` as a region-feature model; its features are those of the scenes generator's region tables."""

    name = SOURCE
    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self) -> None:
        super().__init__()
        self.config = _Config(model_type=SOURCE, feature_size=FEATURE_SIZE)
        self.image_processor = ScenePixels()

    def forward(self, pixel_values: Tensor, region_boxes: Tensor, region_attention_mask: Tensor) -> SimpleNamespace:
        """Computes the features of regions."""
        features = torch.zeros(*region_boxes.shape[:2], FEATURE_SIZE)
        rows = zip(pixel_values.cpu(), region_boxes.cpu(), region_attention_mask.cpu(), strict=True)
        for row, (values, boxes, mask) in enumerate(rows):
            image = Image.fromarray(values.permute(1, 2, 0).to(torch.uint8).numpy())
            limit = np.tile(np.array(image.size, dtype=np.float32), 2)
            inside = np.clip(boxes[mask].numpy(), 0, limit)
            features[row, mask] = torch.from_numpy(pixel_features(image, inside).astype(np.float32))
        return SimpleNamespace(region_features=features)


# Longest sides of drawn scenes, in pixels; features depend on how many pixels a box has.
SHORTEST_SIDE = 184
LONGEST_SIDE = 216
# Smallest distance of an object's pixel from the ground; black and white have distance 441.
CONTRAST = 34.0
MIN_PIXELS = 60  # smallest number of pixels of an object
MIN_PATCH_SHARE = 0.2  # smallest share of a connected part for a patch of one colour to be an object
FIT_STEPS = 4


def scene_size(width: int, height: int) -> Size:
    """Returns the size of a picture among the scenes: unchanged, or scaled to a longest side as theirs."""
    longest = max(width, height)
    target = min(max(longest, SHORTEST_SIDE), LONGEST_SIDE)
    if target == longest:
        return width, height
    target = (SHORTEST_SIDE + LONGEST_SIDE) // 2
    return max(8, round(width * target / longest)), max(8, round(height * target / longest))


def _find_shapes(image: Image.Image) -> SimpleNamespace:
    """Returns the objects of a picture, from left to right: boxes (n, 4) float32 in pixels, scores (n,) float32, and
    classes (n,) int64, the colours.
    """
    small = _as_scene(image)
    pixels = np.asarray(small.convert("RGB"), dtype=np.float64)
    # (H, W) int: the paint with the nearest hue and saturation, for any lightness of the pixel.
    colours = np.array(list(PAINTS.values()), dtype=np.float64)
    paints = np.linalg.norm(_chroma(pixels)[:, :, None] - _chroma(colours), axis=-1).argmin(axis=-1)
    scale = np.tile(np.array(image.size) / np.array(small.size), 2)
    shapes = []
    for part in _objects(_foreground(pixels), paints):
        rows, columns = np.nonzero(part)
        corners = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) * scale
        shapes.append((corners, int(np.bincount(paints[part]).argmax())))
    shapes.sort(key=lambda one: one[0][0])
    boxes = np.array([corners for corners, _ in shapes], dtype=np.float32).reshape(-1, 4)
    classes = torch.tensor([colour for _, colour in shapes], dtype=torch.long)
    return SimpleNamespace(
        boxes=torch.from_numpy(boxes), scores=torch.ones(len(shapes)), classes=classes, class_probs=None
    )


def _foreground(pixels: np.ndarray) -> np.ndarray:
    """Returns (H, W) bool: the pixels that differ from a smooth surface, which is fitted to the other pixels."""
    height, width = pixels.shape[:2]
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    powers = []
    for i in range(4):
        for j in range(4 - i):
            powers.append((i, j))
    terms = np.stack([x**i * y**j for i, j in powers], axis=-1).reshape(height * width, -1)
    flat = pixels.reshape(-1, 3)
    distance = np.linalg.norm(flat - np.median(flat, axis=0), axis=1)
    for _ in range(FIT_STEPS):
        ground = distance < max(CONTRAST, float(np.quantile(distance, 0.4)))
        surface, *_ = np.linalg.lstsq(terms[ground], flat[ground], rcond=None)
        distance = np.linalg.norm(flat - terms @ surface, axis=1)
    return (distance > CONTRAST).reshape(height, width)


def _chroma(colours: np.ndarray) -> np.ndarray:
    """Removes the lightness of colours (..., 3)."""
    return (colours - colours.mean(axis=-1, keepdims=True)) / (colours.max(axis=-1, keepdims=True) + 20)


def _objects(foreground: np.ndarray, paints: np.ndarray) -> Iterator[np.ndarray]:
    """Yields a mask (H, W) bool for each object: a connected part, or each large patch of a multicoloured part."""
    for part in _components(foreground):
        size = max(MIN_PIXELS, MIN_PATCH_SHARE * part.sum())
        patches = []
        for paint in np.unique(paints[part]):
            for patch in _components(part & (paints == paint)):
                if patch.sum() >= size:
                    patches.append(patch)
        yield from patches if len(patches) > 1 else [part]


def _components(mask: np.ndarray) -> list[np.ndarray]:
    """Returns the connected parts of a mask (H, W) that are large enough, each as a mask."""
    names = label_components(torch.from_numpy(mask)[None])[0].numpy()
    found, sizes = np.unique(names[mask], return_counts=True)
    return [names == name for name in found[sizes >= MIN_PIXELS]]
