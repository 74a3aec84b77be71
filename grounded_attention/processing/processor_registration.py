# Copyright 2026 The grounded-attention authors. All rights reserved.
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
"""
Registers every processor file of this folder with `AutoProcessor`, and bundles the code that is saved with a
checkpoint. Not saved with checkpoints.
"""

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from transformers import AutoProcessor

from grounded_attention.utils.bundle import Part, bundle, save_code

from .image_processing_fast_rcnn import FastRCNNImageProcessor
from .processing_grounded import GroundedProcessor

_PREFIX = "processing_"
_IMAGES = Part("image_processing_fast_rcnn", {"FastRCNNImageProcessor": "AutoImageProcessor"})


@cache
def processor_code(place: str, pixels: bool) -> dict[str, str]:
    """
    The files that are saved with a processor.

    Args:
        place (`str`): `"file.Name"` of its class.
        pixels (`bool`): whether it has an image processor.

    Returns:
        `dict[str, str]`: file name -> text.
    """
    file, _, name = place.partition(".")
    part = Part(file, {name: "AutoProcessor"})
    absent = () if pixels else ("image_processing_fast_rcnn", "load_extractor")
    return bundle([_IMAGES, part] if pixels else [part], absent)


def register_processors() -> None:
    """Makes `AutoProcessor` find the classes of the files `processing_<name>.py`."""
    save_code(FastRCNNImageProcessor, lambda images: bundle([_IMAGES]))
    save_code(GroundedProcessor, _code_of)
    for file in sorted(file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if file.startswith(_PREFIX):
            module = import_module(f".{file}", __package__)
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, GroundedProcessor) and hasattr(value, "whole_image"):
                    # A checkpoint contains the name of its processor class, so the key is not used.
                    AutoProcessor.register(value.__name__, value, exist_ok=True)


def _code_of(processor: Any) -> dict[str, str]:
    return processor_code(processor.auto_map["AutoProcessor"], processor.image_processor is not None)


__all__ = ["processor_code", "register_processors"]
