# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The family of a recipe's model, the class of it for a task's head, and bounds of the sizes that it declares."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from grounded_attention.families import DEFAULT_FAMILY, FAMILIES, VLM, find_family
from grounded_attention.utils.named_types import Columns
from grounded_attention.utils.project import refuse_run

from .adapters import read_model_config
from .recipe import Model, RecipeError, check_names, recipe_key_errors

# Larger values are no model: memory would be claimed before any check. RoPE's theta is 1e9 in Mistral Small.
MAX_LAYERS = 1000
MAX_SIZE = 2**25
MAX_NUMBER = 2**40


def check_sizes(config: Columns, prefix: str) -> None:
    """Checks the numbers of a configuration and of those inside."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            check_sizes(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            if "layers" in str(name):
                limit = MAX_LAYERS
            else:
                limit = MAX_SIZE if str(name).endswith("_size") else MAX_NUMBER
            if not abs(value) <= limit:  # NaN is not either
                raise RecipeError(f"{prefix}{name} is {str(value)[:40]}, expected at most {limit}")


def family_name(model: Model) -> str:
    """The family of a recipe's model: that of its checkpoint, else `model.family`, else VL-BERT."""
    if model.family is not None:
        check_names([model.family], [*FAMILIES, VLM.name], "model.family=")
    if not model.source:
        return model.family or DEFAULT_FAMILY
    path = Path(model.source)
    if len(path.parts) > 2 and not path.exists():  # the name of a repository has two parts
        raise RecipeError(
            f"model.source {model.source}: no such folder, and not a name on the Hub; if another recipe trains this "
            "model (see the first lines of this recipe), run that first"
        )
    model_type = _source_type(model.source)
    name = VLM.name if model_type in VLM.reads else find_family(model_type)
    if name is None or model.family not in (None, name):
        raise RecipeError(
            f"model.source {model.source} is a checkpoint of the family {model_type!r}, expected "
            f"{wanted_families(model)}: give a converted checkpoint (grounded-attention convert), or a BERT "
            "as model.bert"
        )
    return name


def _source_type(source: str) -> str:
    with recipe_key_errors(f"model.source {source}"):
        refuse_run(source)
        config = read_model_config(source)
        check_sizes(config.to_dict(), "config.json: ")
    return config.model_type


def wanted_families(model: Model) -> str:
    """The expected families, for an error message."""
    if model.family == VLM.name:
        return " or ".join(map(repr, VLM.reads))
    if model.family:
        return repr(model.family)
    return " or ".join(map(repr, FAMILIES))


def is_vision_language(model: Model) -> bool:
    """Whether the recipe's model is a vision-language model of transformers."""
    return family_name(model) == VLM.name


def vision_language_type(model: Model) -> str:
    """The `model_type` of a recipe's vision-language model: that of its checkpoint, else `model.config.model_type`."""
    if model.source:
        return _source_type(model.source)
    model_type = model.config.get("model_type")
    if model_type not in VLM.reads:
        raise RecipeError(
            f"model.config.model_type is {model_type!r}, expected one of {', '.join(VLM.reads)}; or give a checkpoint "
            "as model.source"
        )
    return model_type


def family_title(model: Model) -> str:
    """The display name of the model's family, or of a vision-language model's type."""
    if is_vision_language(model):
        return f"{VLM.title} ({vision_language_type(model)})"
    return FAMILIES[family_name(model)].title


def head_class(head: str, model: Model) -> type[PreTrainedModel]:
    """The model class with this head in the family of the model."""
    name = family_name(model)
    if name == VLM.name and head == VLM.head:
        return VLM.model_class(vision_language_type(model))
    heads = {} if name == VLM.name else FAMILIES[name].heads
    if head not in heads:
        having = [other for other, family in FAMILIES.items() if head in family.heads]
        having += [VLM.name] * (head == VLM.head)
        raise RecipeError(
            f"the family {name!r} has no head {head!r}; use a family that has it: model.family={' or '.join(having)}"
        )
    return heads[head]


def processor_class(model: Model) -> Any:
    """The processor class of the model's family."""
    return FAMILIES[family_name(model)].processor_class
