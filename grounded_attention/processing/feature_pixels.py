# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pixels for a region-feature model: complete images, never cropped, so that boxes keep their position."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoConfig
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from ..utils.open_images import open_images
from ..utils.plain_text import first_sentences
from .image_processing_fast_rcnn import FastRCNNImageProcessor, pad_pixels

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

    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers in a form that JSON can store."""
        return {**self.__dict__, "image_processor_type": type(self).__name__}


def load_feature_processor(name_or_path: str) -> FastRCNNImageProcessor | BackbonePixels:
    """Loads the image processor of a region-feature model, by name or folder."""
    try:
        model_type = AutoConfig.from_pretrained(name_or_path).model_type
    except (OSError, ValueError) as error:
        raise ValueError(f"Feature model {name_or_path!r} cannot be used: {first_sentences(error)}") from error
    try:
        if model_type == "fast_rcnn":
            return FastRCNNImageProcessor.from_pretrained(name_or_path)
        return BackbonePixels.from_image_processor(AutoImageProcessor.from_pretrained(name_or_path))
    except (OSError, ValueError, ImportError) as error:
        if model_type == "fast_rcnn":  # converted checkpoints may lack it; the defaults fit all of them
            return FastRCNNImageProcessor()
        raise ValueError(f"Feature model {name_or_path!r} has no image processor: {first_sentences(error)}") from error
