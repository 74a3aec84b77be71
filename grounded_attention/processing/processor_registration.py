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
"""Registers every processor file of this folder with `AutoProcessor`. This file does not travel with a checkpoint."""

import pkgutil
from importlib import import_module
from pathlib import Path

from transformers import AutoProcessor

from .processing_grounded import GroundedProcessor

_PREFIX = "processing_"


def register_processors() -> None:
    """Makes `AutoProcessor` find the classes of the files `processing_<name>.py`."""
    for file in sorted(file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if file.startswith(_PREFIX):
            module = import_module(f".{file}", __package__)
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, GroundedProcessor) and hasattr(value, "whole_image"):
                    # A checkpoint contains the name of its processor class, so the key is not used.
                    AutoProcessor.register(value.__name__, value, exist_ok=True)
                    # Makes `save_pretrained` store these files and their `auto_map` entry with the weights.
                    value.register_for_auto_class("AutoProcessor")


__all__ = ["register_processors"]
