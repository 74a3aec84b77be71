# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a recipe's `preserve` needs: the start model, which of its weights are shared, the Fisher information."""

from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.families import FAMILIES
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator, limit_rows
from grounded_attention.training.loop.fisher import estimate_fisher, saved_fisher, single_batches
from grounded_attention.training.loop.preserve import Preservation
from grounded_attention.training.recipes.model_family import family_name, head_class
from grounded_attention.training.recipes.recipe import Data, Preserve, Recipe, RecipeError, blame, check_names

from .setup import check_options, load_model, prepare_data

PRETRAINING = "pretraining"  # the head, and the task where no start says which
KINDS = ("hidden_states", "logits")
WEIGHTS = ("distillation", "l2", "ewc")
FISHER_FILE = "fisher.safetensors"
EXAMPLES = 8  # of a Fisher batch, where the recipe has no batch size: that of TrainingArguments


def preserves(section: Preserve) -> bool:
    """Whether any weight is above 0."""
    return any(getattr(section, name) for name in WEIGHTS)


def check_preserve(recipe: Recipe) -> None:
    """Refuses a `preserve` that can't be followed.

    Raises:
        RecipeError: a value out of its range, nothing to preserve, or no pre-training heads where they are needed.
    """
    section = recipe.preserve
    for name in WEIGHTS:
        if getattr(section, name) < 0:
            raise RecipeError(f"preserve.{name} is {getattr(section, name)}, expected a weight from 0 on")
    check_names([section.distillation_of], KINDS, "preserve.distillation_of=")
    if section.temperature <= 0 or section.fisher_batches < 1:
        raise RecipeError("preserve: expected temperature above 0 and fisher_batches from 1 on")
    if section.builder is not None:
        check_names([section.builder], BUILDERS, "preserve.builder=")
    check_options(TASKS[pretraining_recipe(recipe).task], section.options, "preserve.options")
    if preserves(section):
        _check_start(recipe)


def _check_start(recipe: Recipe) -> None:
    section = recipe.preserve
    if recipe.start is None and recipe.model.source is None:
        raise RecipeError(
            "preserve keeps what a start model has learnt, but there is none: give start, or model.source a checkpoint"
        )
    if section.distillation and section.distillation_of == "hidden_states" and section.temperature != 1:
        raise RecipeError(
            "preserve.temperature is one of logits: give preserve.distillation_of=logits, or leave it out"
        )
    if any(recipe.training.get(name) for name in ("fsdp", "deepspeed")):
        raise RecipeError("preserve needs whole parameters in every process: leave training.fsdp and deepspeed out")
    logits = section.distillation and section.distillation_of == "logits"
    if (logits or section.ewc) and not _starts_with_heads(recipe):
        needing = "preserve.distillation_of=logits" if logits else "preserve.ewc"
        raise RecipeError(
            f"{needing} needs a start with pre-training heads: give start a task of pre-training, or model.source "
            f"a checkpoint of {head_class(PRETRAINING, recipe.model).__name__}"
        )


def _starts_with_heads(recipe: Recipe) -> bool:
    if recipe.start is not None:
        return TASKS[recipe.start.task].head == PRETRAINING
    source = recipe.model.source or ""
    with blame(f"model.source {source}"):
        found = AutoConfig.from_pretrained(source).architectures
    family = FAMILIES[family_name(recipe.model)]
    return any(family.head_of(name) == PRETRAINING for name in found or [])


def make_preservation(recipe: Recipe, model: PreTrainedModel, processor: Any, device: Any) -> Preservation | None:
    """The `preserve` of a recipe whose start is trained (`model.source` is set), or None without any weight.

    Raises:
        RecipeError: the pre-training objective of `ewc` needs heads that the start has not.
    """
    section, task = recipe.preserve, TASKS[recipe.task]
    if not preserves(section):
        return None
    # Made like the model, whose heads and configuration may be others than the checkpoint's.
    start, new = load_model(type(model), replace(recipe.model, config={}), config=deepcopy(model.config))
    shared = {name for name, _ in start.named_parameters()} - new
    heads, with_heads = None, head_class(PRETRAINING, recipe.model)
    if section.distillation and section.distillation_of == "logits" and not isinstance(model, with_heads):
        heads = load_model(with_heads, recipe.model)[0]
    fisher = _fisher(recipe, processor, shared, device) if section.ewc else None
    return Preservation(section, model, start, shared, task.model_inputs, heads, fisher)


def _fisher(recipe: Recipe, processor: Any, names: set[str], device: Any) -> dict[str, Tensor]:
    """One process estimates it and writes it beside the runs, which all methods and a resumed run read."""
    path = Path(recipe.output_dir) / FISHER_FILE
    with PartialState().main_process_first():
        fisher = saved_fisher(path, lambda: _estimate(recipe, processor, names, device))
    if PartialState().is_main_process:  # what a weight must be chosen by
        total, size = sum(value.sum().item() for value in fisher.values()), sum(map(Tensor.numel, fisher.values()))
        print(f"  {path}: mean {total / size:.3g} over {size} weights", flush=True)
    return fisher


def _estimate(recipe: Recipe, processor: Any, names: set[str], device: Any) -> dict[str, Tensor]:
    objective = pretraining_recipe(recipe)
    task = TASKS[objective.task]
    options = check_options(task, objective.options, "preserve.options")
    model, new = load_model(head_class(task.head, recipe.model), recipe.model, **task.model_config(options))
    if new:
        raise RecipeError(
            f"preserve.ewc: {recipe.model.source} lacks {sorted(new)[0]}, which the pre-training objective trains: "
            "give preserve.options what it was pre-trained with (relationship=false without that head)"
        )
    with blame("preserve.options"):
        task = task.configure(task, options, model.config)
    data = prepare_data(objective)
    train = data.splits["train"]
    count = recipe.preserve.fisher_batches * int(objective.training.get("per_device_train_batch_size", EXAMPLES))
    collate = Collator(
        task,
        processor,
        data.regions,
        recipe.seed,
        split=train,
        texts=data.texts,
        images=data.images,
        options=objective.options,
    )
    batches = single_batches(
        limit_rows(train, count, recipe.seed), collate, device, bool(recipe.training.get("disable_tqdm"))
    )
    return estimate_fisher(model.to(device), task, batches, names)


def pretraining_recipe(recipe: Recipe) -> Recipe:
    """Data and options of the pre-training whose Fisher information counts."""
    section = recipe.preserve
    if TASKS[recipe.task].head == PRETRAINING:
        base = recipe
    elif recipe.start is not None:
        base = recipe.start
    else:
        places = {
            f.name: getattr(recipe.data, f.name)
            for f in fields(Data)
            if f.name in ("data_dir", "regions", "images", "scenes")
        }
        base = Recipe(task=PRETRAINING, seed=recipe.seed, data=Data(**places), training=recipe.training)
    data = replace(base.data, builder=section.builder) if section.builder else base.data
    return replace(base, data=data, options={**base.options, **section.options})
