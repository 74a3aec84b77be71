# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Prepares the `preserve` section: the start model, which the trained model stays close to."""

from copy import deepcopy
from dataclasses import replace

from transformers import PreTrainedModel

from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.preserve import Preservation
from grounded_attention.training.recipes.model_family import is_vision_language
from grounded_attention.training.recipes.recipe import Recipe, RecipeError

from .models import load_model


def check_preserve(recipe: Recipe) -> None:
    """Checks the `preserve` section."""
    if not recipe.preserve.distillation:
        return
    if is_vision_language(recipe.model):
        raise RecipeError("preserve is not for vision-language models: remove it, or train an adapter (model.adapter)")
    if recipe.model.adapter:
        raise RecipeError("preserve compares with the start, which model.adapter keeps: remove one of them")
    if recipe.start is None and recipe.model.source is None:
        raise RecipeError("preserve needs a start model: give a start section, or a checkpoint as model.source")
    if recipe.training.get("fsdp"):
        raise RecipeError("preserve needs whole parameters in every process: remove training.fsdp")


def make_preservation(recipe: Recipe, model: PreTrainedModel) -> Preservation | None:
    """Makes the loss of the `preserve` section. The start must be trained (`model.source` is set)."""
    weight = recipe.preserve.distillation
    if not weight:
        return None
    # With the configuration of the model, because its heads and fields may differ from those of the checkpoint.
    start, _ = load_model(type(model), replace(recipe.model, config={}), config=deepcopy(model.config))
    return Preservation(weight, start, TASKS[recipe.task].model_inputs)
