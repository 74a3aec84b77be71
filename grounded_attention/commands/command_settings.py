# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The option `--set key=value` of commands that evaluate a checkpoint; keys are keys of a recipe."""

from collections.abc import Sequence
from typing import Any

from grounded_attention.utils.bounded_files import parse_yaml

SECTIONS = ("data.builder", "data.options.", "options.")


def settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parses `key=value` texts."""
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not any(key == s or (s.endswith(".") and key.startswith(s) and key != s) for s in SECTIONS):
            raise ValueError(
                f"--set {text}: expected data.builder=NAME, data.options.NAME=VALUE or options.NAME=VALUE"
            )
        values[key] = parse_yaml(value, f"--set {key}")
    return values


def below(section: str, values: dict[str, Any]) -> dict[str, Any]:
    """The settings of one section, such as `options.`, with the section removed from the keys."""
    return {key.removeprefix(section): value for key, value in values.items() if key.startswith(section)}
