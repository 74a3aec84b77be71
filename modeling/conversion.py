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
"""What the converters of all families share: reading an original file safely, the account of its keys, writing."""

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

# Fields of a configuration that it keeps under another name, id2label.
_PROPERTIES = ("answers", "num_labels")

# The head size of every public configuration.
_HEAD_SIZE = 64


class CheckpointError(ValueError):
    """A file that cannot be converted; the message names the file or key, what was found and what was expected."""


@dataclass
class Conversion:
    """
    Renamed weights and the account of every key.

    Args:
        class_name (`str`): the class of ours that the checkpoint belongs to.
        weights (`dict[str, torch.Tensor]`): float32 tensors under our names.
        converted (`dict[str, str]`): original key -> our name.
        left_out (`dict[str, str]`): original key -> reason.
        initialised (`list[str]`): our names that the checkpoint does not hold.
    """

    class_name: str
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    converted: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    initialised: list[str] = field(default_factory=list)


def read_checkpoint(path: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """
    Reads a file written by `torch.save` without executing anything in it.

    Args:
        path (`Path`): a state dict, or a dictionary with one under "state_dict".

    Returns:
        `tuple[dict[str, torch.Tensor], list[str]]`: the state dict, and the names of the file's other entries.

    Raises:
        FileNotFoundError: when there is no such file.
        CheckpointError: when it is no such file or holds code.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file. Give the file of the original code (.model, .th).")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types here, for damaged files as for unsafe ones
        raise CheckpointError(f"{path}: {_explain_load_error(error)}") from error
    others: list[str] = []
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        others = sorted(str(name) for name in content if name != "state_dict")
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise CheckpointError(f"{path}: holds a {type(content).__name__} without weights, expected a state dict.")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, torch.Tensor):
            raise CheckpointError(f"{path}: entry {key!r} is a {type(value).__name__}, expected names with tensors.")
    return content, others


def _explain_load_error(error: Exception) -> str:
    text = str(error)
    # torch's words for a pickle that names a class or function outside its allow-list.
    if "Unsupported global" in text or "Unsupported class" in text or "Trying to call reduce" in text:
        return (
            "holds pickled objects other than tensors, which would run code and are not loaded. Save its state dict "
            "alone where you trust it."
        )
    return "not a file that torch.save wrote, or damaged. Expected the file of the original code (.model, .th)."


def read_overrides(path: Path | None) -> dict[str, Any]:
    """Configuration fields of a JSON file; none without a file. Raises `CheckpointError` for anything else."""
    if path is None:
        return {}
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}). Expected an object of configuration fields.") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path}: holds a {type(fields).__name__}, expected an object of configuration fields.")
    return fields


def check_output(output: Path, force: bool) -> None:
    """Raises `CheckpointError` when writing to `output` would lose files."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / "config.json").is_file():
        raise CheckpointError(
            f"{output}: exists and is no model directory; it is left alone. Choose another --output."
        )
    if not force:
        raise CheckpointError(f"{output}: exists. Choose another --output, or replace it with --force.")


def write_model(model: PreTrainedModel, record: dict[str, Any], output: Path) -> None:
    """Writes a Hub directory with `record` as conversion.json; all of it appears at once or nothing does."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
        fresh = Path(scratch) / "new"
        model.save_pretrained(fresh)
        (fresh / "conversion.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if output.exists():
            os.replace(output, Path(scratch) / "old")
        os.replace(fresh, output)


def make_record(conversion: Conversion, checkpoint: Path, others: list[str]) -> dict[str, Any]:
    """The account of a conversion, for conversion.json."""
    with checkpoint.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    reasons: dict[str, list[str]] = {}
    for key, reason in conversion.left_out.items():
        reasons.setdefault(reason, []).append(key)
    return {
        "checkpoint": checkpoint.name,
        "sha256": digest,
        "class": conversion.class_name,
        "converted": conversion.converted,
        "left_out": reasons,
        "left_out_entries": others,
        "initialised": conversion.initialised,
    }


def format_summary(conversion: Conversion, others: list[str], output: Path) -> str:
    """A table of what became of every tensor."""
    rows = [
        ("class", conversion.class_name),
        ("converted", f"{len(conversion.converted)} tensors"),
    ]
    for reason, count in Counter(conversion.left_out.values()).most_common():
        rows.append(("left out", f"{count} tensors: {reason}"))
    if others:
        rows.append(("left out", f"entries of the file that are no weights: {', '.join(others)}"))
    for name in conversion.initialised:
        rows.append(("initialised", f"{name}: not in the checkpoint, initialised (seed 0)"))
    rows.append(("written", f"{output} (every key: conversion.json)"))
    return "\n".join(f"{label:<12} {text}" for label, text in rows)


def check_config_fields(fields: Mapping[str, Any], config_class: type[PreTrainedConfig]) -> None:
    """Refuses (`CheckpointError`) what is no field of the configuration."""
    unknown = sorted(set(fields) - {*config_class().to_dict(), *config_class.attribute_map, *_PROPERTIES})
    if unknown:
        raise CheckpointError(f"unknown configuration field {unknown[0]}; expected fields of {config_class.__name__}.")


def infer_attention_heads(hidden_size: int) -> int:
    """The heads of a public configuration of this width; `CheckpointError` where there is none."""
    if hidden_size % _HEAD_SIZE != 0:
        raise CheckpointError(
            f"the hidden size, {hidden_size}, is no multiple of {_HEAD_SIZE}, the head size of the public "
            "configurations; give num_attention_heads in the file of --config."
        )
    return hidden_size // _HEAD_SIZE


def find_shape(weights: Mapping[str, torch.Tensor], name: str) -> torch.Size:
    """The shape of the tensor under our name; `CheckpointError` where the checkpoint lacks it."""
    if name not in weights:
        raise CheckpointError(f"the checkpoint has no tensor for {name}, without which its size is unknown.")
    return weights[name].shape


def fit_to_model(conversion: Conversion, model: PreTrainedModel, prefix: str, parts: Mapping[str, str]) -> None:
    """
    Checks shapes, moves tensors the class has no place for to what is left out, names what the file lacks.

    Args:
        conversion ([`Conversion`]): the renamed weights; changed in place.
        model (`PreTrainedModel`): the model they are for.
        prefix (`str`): what our names have in front of the model's own.
        parts (`Mapping[str, str]`): what must be complete: its name -> the prefix of its tensors.

    Raises:
        CheckpointError: a tensor of another shape, or one of `parts` without all of its tensors.
    """
    places = {prefix + name: value.shape for name, value in model.state_dict().items()}
    for key, name in list(conversion.converted.items()):
        if name not in places:
            conversion.left_out[key] = f"no tensor of {type(model).__name__} in this configuration"
            del conversion.converted[key], conversion.weights[name]
        elif conversion.weights[name].shape != places[name]:
            raise CheckpointError(
                f"{key} has the shape {tuple(conversion.weights[name].shape)}, but the configuration expects "
                f"{tuple(places[name])}; the file is damaged, of another kind, or --config contradicts it."
            )
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    conversion.initialised = sorted(set(places) - set(conversion.weights) - tied)
    for part, begin in parts.items():
        lost = [name for name in conversion.initialised if name.startswith(begin)]
        if lost:
            raise CheckpointError(
                f"the checkpoint has no tensor for {lost[0]} ({len(lost)} of the {part} are missing); it is damaged "
                "or incomplete."
            )
