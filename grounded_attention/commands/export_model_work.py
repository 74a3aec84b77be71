# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Loads the checkpoint of `grounded-attention export-model`, and exports it."""

import argparse
import json
from typing import Any

from grounded_attention.conversion.export_folder import check_request, write_export
from grounded_attention.families import FAMILIES, VLM, find_family
from grounded_attention.training.experiments.scoring import read_config
from grounded_attention.training.recipes.adapters import is_adapter, load_merged, quiet_loading
from grounded_attention.utils.finite_weights import check_finite
from grounded_attention.utils.plain_text import first_sentences


def work(options: argparse.Namespace) -> str:
    """Exports the checkpoint and returns the text to print."""
    check_request(options.output, options.format, options.int8)
    model, processor = load(options.checkpoint)
    about = write_export(
        model,
        processor,
        options.output,
        options.format,
        options.checkpoint,
        int8=options.int8,
        attentions=options.attentions,
    )
    if options.json:
        return json.dumps({"output": str(options.output), **about})
    files = ", ".join(f"{name} ({size / 2**20:.1f} MiB)" for name, size in about["files"].items())
    inputs = "\n".join(f"  {name:22} {form}" for name, form in about["inputs"].items())
    return f"{options.output}: {files}\ninputs\n{inputs}\noutputs\n  {', '.join(about['outputs'])}"


def load(checkpoint: str) -> tuple[Any, Any]:
    """Loads a checkpoint of the families, and its processor; an adapter is merged into its model."""
    config = read_config(checkpoint)
    name = find_family(config.model_type)
    if name is None:
        what = f"a {VLM.title}" if config.model_type in VLM.reads else f"the model type {config.model_type!r}"
        raise ValueError(f"{checkpoint}: {what} is not exported; expected a model of {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    model: Any
    missing: set[str] = set()
    try:
        processor = family.processor_class.from_pretrained(checkpoint)
        if is_adapter(checkpoint):
            model = load_merged(checkpoint)
        else:
            head = family.head_of((config.architectures or [""])[0])
            model_class = family.base_model if head is None else family.heads[head]
            with quiet_loading():
                loaded: Any = model_class.from_pretrained(checkpoint, output_loading_info=True)
            model, missing = loaded[0], set(loaded[1]["missing_keys"])
    except (OSError, ValueError) as error:
        raise ValueError(f"{checkpoint}: {first_sentences(error)}") from error
    if missing:
        raise ValueError(f"{checkpoint}: weights are missing, such as {min(missing)}; copy or train it again")
    check_finite(model, checkpoint)
    return model, processor
