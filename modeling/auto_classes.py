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
"""Under which names a checkpoint's classes are found: by the ends of the classes' names."""

from collections.abc import Mapping
from typing import Any

# End of a class's name -> the Auto class that finds it. The base model alone is `AutoModel`.
AUTO_CLASSES = {
    "Config": "AutoConfig",
    "Model": "AutoModel",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "ForPreTraining": "AutoModelForPreTraining",
    "ForVisualQuestionAnswering": "AutoModelForVisualQuestionAnswering",
}


def make_auto_map(model_type: str, *names: str) -> dict[str, str]:
    """
    The `auto_map` of a configuration: where transformers finds each class that travels with a checkpoint.

    Args:
        model_type (`str`): the classes are in `configuration_{model_type}.py` and `modeling_{model_type}.py`.
        names (`str`): the names of the classes. A class for which there is no Auto class goes by its own name.
    """
    found = {}
    for name in names:
        auto = next((auto for end, auto in AUTO_CLASSES.items() if name.endswith(end)), name)
        file = "configuration" if auto == "AutoConfig" else "modeling"
        found[auto] = f"{file}_{model_type}.{name}"
    return found


def set_auto_classes(auto_map: Mapping[str, str], classes: Mapping[str, Any]) -> None:
    """
    Tells each class of a file what it goes by, so that its code is saved with its weights.

    Args:
        auto_map (`Mapping[str, str]`): see `make_auto_map`.
        classes (`Mapping[str, Any]`): name -> class, such as `globals()` of the file.

    Raises:
        KeyError: the file has no class of a name in `auto_map`.
    """
    for auto, place in auto_map.items():
        classes[place.partition(".")[2]]._auto_class = auto


__all__ = ["AUTO_CLASSES", "make_auto_map", "set_auto_classes"]
