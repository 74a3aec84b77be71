# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The `model.adapter` section of a recipe: a LoRA of PEFT is trained instead of the weights of a checkpoint."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from grounded_attention.training.recipes.adapters import base_of, import_peft
from grounded_attention.training.recipes.recipe import Model, RecipeError, check_names, recipe_key_errors

from .processes import say_once

LORA = "lora"
TARGETS = "target_modules"
ALL_LINEAR = "all-linear"  # PEFT's word
SHOWN = 16


def check_adapter(model: Model) -> None:
    """
    Checks `model.adapter`, and that `model.source` is no adapter itself.
    """
    if model.source and base_of(model.source) != model.source:
        raise RecipeError(
            f"model.source {model.source} contains an adapter of {base_of(model.source)}: give that model, or the "
            "result of merge_and_unload"
        )
    if not model.adapter:
        return
    check_names(model.adapter, [LORA], "model.adapter.")
    if not model.source:
        raise RecipeError("model.adapter changes the weights of a checkpoint: give model.source, or remove it")
    if model.freeze:
        raise RecipeError("model.freeze has no effect with model.adapter, which trains the adapter alone: remove it")
    options = model.adapter[LORA]
    if not isinstance(options, Mapping):
        raise RecipeError(f"model.adapter.{LORA} must be a section of options of LoraConfig, found {options!r}")
    with recipe_key_errors("model.adapter"):
        known = [field.name for field in dataclasses.fields(import_peft().LoraConfig)]
    check_names(options, known, f"model.adapter.{LORA}.")


def add_lora(model: PreTrainedModel, options: Mapping[str, Any], prefix: str, whole: Iterable[str] = ()) -> Any:
    """
    Adds a LoRA to a model and prints how many parameters are trained.
    """
    given = {TARGETS: linear_layers(model, prefix), **options}
    if whole:
        given["modules_to_save"] = sorted({*whole, *(options.get("modules_to_save") or ())})
    _check_targets(model, given[TARGETS])
    with recipe_key_errors(f"model.adapter.{LORA}"):
        adapted = import_peft().get_peft_model(model, import_peft().LoraConfig(**given))
    trained, total = adapted.get_nb_trainable_parameters()
    say_once(f"LoRA: {trained:,} of {total:,} parameters are trained ({trained / total:.1%})")
    return adapted


def linear_layers(model: nn.Module, prefix: str) -> str:
    """The linear layers below a module, as a regular expression for `LoraConfig(target_modules=...)`."""
    ends = {name.rpartition(".")[2] for name in _linear_names(model) if name.startswith(f"{prefix}.")}
    return rf"{re.escape(prefix)}\..*\.({'|'.join(sorted(ends))})"


def _linear_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module).__name__ == "Linear"]


def _check_targets(model: nn.Module, targets: Any) -> None:
    """Checks that each target names a linear layer; a text is a regular expression, a list has ends of names."""
    if targets is None or targets == ALL_LINEAR:
        return
    names = _linear_names(model)
    for target in [targets] if isinstance(targets, str) else targets:
        if isinstance(targets, str):
            with recipe_key_errors(f"model.adapter.{LORA}.{TARGETS}"):
                found = any(re.fullmatch(target, name) for name in names)
        else:
            found = any(f".{name}".endswith(f".{target}") for name in names)
        if not found:
            ends = sorted({name.rpartition(".")[2] for name in names})
            raise RecipeError(
                f"model.adapter.{LORA}.{TARGETS}: {target!r} is no linear layer of {type(model).__name__}; expected "
                f"a list of names, {', '.join(ends[:SHOWN])}{', ...' * (len(ends) > SHOWN)}, or a regular expression "
                f"of whole names, such as {names[0]}"
            )


def adapt_family(model: Any, missing: Iterable[str], options: Mapping[str, Any]) -> Any:
    """
    Adds a LoRA to a model of one of the project's families: by default to all linear layers of its encoder. The heads
    of the task, and modules whose weights the checkpoint lacks, are trained in full.
    """
    if model.get_output_embeddings() is not None:
        raise RecipeError(
            f"model.adapter: {type(model).__name__} predicts words with the weights of its word embeddings, which a "
            "LoRA leaves unchanged: train it without an adapter"
        )
    base, encoder = model.base_model_prefix, f"{model.base_model_prefix}.encoder"
    absent = [name for name in missing if name.startswith(f"{encoder}.")]
    if absent:
        raise RecipeError(f"model.adapter: the checkpoint has no weight {min(absent)}, which a LoRA cannot replace")
    heads = {name for name, child in model.named_children() if name != base and any(True for _ in child.parameters())}
    new = {name.rpartition(".")[0] for name in missing if name.startswith(f"{base}.")}
    # The configuration of the trained model is saved beside the adapter: that of the checkpoint has other heads.
    model.config.architectures = [type(model).__name__]
    return add_lora(model, options, encoder, whole=heads | new)
