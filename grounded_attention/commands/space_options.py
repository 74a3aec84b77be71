# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shared by commands about the Space: its options, and the settings they make."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from grounded_attention.dataset_scripts.scenes import SOURCE
from grounded_attention.utils.plain_text import short_names

if TYPE_CHECKING:
    from grounded_attention.space.settings import SpaceSettings


def add_space_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--model`, `--vlm`, `--detector` and `--features`."""
    add = parser.add_argument
    add(
        "--model",
        action="append",
        metavar="NAME_OR_DIR",
        help="checkpoint, may be repeated; the first two are compared (default: two small ones of drawn scenes)",
    )
    add("--vlm", metavar="NAME_OR_DIR", help="vision-language model beside the small one")
    add("--detector", default=SOURCE, metavar="NAME", help='detector of transformers, or "scenes" (default)')
    add("--features", default=SOURCE, metavar="NAME", help='feature network or backbone, or "scenes" (default)')


def space_settings(options: argparse.Namespace) -> SpaceSettings:
    """The settings of the options."""
    from grounded_attention.space.settings import SMALL_MODELS, SpaceSettings

    names = options.model or []
    if len(set(names)) < len(names):
        raise ValueError(f"--model: {next(name for name in names if names.count(name) > 1)} is given twice")
    for name in [*names, *([options.vlm] if options.vlm else [])]:
        if not Path(name).is_dir() and (name.count("/") != 1 or name.startswith(("/", "."))):
            raise ValueError(f"{name}: no such folder, and not a name on the Hub (ORG/NAME)")
    models = dict(zip(_names(names), names, strict=True)) or dict(SMALL_MODELS)
    return SpaceSettings(models, options.vlm, options.detector, options.features)


def _names(paths: list[str]) -> list[str]:
    """What the page calls the checkpoints: a folder by its last part, unless others have it too; ORG/NAME in full."""
    short = short_names(paths)
    return [shown if Path(name).is_dir() else name for name, shown in zip(paths, short, strict=True)]


def check_gradio() -> None:
    """Checks that the page can be made here."""
    if importlib.util.find_spec("gradio") is None:
        raise ValueError('gradio is not installed, which makes the page: pip install "grounded-attention[space]"')
