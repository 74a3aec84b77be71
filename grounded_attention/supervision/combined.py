# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Several supervision methods at once, such as "direct+grounding_alignment"."""

from collections.abc import Sequence
from typing import Any

from grounded_attention.modeling.task_losses import Counts, Losses
from grounded_attention.utils.named_types import Batch, Fields

from .method import AttentionMethod, RowGenerators, SupervisionMethod, fixed_generator


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

    def counts(self, batch: Batch) -> Counts:
        return {key: value for part in self.parts for key, value in part.counts(batch).items()}

    def losses(self, outputs: Any, batch: Batch) -> Losses:
        return {key: value for part in self.parts for key, value in part.losses(outputs, batch).items()}

    def get_config_dict(self) -> Fields:
        configs = [part.get_config_dict() for part in self.parts]
        return {"name": self.name, **{config.pop("name"): config for config in configs}}
