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
"""Registers every model file of this folder with transformers' Auto classes. Not saved with checkpoints."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedModel

_PREFIX = "modeling_"


def model_files() -> list[str]:
    """The names of the files `modeling_<model type>.py`, without suffix."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(file.name for file in found if file.name.startswith(_PREFIX))


def model_classes(model_type: str) -> dict[str, type[PreTrainedModel]]:
    """
    The classes of `modeling_<model_type>.py` that are saved with a checkpoint, by their keys in `config.auto_map`.

    Args:
        model_type (`str`): such as `"vl_bert"`.

    Raises:
        ModuleNotFoundError: if there is no such file.
    """
    return dict(_list_classes(import_module(f".{_PREFIX}{model_type}", __package__)))


def _list_classes(module: ModuleType) -> Iterator[tuple[str, type[PreTrainedModel]]]:
    for value in vars(module).values():
        own = isinstance(value, type) and issubclass(value, PreTrainedModel) and value.__module__ == module.__name__
        if own and "_auto_class" in vars(value):
            yield value._auto_class, value


def register_models() -> None:
    """Registers the classes of this folder with `AutoConfig` and the `AutoModel...` classes."""
    for file in model_files():
        for auto, cls in model_classes(file.removeprefix(_PREFIX)).items():
            config_class: Any = cls.config_class
            AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
            if auto != cls.__name__:
                getattr(transformers, auto).register(config_class, cls, exist_ok=True)


__all__ = ["model_classes", "model_files", "register_models"]
