# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Methods that supervise attention with visual grounding. A new method is a new file and a line in `_METHODS`."""

import inspect
from collections.abc import Mapping
from typing import Any

from .alignment import (
    DIRECTIONS,
    GroundingTargets,
    align,
    first_region,
    grounding_targets,
    sequence_pairs,
)
from .attention_function import SUPERVISED_IMPLEMENTATIONS, SupervisedAttention, supervised_implementation
from .combined import SEPARATOR, CombinedSupervision
from .direct import DirectSupervision
from .grounding_alignment import GroundingAlignment
from .indirect import IndirectSupervision
from .losses import from_attention_maps
from .method import AttentionMethod, SupervisionMethod
from .none import NoSupervision
from .rollout import attention_rollout
from .semi_direct import SemiDirectSupervision
from .supervise import Supervision, supervise

_METHODS: dict[str, type[SupervisionMethod]] = {
    cls.name: cls
    for cls in (NoSupervision, IndirectSupervision, DirectSupervision, SemiDirectSupervision, GroundingAlignment)
}


def method_names() -> tuple[str, ...]:
    """Returns the names of all methods (`tuple[str, ...]`)."""
    return tuple(_METHODS)


def split_name(name: str) -> list[str]:
    """Returns the names of the methods that a name such as `"direct+grounding_alignment"` combines (`list[str]`)."""
    return name.split(SEPARATOR)


def get_method(name: str, **options: Any) -> SupervisionMethod:
    """Makes a supervision method; `get_method(**method.get_config_dict())` makes an equal one.

    Args:
        name (`str`): name of the method, one of `method_names()`, or several joined by "+".
        **options (`Any`): options of the method; of several methods, name of the method -> its options.

    Returns:
        `SupervisionMethod`: the method.

    Raises:
        ValueError: if the method or one of its options is unknown.
    """
    if SEPARATOR in name:
        return _combine(name, options)
    if name not in _METHODS:
        raise ValueError(f"attention supervision method '{name}' is unknown; expected one of {', '.join(_METHODS)}")
    known = list(inspect.signature(_METHODS[name]).parameters)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"method '{name}' has no option {', '.join(unknown)}; its options: {', '.join(known) or 'none'}"
        )
    return _METHODS[name](**options)


def _combine(name: str, options: Mapping[str, Any]) -> CombinedSupervision:
    names = split_name(name)
    unknown = [part for part in options if part not in names]
    if unknown:
        raise ValueError(f"method '{name}' has no part {', '.join(unknown)}; its parts: {', '.join(names)}")
    return CombinedSupervision([get_method(part, **options.get(part, {})) for part in names])


__all__ = [
    "DIRECTIONS",
    "SUPERVISED_IMPLEMENTATIONS",
    "AttentionMethod",
    "CombinedSupervision",
    "GroundingAlignment",
    "GroundingTargets",
    "SupervisedAttention",
    "Supervision",
    "SupervisionMethod",
    "align",
    "attention_rollout",
    "first_region",
    "from_attention_maps",
    "get_method",
    "grounding_targets",
    "method_names",
    "sequence_pairs",
    "split_name",
    "supervise",
    "supervised_implementation",
]
