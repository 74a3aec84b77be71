# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The model options of `heads`; other commands have `ModelOptions`."""

from __future__ import annotations

import argparse
from typing import Any

from .models import ModelOptions
from .signatures import add_arguments

EVERYWHERE = "auto"  # `--device`: over all GPUs, and the memory of the machine (accelerate)


def add_vlm_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that [`load_vlm`] reads."""
    add_arguments(parser, ModelOptions)
    parser.set_defaults(device=None, dtype="float32")


def default_options(**known: Any) -> argparse.Namespace:
    """What the options of `add_vlm_options` are if none is given, and what is known of them."""
    parser = argparse.ArgumentParser()
    add_vlm_options(parser)
    return parser.parse_args([], argparse.Namespace(**known))


def load_vlm(options: argparse.Namespace, **how: Any) -> Any:
    """The model of `--model` in evaluation mode, and its processor."""
    return ModelOptions(options.device, options.dtype).load(options.model, **how)
