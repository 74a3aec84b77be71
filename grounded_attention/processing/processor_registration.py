# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""
Registers every processor file of this folder with `AutoProcessor`, and bundles the code that is saved with a
checkpoint. Not saved with checkpoints.
"""

from .oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip # noqa: F401

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from transformers import AutoProcessor
from transformers.models.auto.image_processing_auto import (
    AutoImageProcessor,  # the top-level import requires torchvision in transformers 5.4
)

from grounded_attention.utils.bundle import Part, bundle, save_code

from .image_processing_fast_rcnn import FastRCNNImageProcessor
from .processing_grounded import GroundedProcessor

_PREFIX = "processing_"
_IMAGES = Part("image_processing_fast_rcnn", {"FastRCNNImageProcessor": "AutoImageProcessor"})


@cache
def processor_code(place: str, pixels: bool) -> dict[str, str]:
    """The files that are saved with a processor."""
    file, _, name = place.partition(".")
    part = Part(file, {name: "AutoProcessor"})
    absent = () if pixels else ("image_processing_fast_rcnn", "image_regions", "load_extractor", "open_images")
    return bundle([_IMAGES, part] if pixels else [part], absent)


@cache
def register_processors() -> None:
    """Makes `AutoProcessor` find the classes of the files `processing_<name>.py`, and their image processor."""
    # One class with PIL serves both backends, so that transformers does not search for a torchvision class.
    AutoImageProcessor.register("fast_rcnn", image_processor_classes={"pil": FastRCNNImageProcessor}, exist_ok=True)
    save_code(FastRCNNImageProcessor, lambda images: (bundle([_IMAGES]), images.auto_map))
    save_code(GroundedProcessor, _code_of)
    for file in sorted(file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if file.startswith(_PREFIX):
            module = import_module(f".{file}", __package__)
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, GroundedProcessor) and hasattr(value, "whole_image"):
                    # A checkpoint contains the name of its processor class, so the key is not used.
                    AutoProcessor.register(value.__name__, value, exist_ok=True)


def _code_of(processor: Any) -> tuple[dict[str, str], dict[str, str]]:
    """The files of its class, or of the class of this folder that it extends, and its `auto_map`."""
    kind = next(kind for kind in type(processor).__mro__ if kind.__module__.startswith(f"{__package__}."))
    place = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
    return processor_code(place, processor.image_processor is not None), {"AutoProcessor": place}
