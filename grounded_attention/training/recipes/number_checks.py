# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Ranges of numbers in a recipe that libraries take without a word, or refuse with a traceback."""

import math
from collections.abc import Mapping
from typing import Any

from grounded_attention.utils.bounded_numbers import MAX_COUNT, MAX_PROCESSES, MAX_SEED

from .recipe import RecipeError

POSITIVE = (
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "max_steps",
    "num_train_epochs",
    "save_steps",
    "eval_steps",
    "logging_steps",
    "save_total_limit",
)
NOT_NEGATIVE = ("weight_decay", "max_grad_norm", "label_smoothing_factor", "adam_epsilon", "neftune_noise_alpha")
SEEDS = ("seed", "data_seed")
SWITCHES = ("output_attentions", "return_dict", "tie_word_embeddings", "is_encoder_decoder")
WORKERS = ("dataloader_num_workers", "dataloader_prefetch_factor")
# Larger values are no model but a typing error, or an attack: memory would be claimed before any check.
MAX_LAYERS, MAX_SIZE, MAX_WEIGHTS = 1000, 2**24, 2**38


def check_numbers(training: Mapping[str, Any], prefix: str) -> None:
    """
    Checks the ranges of training arguments.
    """
    for name, value in training.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RecipeError(f"{prefix}{name} must be a finite number, found {value}")
        if name in POSITIVE and is_number(value) and value <= 0:
            hint = "; remove it to train for num_train_epochs" if name == "max_steps" else ""
            raise RecipeError(f"{prefix}{name} must be above 0, found {value}{hint}")
        if name in NOT_NEGATIVE and is_number(value) and value < 0:
            raise RecipeError(f"{prefix}{name} must be 0 or more, found {value}")
        limit = MAX_PROCESSES if name in WORKERS else MAX_COUNT
        if is_number(value) and abs(value) > limit and name not in SEEDS:
            raise RecipeError(f"{prefix}{name} must be at most {limit}, found {str(value)[:40]}")
    for name in SEEDS:
        if training.get(name) is not None:
            check_seed(training[name], f"{prefix}{name}")


def check_seed(seed: Any, key: str) -> None:
    """
    Checks a seed.
    """
    if not is_number(seed) or not 0 <= seed <= MAX_SEED:
        raise RecipeError(f"{key} must be a whole number from 0 to {MAX_SEED}, found {str(seed)[:40]}")


def check_sizes(config: Mapping[str, Any], prefix: str) -> None:
    """
    Checks the fields of a model configuration before a model is made.
    """
    _check_general(config, prefix)
    for name, value in config.items():
        if isinstance(value, Mapping):
            check_sizes(value, f"{prefix}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise RecipeError(f"{prefix}{name} must be a finite number, found {value}")
        elif is_number(value):
            _check_field(str(name), value, prefix)
    layers = _sum(config, "layers")
    widths = [value for name, value in config.items() if str(name).endswith("hidden_size") and is_number(value)]
    width, words = max(widths, default=0), config.get("vocab_size", 0)
    weights = width * (12 * width * layers + (words if is_number(words) else 0))
    if weights > MAX_WEIGHTS:
        raise RecipeError(f"{prefix}hidden_size: the model would have about {weights:.0e} weights; give smaller sizes")


def _check_general(config: Mapping[str, Any], prefix: str) -> None:
    """Checks the types of fields of every configuration, which transformers itself does not check."""
    for name in SWITCHES:
        if not isinstance(config.get(name), bool | None):
            raise RecipeError(f"{prefix}{name} must be true or false, found {str(config[name])[:200]!r}")
    layers = config.get("output_hidden_states")
    layers = layers if isinstance(layers, list) else [layers or 0]  # a list chooses layers
    if not all(isinstance(layer, int) for layer in layers):
        raise RecipeError(f"{prefix}output_hidden_states must be true or false, found {layers!r:.200}")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(each, str) for each in architectures):
        raise RecipeError(f"{prefix}architectures must be a list of names of classes, found {architectures!r:.200}")
    chunk = config.get("chunk_size_feed_forward", 0)
    if not isinstance(chunk, int):
        raise RecipeError(f"{prefix}chunk_size_feed_forward must be a whole number, found {chunk!r:.200}")
    for name in ("id2label", "label2id"):
        if not isinstance(config.get(name), Mapping | None):
            raise RecipeError(f"{prefix}{name} must be a section of labels, found {config[name]!r:.200}")


def _check_field(name: str, value: float, prefix: str) -> None:
    if ("dropout" in name or name.endswith("_prob")) and not 0 <= value <= 1:
        raise RecipeError(f"{prefix}{name} must be a probability from 0 to 1, found {value}")
    if value < 0 and (name.startswith("num_") or name.endswith(("_size", "_layers", "_heads"))):
        raise RecipeError(f"{prefix}{name} must not be negative, found {value}")
    limit = MAX_LAYERS if "layers" in name else MAX_SIZE
    if abs(value) > limit:
        raise RecipeError(f"{prefix}{name} must be at most {limit}, found {str(value)[:40]}")


def _sum(config: Mapping[str, Any], part: str) -> float:
    return sum(value for name, value in config.items() if part in str(name) and is_number(value))


def is_number(value: Any) -> bool:
    """Whether a value is a number; to Python a truth value is one too."""
    return isinstance(value, int | float) and not isinstance(value, bool)
