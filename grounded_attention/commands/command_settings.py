# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Keys of recipes as commands that evaluate a checkpoint take them: `--set key=value`."""

from collections.abc import Sequence
from typing import Any

import yaml

SECTIONS = ("data.builder", "data.options.", "options.")


def settings(texts: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts, values read as YAML.

    Raises:
        ValueError: another key than those of `SECTIONS`.
    """
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not any(key == s or (s.endswith(".") and key.startswith(s) and key != s) for s in SECTIONS):
            raise ValueError(
                f"--set {text}: expected data.builder=NAME, data.options.NAME=VALUE or options.NAME=VALUE"
            )
        found[key] = yaml.safe_load(value)
    return found


def below(section: str, given: dict[str, Any]) -> dict[str, Any]:
    """The settings of a section, such as `options.`, without its name."""
    return {key.removeprefix(section): value for key, value in given.items() if key.startswith(section)}
