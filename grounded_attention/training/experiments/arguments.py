# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes and checks the training arguments and the task options of a recipe."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from grounded_attention.tasks import Task
from grounded_attention.training.loop.finite_steps import SKIP
from grounded_attention.training.loop.learning_rates import MAPPING, check_mapping
from grounded_attention.training.loop.length_batches import LENGTH
from grounded_attention.training.loop.matmul_precision import FLOAT32, MATMUL, check_precision
from grounded_attention.training.loop.training_arguments import GroundingTrainingArguments
from grounded_attention.training.recipes.early_checks import check_trackers
from grounded_attention.training.recipes.number_checks import check_numbers
from grounded_attention.training.recipes.recipe import (
    Recipe,
    RecipeError,
    check_names,
    convert,
    recipe_key_errors,
    without_hub,
)

# Arguments of scripts around the Trainer -> what to do instead.
WITHOUT_EFFECT = {
    "resume_from_checkpoint": "give resume=true, which continues a run from its last checkpoint",
    "do_train": "remove it",
    "do_eval": "remove it",
    "do_predict": "remove it",
    "label_smoothing_factor": "remove it; the losses are those of the task",
    "local_rank": "remove it; the launcher sets it",
    "output_dir": "give output_dir=FOLDER, a key of the recipe itself",
}


# The name of newer transformers, and the older one.
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")


def training_arguments(recipe: Recipe, output_dir: Path) -> GroundingTrainingArguments:
    """Makes the training arguments of a `training` section that `check_training` has accepted.

    Keys of the Hub are removed: `training/publish/hub.py` pushes, because the Trainer's own push omits the code.
    """
    # The collator reads more columns than the model, and the task defines its labels.
    fixed = {
        "output_dir": str(output_dir),
        "remove_unused_columns": False,
        "label_names": [],
        "length_column_name": LENGTH,
    }
    # Names in a tracker: the run is the project, the method the run.
    names = {"project": output_dir.parent.name or "grounded-attention", "run_name": output_dir.name}
    defaults: dict[str, Any] = {"seed": recipe.seed, "report_to": "none", "disable_tqdm": False, **names}
    if any(recipe.training.get(name) for name in CHECKPOINTING):
        name = CHECKPOINTING[0 if CHECKPOINTING[0] in field_names(GroundingTrainingArguments) else 1]
        given = recipe.training.get(f"{CHECKPOINTING[1]}_kwargs")
        own = given if isinstance(given, Mapping) else {}
        defaults[f"{name}_kwargs"] = {"use_reentrant": False, **own}  # not the default of transformers 5.4
        # The last layers of many vision towers are not read; several processes would wait for their gradients.
        defaults["ddp_find_unused_parameters"] = True
    with recipe_key_errors("training"):
        return GroundingTrainingArguments(**{**defaults, **without_hub(recipe.training), **fixed})


def check_training(training: Mapping[str, Any], prefix: str) -> None:
    """Checks that training arguments are known, and that numbers are numbers."""
    check_names(training, field_names(GroundingTrainingArguments), prefix)
    hints = typing.get_type_hints(GroundingTrainingArguments)
    if not isinstance(training.get("fsdp"), str):  # the words of earlier versions; transformers has no `bool` there
        hints["fsdp"] = bool | None
    for name, value in training.items():
        kinds = {hints[name]} if not isinstance(hints[name], types.UnionType) else {*typing.get_args(hints[name])}
        if kinds - {type(None)} in ({int}, {float}, {bool}, {str}):
            convert(hints[name], value, "", prefix + name)
    if not isinstance(training.get("debug"), str | list | None):  # the Trainer looks for words in it
        raise RecipeError(f"{prefix}debug must be of type str, found {training['debug']!r:.200}")
    check_numbers(training, prefix)
    check_device(training, prefix)
    check_trackers(training.get("report_to"), f"{prefix}report_to")
    check_mapping(training.get(MAPPING), prefix + MAPPING)
    check_sharding_keys(training, prefix)
    for name in WITHOUT_EFFECT.keys() & training.keys():
        raise RecipeError(f"{prefix}{name} has no effect: {WITHOUT_EFFECT[name]}")
    if "logging_nan_inf_filter" in training:
        raise RecipeError(
            f"{prefix}logging_nan_inf_filter has no effect, because training stops at a loss that is not finite "
            f"(or leaves the step out: {prefix}{SKIP}): remove it"
        )


def check_sharding_keys(training: Mapping[str, Any], prefix: str) -> None:
    """
    Checks the keys of sharded training.
    """
    if training.get("deepspeed"):
        raise RecipeError(f"{prefix}deepspeed is not supported: give {prefix}fsdp=true, which shards the weights too")
    config = training.get("fsdp_config")
    kind = str(config.get("state_dict_type", "FULL_STATE_DICT")) if isinstance(config, Mapping) else "FULL_STATE_DICT"
    if kind != "FULL_STATE_DICT":
        raise RecipeError(
            f"{prefix}fsdp_config.state_dict_type must be FULL_STATE_DICT, found {kind}: other checkpoints have no "
            "model.safetensors, and are read through pickle, which can run code"
        )


def check_device(training: Mapping[str, Any], prefix: str) -> None:
    """
    Checks that the machine supports the training arguments, and that they have an effect.
    """
    found = torch.accelerator.is_available()
    none = f"PyTorch {torch.__version__} finds no GPU or other accelerator"
    if training.get("use_cpu") is False and not found:
        raise RecipeError(
            f"{prefix}use_cpu is false, but {none}: give {prefix}use_cpu=true, or install the missing drivers"
        )
    on_cpu = bool(training.get("use_cpu")) or not found
    for name, other in (("fp16", "give bf16=true, which a CPU supports, or "), ("tf32", "")):
        if training.get(name) and on_cpu:
            why = f"{prefix}use_cpu is true" if training.get("use_cpu") else none
            raise RecipeError(f"{prefix}{name} has no effect on a CPU, and {why}: {other}remove it")
    if training.get("bf16") and not found and not training.get("use_cpu"):
        raise RecipeError(f"{prefix}bf16: {none}: to compute in bfloat16 on the CPU, also give {prefix}use_cpu=true")
    elsewhere = None if on_cpu else "training on another device"
    deciding = next((f"{prefix}{name}" for name in ("bf16", "torch_compile") if training.get(name)), elsewhere)
    check_precision(training.get(MATMUL, FLOAT32), prefix + MATMUL, deciding)
    for name in ("fp16_full_eval", "bf16_full_eval"):
        if training.get(name):
            raise RecipeError(
                f"{prefix}{name} has no effect, because models are evaluated in their own dtype: remove it"
            )


def check_options(task: Task, options: Mapping[str, Any], key: str) -> Any:
    """
    Makes the options of a task.
    """
    with recipe_key_errors(key):
        return convert(task.options, options, "", key)


def field_names(kind: Any) -> list[str]:
    """The fields that a dataclass takes as arguments."""
    return [field.name for field in dataclasses.fields(kind) if field.init]
