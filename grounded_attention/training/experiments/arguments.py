# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes and checks the training arguments and the task options of a recipe."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from grounded_attention.tasks import Task
from grounded_attention.training.loop.data import LENGTH
from grounded_attention.training.loop.trainer import MAPPING, GroundingTrainingArguments
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, recipe_key_errors, without_hub
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.processes import shares_memory
from grounded_attention.utils.schema import Weight, section, validate

# Arguments that do nothing here -> what to do instead.
WITHOUT_EFFECT = {
    "resume_from_checkpoint": "give resume=true, which continues a run from its last checkpoint",
    "output_dir": "give output_dir=FOLDER, a key of the recipe itself",
    "deepspeed": "give fsdp=true, which shards the weights too",
}

# The name of newer transformers, and the older one.
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")


def training_arguments(recipe: Recipe, output_dir: Path) -> GroundingTrainingArguments:
    """Makes the training arguments of a `training` section that `check_training` has accepted."""
    # The collator reads more columns than the model, and the task defines its labels.
    fixed = {
        "output_dir": str(output_dir),
        "remove_unused_columns": False,
        "label_names": [],
        "length_column_name": LENGTH,
    }
    # Names in a tracker: the run is the project, the method the run.
    names = {"project": output_dir.parent.name or "grounded-attention", "run_name": output_dir.name}
    defaults: Fields = {"seed": recipe.seed, "report_to": "none", "disable_tqdm": False, **names}
    if recipe.training.get("dataloader_num_workers") and not shares_memory():
        fixed |= {
            "dataloader_num_workers": 0,
            "dataloader_prefetch_factor": None,
            "dataloader_persistent_workers": False,
        }
    if any(recipe.training.get(name) for name in CHECKPOINTING):
        name = CHECKPOINTING[0 if CHECKPOINTING[0] in field_names(GroundingTrainingArguments) else 1]
        own_kwargs = recipe.training.get(f"{CHECKPOINTING[1]}_kwargs")
        own = own_kwargs if isinstance(own_kwargs, Mapping) else {}
        defaults[f"{name}_kwargs"] = {"use_reentrant": False, **own}  # not the default of transformers 5.4
        # The last layers of many vision towers are not read; several processes would wait for their gradients.
        defaults["ddp_find_unused_parameters"] = True
    training = validate(_training_section(), dict(recipe.training), "training.", error=RecipeError)  # 1 becomes 1.0
    with recipe_key_errors("training"):
        return GroundingTrainingArguments(**{**defaults, **without_hub(training), **fixed})


@cache
def _training_section() -> Any:
    """The schema of a `training` section: fields that are numbers, words or switches, and others as they are."""
    fields: Fields = {}
    for name, hint in typing.get_type_hints(GroundingTrainingArguments).items():
        if isinstance(hint, types.UnionType):
            kinds = {*typing.get_args(hint)}
        else:
            kinds = {hint}
        plain = kinds - {type(None)} in ({int}, {float}, {bool}, {str})
        fields[name] = hint if plain else Any
    # fsdp may also be words; the Trainer looks for words in `debug`.
    fields |= {"fsdp": bool | str | None, "debug": str | list | None, MAPPING: dict[str, Weight] | None}
    return section(fields)


def check_training(training: Columns, prefix: str) -> None:
    """Checks the types of training arguments, and that they have an effect."""
    for name in WITHOUT_EFFECT.keys() & {name for name, value in training.items() if value is not None}:
        raise RecipeError(f"{prefix}{name} has no effect here: {WITHOUT_EFFECT[name]}")
    validate(_training_section(), dict(training), prefix, error=RecipeError)


def check_options(task: Task, options: Columns, key: str) -> Any:
    """Makes the options of a task."""
    return validate(task.Options, dict(options), key, error=RecipeError)


def field_names(kind: Any) -> list[str]:
    """The fields that a dataclass takes as arguments."""
    return [field.name for field in dataclasses.fields(kind) if field.init]
