# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Model families by name. A new family is a new line of `_FAMILIES`; its entry may have a file of its own."""

from . import visualbert, vl_bert
from .family import HEADS, Family

_FAMILIES = (
    vl_bert.FAMILY,
    visualbert.FAMILY,
)
FAMILIES: dict[str, Family] = {family.name: family for family in _FAMILIES}
# What a recipe without `model.source` and `model.family` trains.
DEFAULT_FAMILY = "vl_bert"


def find_family(model_type: str) -> str | None:
    """The key in `FAMILIES` of the family whose classes load checkpoints of this `model_type`; None for none."""
    for name, family in FAMILIES.items():
        if model_type == name or model_type in family.reads:
            return name
    return None


__all__ = ["DEFAULT_FAMILY", "FAMILIES", "HEADS", "Family", "find_family"]
