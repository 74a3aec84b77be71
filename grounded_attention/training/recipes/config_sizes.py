# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Bounds of the fields of a model configuration, which may be a stranger's file, before a model is made."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from .recipe import RecipeError

SWITCHES = ("output_attentions", "return_dict", "tie_word_embeddings", "is_encoder_decoder")
# Fields of every configuration, whose types transformers itself does not check -> what they may be, and its name.
GENERAL: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(SWITCHES, (lambda value: isinstance(value, bool | None), "true or false")),
    "output_hidden_states": (lambda value: isinstance(value, int | None) or _is_list(value, int), "true or false"),
    "architectures": (lambda value: value is None or _is_list(value, str), "a list of names of classes"),
    "chunk_size_feed_forward": (lambda value: isinstance(value, int), "a whole number"),
    **dict.fromkeys(
        ("id2label", "label2id"), (lambda value: isinstance(value, Mapping | None), "a section of labels")
    ),
}
# Larger values are no model but a typing error, or an attack: memory would be claimed before any check.
MAX_LAYERS, MAX_SIZE, MAX_WEIGHTS = 1000, 2**25, 2**38
# Names of numbers that are no sizes: RoPE's theta is 1e9 in Mistral Small.
SCALES, MAX_SCALE = ("theta", "clipping"), 2**40


def check_sizes(config: Mapping[str, Any], prefix: str) -> None:
    """Checks the fields of a model configuration before a model is made."""
    for name, (fits, expected) in GENERAL.items():
        if name in config and not fits(config[name]):
            raise RecipeError(f"{prefix}{name} must be {expected}, found {config[name]!r:.200}")
    for name, value in config.items():
        if isinstance(value, Mapping):
            check_sizes(value, f"{prefix}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise RecipeError(f"{prefix}{name} must be a finite number, found {value}")
        elif _is_number(value):
            _check_field(str(name), value, prefix)
    layers = sum(value for name, value in config.items() if "layers" in str(name) and _is_number(value))
    widths = [value for name, value in config.items() if str(name).endswith("hidden_size") and _is_number(value)]
    width, words = max(widths, default=0), config.get("vocab_size", 0)
    weights = width * (12 * width * layers + (words if _is_number(words) else 0))
    if weights > MAX_WEIGHTS:
        raise RecipeError(f"{prefix}hidden_size: the model would have about {weights:.0e} weights; give smaller sizes")


def _check_field(name: str, value: float, prefix: str) -> None:
    if ("dropout" in name or name.endswith("_prob")) and not 0 <= value <= 1:
        raise RecipeError(f"{prefix}{name} must be a probability from 0 to 1, found {value}")
    if value < 0 and (name.startswith("num_") or name.endswith(("_size", "_layers", "_heads"))):
        raise RecipeError(f"{prefix}{name} must not be negative, found {value}")
    limit = MAX_LAYERS if "layers" in name else MAX_SCALE if name.endswith(SCALES) else MAX_SIZE
    if abs(value) > limit:
        raise RecipeError(f"{prefix}{name} must be at most {limit}, found {str(value)[:40]}")


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def _is_number(value: Any) -> bool:
    """Whether a value is a number; to Python a truth value is one too."""
    return isinstance(value, int | float) and not isinstance(value, bool)
