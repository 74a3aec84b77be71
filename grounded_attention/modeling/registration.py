# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""
Registers every model file of this folder with transformers' Auto classes, and bundles the code that is saved with a
checkpoint. Not saved with checkpoints.
"""

import inspect
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from grounded_attention.utils.bundle import Part, bundle, save_code

from .task_arguments import FAMILY_INPUTS
from .task_config import CUSTOM_PIPELINES, PipelineEntry
from .task_forward import Task

_PREFIX = "modeling_"


def model_files() -> list[str]:
    """The names of the files `modeling_<name>.py`, without suffix."""
    files = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(file.name for file in files if file.name.startswith(_PREFIX))


def find_config(name: str) -> Any:
    """The configuration class of `configuration_<name>.py`."""
    module = import_module(f".configuration_{name}", __package__)
    kinds = [value for value in vars(module).values() if isinstance(value, type)]
    return next(kind for kind in kinds if kind.__module__ == module.__name__ and issubclass(kind, PreTrainedConfig))


def model_classes(name: str) -> dict[str, type[PreTrainedModel]]:
    """The classes of `modeling_<name>.py` that are saved with a checkpoint, by their keys in `config.auto_map`."""
    module = import_module(f".{_PREFIX}{name}", __package__)
    places = find_config(name).code_places.items()
    return {auto: getattr(module, place.partition(".")[2]) for auto, place in places if place.startswith(_PREFIX)}


@cache
def model_code(name: str, pixels: bool) -> dict[str, str]:
    """The files that are saved beside a configuration."""
    config = find_config(name)
    files: dict[str, dict[str, str]] = {}
    for auto, place in config.code_places.items():
        file, _, kind = place.partition(".")
        files.setdefault(file, {})[kind] = auto
    parts = [Part(file, kinds) for file, kinds in files.items()]
    if not issubclass(config, PipelineEntry):
        return bundle(parts, together=True)
    pipeline = CUSTOM_PIPELINES["visual-grounding"]["impl"]
    parts.append(Part(pipeline.partition(".")[0], {pipeline.partition(".")[2]: ""}))
    absent = ("region_feature_models", "bert_start", *(() if pixels else ("modeling_fast_rcnn",)))
    return bundle(parts, absent, together=True)


def register_models() -> None:
    """Registers the classes of this folder with `AutoConfig` and the `AutoModel...` classes."""
    for name in (file.removeprefix(_PREFIX) for file in model_files()):
        config_class: Any = find_config(name)
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        for auto, cls in model_classes(name).items():
            _list_inputs(cls)
            if auto != cls.__name__:
                getattr(transformers, auto).register(config_class, cls, exist_ok=True)
        save_code(config_class, _code_of)


def _list_inputs(cls: Any) -> None:
    """Adds the inputs of families to the signature of a head, by which a Trainer decides what columns to drop."""
    signature = inspect.signature(cls.forward)
    *own, rest = signature.parameters.values()
    if rest.kind is rest.VAR_KEYWORD and issubclass(cls, Task):
        more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in FAMILY_INPUTS]
        more = [each for each in more if each.name not in signature.parameters]
        cls.forward.__signature__ = signature.replace(parameters=[*own, *more, rest])


def _code_of(config: Any) -> tuple[dict[str, str], dict[str, str]]:
    name = config.code_places["AutoConfig"].partition(".")[0].removeprefix("configuration_")
    return model_code(name, getattr(config, "vision_config", None) is not None), config.code_places
