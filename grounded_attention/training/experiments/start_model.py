# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Prepares the `preserve` section: the start model, its shared weights, the Fisher information."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from grounded_attention.families import FAMILIES
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import limit_rows
from grounded_attention.training.loop.preserve import Preservation, estimate_fisher, saved_fisher, single_batches
from grounded_attention.training.recipes.model_family import family_name, head_class, is_vision_language
from grounded_attention.training.recipes.recipe import PLACES, Data, Preserve, Recipe, RecipeError, recipe_key_errors

from .arguments import check_options
from .models import load_model
from .prepared_data import prepare_data

PRETRAINING = "pretraining"  # the head, and the default task of the pre-training
WEIGHTS = ("distillation", "l2", "ewc")
FISHER_FILE = "fisher.safetensors"
FISHER_BATCHES = 16
EXAMPLES = 8  # default batch size, as in TrainingArguments


def preserves(section: Preserve) -> bool:
    """Whether any weight of `preserve` is above 0."""
    return any(getattr(section, name) for name in WEIGHTS)


def check_preserve(recipe: Recipe) -> None:
    """Checks the `preserve` section."""
    section = recipe.preserve
    check_options(TASKS[pretraining_recipe(recipe).task], section.options, "preserve.options")
    if preserves(section):
        _check_start(recipe)


def _check_start(recipe: Recipe) -> None:
    section = recipe.preserve
    if is_vision_language(recipe.model):
        raise RecipeError("preserve is not for vision-language models: remove it, or train an adapter (model.adapter)")
    if recipe.model.adapter:
        raise RecipeError("preserve compares weights, which model.adapter leaves unchanged: remove one of them")
    if recipe.start is None and recipe.model.source is None:
        raise RecipeError("preserve needs a start model: give a start section, or a checkpoint as model.source")
    if recipe.training.get("fsdp"):
        raise RecipeError("preserve needs whole parameters in every process: remove training.fsdp")
    if section.ewc and not _starts_with_heads(recipe):
        raise RecipeError(
            "preserve.ewc needs a start model with pre-training heads: give a start with a pre-training task, or a "
            f"checkpoint of {head_class(PRETRAINING, recipe.model).__name__} as model.source"
        )


def _starts_with_heads(recipe: Recipe) -> bool:
    if recipe.start is not None:
        return TASKS[recipe.start.task].head == PRETRAINING
    source = recipe.model.source or ""
    with recipe_key_errors(f"model.source {source}"):
        architectures = AutoConfig.from_pretrained(source).architectures
    family = FAMILIES[family_name(recipe.model)]
    return any(family.head_of(name) == PRETRAINING for name in architectures or [])


def make_preservation(recipe: Recipe, model: PreTrainedModel, processor: Any, device: Any) -> Preservation | None:
    """Makes the losses of the `preserve` section. The start must be trained (`model.source` is set)."""
    section, task = recipe.preserve, TASKS[recipe.task]
    if not preserves(section):
        return None
    # With the configuration of the model, because its heads and fields may differ from those of the checkpoint.
    start, new = load_model(type(model), replace(recipe.model, config={}), config=deepcopy(model.config))
    shared = {name for name, _ in start.named_parameters()} - new
    fisher = _fisher(recipe, processor, shared, device) if section.ewc else None
    return Preservation(section, model, start, shared, task.model_inputs, fisher)


def _fisher(recipe: Recipe, processor: Any, names: set[str], device: Any) -> dict[str, Tensor]:
    """Estimates the Fisher information in one process and writes it; all methods and a resumed run read the file."""
    path = Path(recipe.output_dir) / FISHER_FILE
    with PartialState().main_process_first():
        fisher = saved_fisher(path, lambda: _estimate(recipe, processor, names, device))
    if PartialState().is_main_process:  # helps to choose the weight
        total, size = sum(value.sum().item() for value in fisher.values()), sum(map(Tensor.numel, fisher.values()))
        print(f"  {path}: mean {total / size:.3g} over {size} weights", flush=True)
    return fisher


def _estimate(recipe: Recipe, processor: Any, names: set[str], device: Any) -> dict[str, Tensor]:
    objective = pretraining_recipe(recipe)
    task, data = TASKS[objective.task], prepare_data(objective)
    task = task.configure(data.options)
    model, new = load_model(head_class(task.head, recipe.model), recipe.model, **task.model_config())
    if new:
        raise RecipeError(
            f"preserve.ewc: {recipe.model.source} has no weight {sorted(new)[0]}, which the pre-training loss needs: "
            "set preserve.options to the options of its pre-training (relationship=false without that head)"
        )
    with recipe_key_errors("preserve.options"):
        task = task.configure(config=model.config)
    train = data.splits["train"]
    count = FISHER_BATCHES * int(objective.training.get("per_device_train_batch_size", EXAMPLES))
    collate = data.collator(task, processor, recipe.seed, split=train)
    batches = single_batches(
        limit_rows(train, count, recipe.seed), collate, device, bool(recipe.training.get("disable_tqdm"))
    )
    return estimate_fisher(model.to(device), task, batches, names)


def pretraining_recipe(recipe: Recipe) -> Recipe:
    """The recipe of the pre-training for the Fisher information."""
    section = recipe.preserve
    if TASKS[recipe.task].head == PRETRAINING:
        base = recipe
    elif recipe.start is not None:
        base = recipe.start
    else:
        places = {name: getattr(recipe.data, name) for name in PLACES}
        base = Recipe(task=PRETRAINING, seed=recipe.seed, data=Data(**places), training=recipe.training)
    data = replace(base.data, builder=section.builder) if section.builder else base.data
    return replace(base, data=data, options={**base.options, **section.options})
