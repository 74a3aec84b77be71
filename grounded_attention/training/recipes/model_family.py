# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""From a recipe's model to its family, and from a task's head to the family's class."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedModel

from grounded_attention.families import DEFAULT_FAMILY, FAMILIES, find_family

from .recipe import Model, RecipeError, blame, check_names


def family_name(model: Model) -> str:
    """The family of a recipe's model: that of its checkpoint, else `model.family`, else VL-BERT.

    Raises:
        RecipeError: an unknown family, a checkpoint of none of these, or of another one than `model.family`.
    """
    if model.family is not None:
        check_names([model.family], FAMILIES, "model.family=")
    if not model.source:
        return model.family or DEFAULT_FAMILY
    path = Path(model.source)
    if len(path.parts) > 2 and not path.exists():  # a repository has a namespace and a name
        raise RecipeError(
            f"model.source {model.source}: no such folder, and no repository's name; where another recipe trains it "
            "(see the first lines of this one), run that first"
        )
    with blame(f"model.source {model.source}"):
        found = AutoConfig.from_pretrained(model.source).model_type
    name = find_family(found)
    if name is None or model.family not in (None, name):
        raise RecipeError(
            f"model.source {model.source} is a checkpoint of the family {found!r}, expected {wanted_families(model)}: "
            "give a converted checkpoint (grounded-attention convert), or a BERT as model.bert"
        )
    return name


def wanted_families(model: Model) -> str:
    """The families that would do, for a message."""
    return repr(model.family) if model.family else " or ".join(map(repr, FAMILIES))


def head_class(head: str, model: Model) -> type[PreTrainedModel]:
    """The class of the model's family that has the head.

    Raises:
        RecipeError: the family has none; names those that have one.
    """
    name = family_name(model)
    heads = FAMILIES[name].heads
    if head not in heads:
        having = [other for other, family in FAMILIES.items() if head in family.heads]
        raise RecipeError(
            f"the family {name!r} has no head {head!r}; of those that have: model.family={' or '.join(having)}"
        )
    return heads[head]


def check_family_config(model: Model) -> None:
    """Refuses families in `model.family_config` that there are not, and fields that they have not.

    Raises:
        RecipeError: names the key.
    """
    check_names(model.family_config, FAMILIES, "model.family_config.")
    for name, fields in model.family_config.items():
        key, config = f"model.family_config.{name}", FAMILIES[name].config_class()
        if not isinstance(fields, dict):
            raise RecipeError(f"{key} must be a section of configuration fields, found {fields!r}")
        check_names(fields, [*config.to_dict(), *config.attribute_map], f"{key}.")


def processor_class(model: Model) -> Any:
    """The processor class of the model's family."""
    return FAMILIES[family_name(model)].processor_class
