# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Folders with an adapter of PEFT instead of a model."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.utils import ADAPTER_CONFIG_NAME
from transformers.utils.peft_utils import find_adapter_config_file

from grounded_attention.utils.bounded_files import read_json


def base_of(source: str, on_hub: bool = False, revision: str | None = None) -> str:
    """
    The model that a checkpoint's weights belong to: the base model of a folder with an adapter, else `source` itself.

    Args:
        source (`str`): directory or Hub id.
        on_hub (`bool`, *optional*, defaults to `False`): whether to look into a repository on the Hub, too.
        revision (`str`, *optional*): branch, tag or commit there.

    Raises:
        ValueError: if the adapter does not name its base model.
    """
    path = Path(source, ADAPTER_CONFIG_NAME)
    if not path.is_file():
        remote = find_adapter_config_file(source, revision=revision) if on_hub and not Path(source).is_dir() else None
        if remote is None:
            return source
        path = Path(remote)
    found = read_json(path).get("base_model_name_or_path")
    if not isinstance(found, str):
        raise ValueError(f"{path}: base_model_name_or_path is {found!r}, expected the name of the adapter's model")
    return found


def read_model_config(source: str, **options: Any) -> Any:
    """The configuration of a checkpoint, or of the model of an adapter; `options` are those of `AutoConfig`."""
    return AutoConfig.from_pretrained(base_of(source), **options)
