# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reads original files and the file of --config, without executing code in them."""

import re
import warnings
import zipfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from grounded_attention.utils.bounded_files import MAX_CONFIG_BYTES, open_data, read_json
from grounded_attention.utils.named_types import Fields

from .fields import CheckpointError, OverrideError, name_some
from .keys import plain_key

# What torch names of a pickle that it refuses.
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_WEIGHTS_SUFFIX = ".safetensors"
# Names under which training code saves weights, among them those of Lightning and DeepSpeed.
WEIGHTS = ("state_dict", "model_state_dict", "model", "module")


@dataclass
class OriginalFile:
    """The content of an original file."""

    state_dict: dict[str, Tensor]
    others: list[str] = field(default_factory=list)


def read_checkpoint(path: Path) -> OriginalFile:
    """Reads a file written by `torch.save` without executing anything in it."""
    if path.is_dir():
        raise CheckpointError(f"{path}: {_describe_directory(path)}")
    open_data(path).close()  # refuses a pipe, which would be waited for
    if path.suffix == _WEIGHTS_SUFFIX:
        raise CheckpointError(f"{path}: {_describe_safetensors(path)}")
    try:
        with warnings.catch_warnings():  # torch warns about pickles that it then refuses
            warnings.simplefilter("ignore")
            # An archive that says it unpacks to more than it has would fill the memory.
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    size = sum(entry.file_size for entry in archive.infolist())
                if size > path.stat().st_size:
                    raise CheckpointError(
                        f"{path}: unpacks to {size:,} bytes, more than it has; torch.save compresses nothing."
                    )
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError, CheckpointError):
        raise
    except Exception as error:  # torch raises many types, for damaged and for unsafe files
        raise CheckpointError(f"{path}: {_explain_load_error(error)}") from error
    return _unpack(content, path)


def _unpack(content: Any, path: Path) -> OriginalFile:
    others: list[str] = []
    while isinstance(content, dict):
        held = []
        for name in WEIGHTS:
            if isinstance(content.get(name), dict) and content[name]:
                held.append(name)
        if len(held) > 1:
            raise CheckpointError(f"{path}: weights under {name_some(held)}; keep one of them in the file.")
        if not held:
            break
        others = sorted({*others, *(str(name) for name in content if name != held[0])})
        content = content[held[0]]
    if not isinstance(content, dict) or not content:
        raise CheckpointError(f"{path}: contains a {type(content).__name__} without weights, expected a state dict.")
    adapter = _describe_adapter(content)
    if adapter:
        raise CheckpointError(f"{path}: {adapter}")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise CheckpointError(f"{path}: entry {key!r} is a {type(value).__name__}, expected names with tensors.")
    return OriginalFile(content, others)


def _describe_directory(path: Path) -> str:
    """The reason why a directory cannot be converted."""
    try:
        model_type = read_json(path / "config.json", MAX_CONFIG_BYTES).get("model_type")
    except (OSError, ValueError, AttributeError):
        return "a directory, expected one file of the original code (.model, .th)."
    return (
        f"a model directory of the transformers format (model_type {model_type!r} in its config.json), not a file of "
        "an original code; it needs no conversion. Load it with from_pretrained."
    )


def _describe_adapter(keys: Iterable[Any]) -> str | None:
    """What to do with the weights of an adapter, or of a model inside of it; None for other weights."""
    if not any(str(key).startswith("base_model.model.") for key in keys):
        return None
    return (
        "its keys begin with base_model.model., so it is an adapter of PEFT, or a model saved with one; it needs no "
        "conversion. Load it with PeftModel.from_pretrained, then merge_and_unload() and save_pretrained(FOLDER)."
    )


def _describe_safetensors(path: Path) -> str:
    try:
        with safe_open(path, "pt") as file:
            origin = recognise(file.keys())
            adapter = _describe_adapter(file.keys())
    except (SafetensorError, OSError) as error:
        return f"not a safetensors file, or damaged ({error})."
    if adapter:
        return adapter
    what = f"this looks like {origin.named}; {origin.advice}" if origin else "its keys belong to no known family"
    return f"a safetensors file, expected the file of the original code (.model, .th): {what}."


def _explain_load_error(error: Exception) -> str:
    names = sorted({*_GLOBAL.findall(str(error))})
    if names:
        return (
            f"reading it would run code ({name_some(f'`{name}`' for name in names)}); no code was run. "
            "Expected only tensors and plain values. If you trust the file, save only its state dict with torch.save."
        )
    return "not a file of torch.save, or damaged. Expected the file of the original code (.model, .th)."


def read_overrides(path: Path | None) -> Fields:
    """Reads config fields from a JSON file; empty without a file. Raises an `OverrideError` for other content."""
    fields = {} if path is None else read_json(path, MAX_CONFIG_BYTES)
    if not isinstance(fields, dict):
        raise OverrideError(f"{path}: contains a {type(fields).__name__}, expected an object with config fields.")
    return fields


@dataclass(frozen=True)
class Signature:
    """The pattern of keys that identifies a family."""

    title: str
    mark: str
    advice: str

    @property
    def named(self) -> str:
        """The name with an article, such as `a VL-BERT checkpoint`."""
        article = "an" if self.title.startswith("LX") else "a"
        name, _, origin = self.title.partition(" of ")
        return f"{article} {name} checkpoint" + (f" of {origin}" if origin else "")


VOLTA = "VOLTA"

# The first match applies, so special families come before BERT, which all of them contain.
SIGNATURES = (
    # Its embeddings have the names of the models that it compares.
    Signature(
        VOLTA,
        r"(^|\.)encoder\.layer\.\d+\.attention_self\.",
        "use `convert vilbert`, `lxmert` or `visualbert` with its JSON file as --config",
    ),
    Signature("VL-BERT", r"^vlbert\.", "use `convert vl_bert`"),
    Signature("VL-BERT of this library", r"^vl_bert\.", "it is converted already: load its directory"),
    Signature(
        "VisualBERT",
        r"bert\.embeddings\.(token_type_embeddings_visual|position_embeddings_visual|projection)\.",
        "use `convert visualbert`",
    ),
    Signature(
        "VisualBERT of transformers",
        r"(^|\.)embeddings\.visual_(token_type_embeddings|position_embeddings|projection)\.",
        "it needs no conversion: load its directory with a VisualBERT class of this library",
    ),
    Signature("LXMERT", r"bert\.encoder\.x_layers\.", "use `convert lxmert`"),
    Signature(
        "LXMERT of transformers",
        r"(^|lxmert\.)encoder\.x_layers\.",
        "it needs no conversion: load its directory with an LXMERT class of this library",
    ),
    Signature("ViLBERT of this library", r"^vilbert\.", "it is converted already: load its directory"),
    Signature("ViLBERT", r"(^|\.)encoder\.c_layer\.", "use `convert vilbert`"),
    Signature("UNITER", r"(^|\.)img_embeddings\.(img_linear|pos_linear)\.", "it can't be converted yet"),
    Signature("ResNet", r"^(layer[1-4]\.\d+|image_feature_extractor\.backbone\.layer\d)\.", "use `convert fast_rcnn`"),
    Signature(
        "pixel network of this library", r"^embedder\.embedder\.", "it is converted already: load its directory"
    ),
    Signature("BERT", r"(^|\.)encoder\.layer\.\d+\.", "start a model from it with from_bert"),
)


def recognise(keys: Iterable[str]) -> Signature | None:
    """The signature of the keys of a state dict, with or without wrappers; `None` for an unknown family."""
    bare = [plain_key(key) for key in keys]
    return next((sign for sign in SIGNATURES if any(re.search(sign.mark, key) for key in bare)), None)


def check_family(keys: Collection[str], title: str, accepted: Collection[str], expected: str) -> None:
    """Checks that keys belong to a family."""
    origin = recognise(keys)
    if origin is None:
        first = {key.partition(".")[0] for key in keys}
        inner = None
        if len(first) == 1:
            inner = recognise([key.partition(".")[2] for key in keys])
        if inner is not None:
            raise CheckpointError(
                f"all names begin with {min(first)!r}, which no known code adds; without it this looks like "
                f"{inner.named}: remove it from the names of the weights."
            )
        raise CheckpointError(
            f"not a {title} checkpoint, and not of another known family: it has {len(keys)} keys, such as "
            f"{min(keys, default='none')}. Expected {expected}."
        )
    if origin.title not in accepted:
        raise CheckpointError(f"this looks like {origin.named}, not {title}: {origin.advice}.")
