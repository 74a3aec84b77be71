# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Model families by name. A new family is one new line in `_FAMILIES`, usually with an entry file in this folder."""

from . import lxmert, vilbert, visualbert, vl_bert
from .family import HEADS, Family
from .vlm import VLM

_FAMILIES = (
    vl_bert.FAMILY,
    visualbert.FAMILY,
    vilbert.FAMILY,
    lxmert.FAMILY,
)
FAMILIES: dict[str, Family] = {family.name: family for family in _FAMILIES}
# The family of a recipe without `model.source` and `model.family`.
DEFAULT_FAMILY = "vl_bert"


def find_family(model_type: str) -> str | None:
    """Finds the family whose classes load checkpoints of a `model_type`."""
    for name, family in FAMILIES.items():
        if model_type == name or model_type in family.reads:
            return name
    return None


__all__ = ["DEFAULT_FAMILY", "FAMILIES", "HEADS", "VLM", "Family", "find_family"]
