# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The supervision methods by name. A new one is a file, or a preset of `soft_attention.py`, and a line here."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grounded_attention.utils.lazy_registry import LazyRegistry
from grounded_attention.utils.named_types import Batch, Columns, Fields
from grounded_attention.utils.schema import check_names, make

from .method import AttentionMethod, RowGenerators, SupervisionMethod, fixed_generator

if TYPE_CHECKING:
    from .method import SupervisionMethod


class CombinedSupervision(SupervisionMethod):
    """Adds the losses of several methods, each with its own weight. At most one of them reads attention, because a
    model reports the attention that one method asks for.
    """

    def __init__(self, parts: Sequence[SupervisionMethod]):
        names = [part.name for part in parts]
        self.name = "+".join(names)  # as `registry.py` splits it
        if len(parts) < 2 or len(set(names)) < len(names) or "none" in names:
            raise ValueError(f"method {self.name!r}: expected two or more different methods, without 'none'")
        reading = [part.name for part in parts if isinstance(part, AttentionMethod)]
        if len(reading) > 1:
            raise ValueError(
                f"method {self.name!r}: {' and '.join(reading)} both supervise attention: keep one of them"
            )
        self._parts = tuple(parts)
        self.needs_grounding = any(part.needs_grounding for part in parts)
        self.choosable = next((part.choosable for part in parts if part.choosable), ())
        self.citation = "\n\n".join(dict.fromkeys(part.citation for part in parts))
        self.effect = ", and ".join(part.effect for part in parts)

    @property
    def parts(self) -> tuple[SupervisionMethod, ...]:
        return self._parts

    @property
    def model_config(self) -> Fields:
        merged: Fields = {}
        for fields in (part.model_config for part in self.parts):
            merged |= {name: value for name, value in fields.items() if value is not None or name not in merged}
        return merged

    def prepare(self, model: Any) -> None:
        for part in self.parts:
            part.prepare(model)

    def prepare_batch(self, batch: Batch, generators: RowGenerators = fixed_generator) -> Fields:
        return {key: value for part in self.parts for key, value in part.prepare_batch(batch, generators).items()}

    def forward_kwargs(self, batch: Batch) -> Fields:
        return {key: value for part in self.parts for key, value in part.forward_kwargs(batch).items()}

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {key: value for part in self.parts for key, value in part.counts(batch).items()}

    def losses(self, outputs: Any, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        return {key: value for part in self.parts for key, value in part.losses(outputs, batch).items()}

    def get_config_dict(self) -> Fields:
        configs = [part.get_config_dict() for part in self.parts]
        return {"name": self.name, **{config.pop("name"): config for config in configs}}


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

    check_names(options, parts, key, error=error)
    return CombinedSupervision([make_method(part, options.get(part, {}), f"{key}{part}.", error) for part in parts])
