# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The supervision methods by name. A new one is a file, or a preset of `soft_attention.py`, and a line here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grounded_attention.utils.lazy_registry import LazyRegistry
from grounded_attention.utils.named_types import Columns
from grounded_attention.utils.schema import check_names, make

if TYPE_CHECKING:
    from .method import SupervisionMethod

METHODS: "Mapping[str, type[SupervisionMethod]]" = LazyRegistry(
    "grounded_attention.supervision",
    {
        "none": "none:NoSupervision",
        "indirect": "indirect:IndirectSupervision",
        "direct": "direct:DirectSupervision",
        "semi_direct": "semi_direct:SemiDirectSupervision",
        "grounding_alignment": "grounding_alignment:GroundingAlignment",
        "kl_attention": "soft_attention:KLAttention",
        "pointer": "soft_attention:Pointer",
        "actor": "actor:Actor",
        "gaze": "soft_attention:Gaze",
    },
)
SEPARATOR = "+"  # between the names of methods that are combined
# The regions that supervise a phrase; those after the first are controls (`controls.py`).
LABELS = ("gold", "random", "random_each_epoch", "shuffled", "irrelevant")


def method_names() -> tuple[str, ...]:
    """Returns the names of all methods (`tuple[str, ...]`)."""
    return tuple(METHODS)


def split_name(name: str) -> list[str]:
    """Returns the names of the methods that a name such as `"direct+grounding_alignment"` combines (`list[str]`)."""
    return name.split(SEPARATOR)


def get_method(name: str, **options: Any) -> "SupervisionMethod":
    """Makes a supervision method; `get_method(**method.get_config_dict())` makes an equal one.

    Args:
        name (`str`): name of the method, one of `method_names()`, or several joined by "+".
        **options (`Any`): options of the method; of several methods, name of the method -> its options.

    Returns:
        `SupervisionMethod`: the method.

    Raises:
        ValueError: if the method or one of its options is unknown, or an option has another value.
    """
    return make_method(name, options)


def make_method(
    name: str, options: Columns, key: str = "", error: type[ValueError] = ValueError
) -> "SupervisionMethod":
    """Makes a method; `key` is where a user gave its options."""
    parts = split_name(name)
    check_names(parts, METHODS, "method=", error=error)
    if len(parts) == 1:
        return make(METHODS[name], options, key, error=error)
    from .combined import CombinedSupervision

    check_names(options, parts, key, error=error)
    return CombinedSupervision([make_method(part, options.get(part, {}), f"{key}{part}.", error) for part in parts])
