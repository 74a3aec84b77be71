# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes a converted model: the directory, its conversion.json, and the printed summary."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from safetensors import SafetensorError
from transformers import PreTrainedModel

from grounded_attention.utils.named_types import Columns, Fields, Row
from grounded_attention.utils.whole_files import make_folder

from .fields import CheckpointError, name_some
from .keys import Conversion

# The names of the files of a converted model; the last are the code of its classes.
WRITTEN: tuple[str, ...] = ("config.json", "conversion.json", "generation_config.json", "model*.safetensors*")
WRITTEN += ("configuration_*.py", "modeling_*.py", "pipeline_visual_grounding.py", "image_processing_*.py")


def check_output(output: Path, force: bool, inputs: tuple[Path, ...] = ()) -> None:
    """Checks that writing to `output` deletes no other files."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not all((output / name).is_file() for name in ("config.json", "conversion.json")):
        raise CheckpointError(
            f"{output}: exists and is not a model directory of this command, so it is not replaced. "
            "Give another --output."
        )
    if not force:
        raise CheckpointError(f"{output}: exists. Give another --output, or replace it with --force.")
    for path in inputs:
        if output.resolve() in path.resolve().parents:
            raise CheckpointError(f"{output}: contains {path}, which --force would delete. Give another --output.")
    for name in sorted(path.name for path in output.iterdir()):
        if not any(fnmatch(name, pattern) for pattern in WRITTEN):
            raise CheckpointError(
                f"{output}: contains {name}, which --force would delete. Move it, or give another --output."
            )


def write_model(model: PreTrainedModel, record: Row, output: Path) -> None:
    """Writes a Hub directory with `record` as conversion.json, atomically."""
    make_folder(output.parent)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
        fresh = Path(scratch) / "new"
        old = Path(scratch) / "old"
        try:
            model.save_pretrained(fresh)
        except SafetensorError as error:
            raise CheckpointError(f"{output}: the weights cannot be written ({error}).") from error
        (fresh / "conversion.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if output.exists():
            os.replace(output, old)
        try:
            os.replace(fresh, output)
        except BaseException:
            if old.exists():
                os.replace(old, output)
            raise


def make_record(conversion: Conversion, checkpoint: Path, others: list[str]) -> Fields:
    """The record of a conversion, for conversion.json."""
    with checkpoint.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "checkpoint": checkpoint.name,
        "sha256": digest,
        "class": conversion.class_name,
        "config": conversion.fields.account(),
        "converted": conversion.converted,
        "left_out": _group_by_reason(conversion.left_out),
        "left_out_entries": others,
        "initialised": sorted(conversion.initialised),
    }


def format_summary(conversion: Conversion, others: list[str], output: Path) -> str:
    """A table of the config fields with their sources, and of the converted, skipped and initialised tensors."""
    rows = [("class", conversion.class_name), *_list_fields(conversion.fields.account())]
    rows.append(("converted", f"{len(conversion.converted)} tensors"))
    for reason, keys in _group_by_reason(conversion.left_out).items():
        rows.append(("left out", f"{len(keys)} tensors: {reason} ({name_some(keys)})"))
    if others:
        rows.append(("left out", f"entries of the file that are not weights: {', '.join(others)}"))
    for name, reason in conversion.initialised.items():
        rows.append(("initialised", f"{name} (seed 0): {reason}"))
    rows.append(("written", f"{output} (every key: conversion.json)"))
    return "\n".join(f"{label:<12} {text}" for label, text in rows)


def _list_fields(account: Mapping[str, Columns]) -> list[tuple[str, str]]:
    """Rows of the config fields: read, given, assumed, and every uncertain one with its reason."""
    notes = account["notes"]
    rows = []
    for source, label in (("read", "read"), ("given", "--config"), ("assumed", "assumed")):
        known = {name: f"{name} {json.dumps(value)}" for name, value in account[source].items()}
        certain = [text for name, text in known.items() if name not in notes]
        if certain:
            rows.append((label, ", ".join(certain) + (": as in the public code" if source == "assumed" else "")))
        rows += [(label, f"{text}: {notes[name]}") for name, text in known.items() if name in notes]
    return rows


def _group_by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for key, reason in left_out.items():
        reasons.setdefault(reason, []).append(key)
    return dict(sorted(reasons.items(), key=lambda item: -len(item[1])))
