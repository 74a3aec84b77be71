# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Folders with an adapter of PEFT instead of a model."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, logging
from transformers.utils.peft_utils import find_adapter_config_file

from grounded_attention.families import FAMILIES, find_family
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.safe_paths import check_weight_index

INSTALL = "pip install 'grounded-attention[vlm]'"
# The usual patterns of adapters have at most some five repeats, and repeat no group.
LONGEST_PATTERN = 5000
REPEATS = 6
_REPEATS = re.compile(r"(?<!\\)[*+]|\{\d+,\d*\}")
_REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{\d)")


def is_local(name: str) -> bool:
    """Whether the name of a model is a folder, perhaps one of another machine, and none that the Hub can have."""
    return Path(name).exists() or name.count("/") > 1 or name.startswith((".", "/", "~")) or "\\" in name


def base_of(source: str, on_hub: bool = False, revision: str | None = None) -> str:
    """The model that weights belong to: the base model of a folder with an adapter, else `source` itself."""
    check_weight_index(source)
    path = Path(source, ADAPTER_CONFIG_NAME)
    if not path.is_file():
        remote = None
        if on_hub and not Path(source).is_dir():
            remote = find_adapter_config_file(source, revision=revision)
        if remote is None:
            return source
        path = Path(remote)
    content = read_json(path)
    base = content.get("base_model_name_or_path") if isinstance(content, dict) else content
    if not isinstance(base, str) or not isinstance(content, dict):
        raise ValueError(f"{path}: base_model_name_or_path is {base!r:.200}, expected the name of the adapter's model")
    check_weight_index(base)
    # PEFT matches the names of all modules with these regular expressions; a hostile one would never end.
    patterns = [value for value in content.values() if isinstance(value, str)]
    for key in ("rank_pattern", "alpha_pattern"):
        patterns += content.get(key) or ()
    for pattern in patterns:
        if (
            len(pattern) > LONGEST_PATTERN
            or _REPEATED_GROUP.search(pattern)
            or len(_REPEATS.findall(pattern)) > REPEATS
        ):
            raise ValueError(
                f"{path}: the pattern {pattern!r:.100} may take forever; expected names of modules, or a regular "
                f"expression without repeated groups, with at most {REPEATS} repeats"
            )
    return base


def read_model_config(source: str, **options: Any) -> Any:
    """The configuration of a checkpoint, of an adapter its own or its base's; `options`: of `AutoConfig`."""
    own = Path(source, CONFIG_NAME).is_file()
    return AutoConfig.from_pretrained(source if own else base_of(source), **options)


def is_adapter(source: str) -> bool:
    """Whether a folder, or a repository on the Hub, contains an adapter."""
    return base_of(source, on_hub=True) != source


def import_peft() -> Any:
    """Imports PEFT."""
    try:
        import peft
    except ImportError as error:
        raise ValueError(f"an adapter needs PEFT: {INSTALL}") from error
    return peft


def load_merged(source: str) -> PreTrainedModel:
    """Loads an adapter of one of the project's families as an ordinary model that contains it."""
    config = AutoConfig.from_pretrained(source)
    family = find_family(config.model_type)
    if family is None:
        raise ValueError(f"{source}: an adapter of the model type {config.model_type}, expected {', '.join(FAMILIES)}")
    head = FAMILIES[family].head_of((config.architectures or [""])[0])
    if head is None:
        model_class = FAMILIES[family].base_model
    else:
        model_class = FAMILIES[family].heads[head]
    with quiet_loading():
        base = model_class.from_pretrained(base_of(source, on_hub=True), config=config, ignore_mismatched_sizes=True)
    return import_peft().PeftModel.from_pretrained(base, source).merge_and_unload()


def load_base_model(source: str, auto: Any = AutoModel) -> PreTrainedModel:
    """The model of a checkpoint without its heads, or as another Auto class makes it; that of a folder with an adapter
    contains the adapter. A checkpoint that lacks weights is refused: transformers would draw them.
    """
    if is_adapter(source):
        model: Any = load_merged(source)
    else:
        model, report = auto.from_pretrained(source, output_loading_info=True)
        missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
        if missing:
            raise ValueError(f"{len(missing)} weights are missing, such as {missing[0]}; copy or train it again")
    if auto is AutoModel:
        return model.base_model
    return model


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silences transformers' loading reports."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
