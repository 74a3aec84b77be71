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
"""The names under which transformers finds the classes of a checkpoint, by the suffixes of the class names."""

from collections.abc import Mapping
from typing import Any

# Suffix of a class name -> the Auto class that finds the class. `AutoModel` is for the base model only.
AUTO_CLASSES = {
    "Config": "AutoConfig",
    "Model": "AutoModel",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "ForPreTraining": "AutoModelForPreTraining",
    "ForVisualQuestionAnswering": "AutoModelForVisualQuestionAnswering",
}


def make_auto_map(model_type: str, *names: str) -> dict[str, str]:
    """
    The `auto_map` of a configuration: the location of each class that is saved with a checkpoint.

    Args:
        model_type (`str`): the classes are in `configuration_{model_type}.py` and `modeling_{model_type}.py`.
        names (`str`): the names of the classes. The key of a class without an Auto class is its name.

    Returns:
        `dict[str, str]`: Auto class, or class name -> `"{file}.{class name}"`.
    """
    found = {}
    for name in names:
        auto = next((auto for end, auto in AUTO_CLASSES.items() if name.endswith(end)), name)
        file = "configuration" if auto == "AutoConfig" else "modeling"
        found[auto] = f"{file}_{model_type}.{name}"
    return found


def set_auto_classes(auto_map: Mapping[str, str], classes: Mapping[str, Any]) -> None:
    """
    Sets the Auto class of each class of a file, so that the code is saved with the weights.

    Args:
        auto_map (`Mapping[str, str]`): see `make_auto_map`.
        classes (`Mapping[str, Any]`): name -> class, such as `globals()` of the file.

    Raises:
        KeyError: if the file lacks a class of `auto_map`.
    """
    for auto, place in auto_map.items():
        classes[place.partition(".")[2]]._auto_class = auto


__all__ = ["AUTO_CLASSES", "make_auto_map", "set_auto_classes"]
