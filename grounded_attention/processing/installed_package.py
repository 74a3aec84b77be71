# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the code of a checkpoint has in the place of parts that are left to the installed package."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from PIL import Image, ImageOps

from ..utils.named_types import Columns


def find_installed(package: str, name: str) -> Any:
    """Finds a name of the package grounded-attention; `ImportError` in one line if it is not installed."""
    try:
        return getattr(import_module(f"grounded_attention.{package}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} is not saved with this checkpoint: install the package grounded-attention"
        ) from error


def load_region_features(name: str, **kwargs: Any) -> Any:
    """Loads a region-feature model by its name, with the installed package."""
    return find_installed("modeling", "load_region_features")(name, **kwargs)


def load_extractor(*args: Any, **kwargs: Any) -> Any:
    """Makes a region extractor, with the installed package."""
    return find_installed("processing.load_extractor", "load_extractor")(*args, **kwargs)


def read_images(inputs: Columns, image_processor: Any, detector: Any) -> Any:
    """Opens the images of a batch for a detector, with the installed package; a batch of features has none."""
    if inputs["images"] is None and detector is None:
        return dict(inputs), None
    return find_installed("processing.image_regions", "read_images")(inputs, image_processor, detector)


def pixel_arrays(*args: Any) -> Any:
    """Converts pictures to pixels, with the installed package."""
    return find_installed("processing.image_regions", "pixel_arrays")(*args)


def FastRCNNFeatures(config: Any) -> Any:
    """Makes the pixel network of a configuration, with the installed package."""
    return find_installed("modeling", "FastRCNNFeatures")(config)


def open_image(image: Any, name: str = "image") -> Image.Image:
    """Opens an image with the installed package, else with PIL alone; a model of region features reads no pixels."""
    if find_spec("grounded_attention"):
        return find_installed("processing", "open_image")(image, name)
    if isinstance(image, Image.Image):
        picture = image
    else:
        picture = Image.open(image, formats=("JPEG", "PNG", "WEBP"))
    return ImageOps.exif_transpose(picture).convert("RGB")


class BertStart:
    """Starts a model from a BERT checkpoint, with the installed package."""

    @classmethod
    def from_bert(cls, pretrained_model_name_or_path: str, **config_overrides: Any) -> Any:
        """Initialises the class of the same name of the installed package."""
        model = find_installed("modeling", cls.__name__)
        return model.from_bert(pretrained_model_name_or_path, **config_overrides)


class FastRCNNImageProcessor:
    """Stands for the image processor of the installed package."""

    @classmethod
    def from_dict(cls, settings: Columns) -> Any:
        """Makes an image processor from its settings."""
        return find_installed("processing", "FastRCNNImageProcessor").from_dict(settings)
