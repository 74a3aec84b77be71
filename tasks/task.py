# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a task is: one declaration that binds data, model, losses and metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

# What every single-stream model reads.
TEXT_AND_REGIONS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "region_features",
    "region_boxes",
    "region_attention_mask",
)

Batch = Mapping[str, Any]
RowGenerator = Callable[[str], np.random.Generator]


@dataclass(frozen=True)
class LossComponent:
    """One term of a task's loss, as a sum and the number of things summed.

    Sum and count are kept apart so that a Trainer can divide by the count over all accumulated micro-batches and
    processes: ragged counts then give the loss of the large batch exactly.

    Args:
        name: what the term is called in logs (`loss_<name>`).
        total: `(outputs, batch) -> ()` tensor, the sum over the counted things, with a graph even where none is.
        count: `batch -> ()` tensor, how many things the sum runs over; needs no forward pass.
        weight: factor of the mean in the total loss.
    """

    name: str
    total: Callable[[Any, Batch], Tensor]
    count: Callable[[Batch], Tensor]
    weight: float = 1.0


class Metric(Protocol):
    """A streaming metric whose state is a dictionary of tensors that add up over batches and processes."""

    def forward_kwargs(self, batch: Batch) -> dict[str, Any]: ...

    def update(self, outputs: Any, batch: Batch) -> None: ...

    def state(self) -> dict[str, Tensor]: ...

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Task:
    """Binds a builder's rows, a sequence layout, a model class, losses and metrics.

    Args:
        name: key in the registry and in recipes.
        builder: name of the data builder (`dataset_scripts.build`).
        layout: name of the processor's sequence layout.
        model_class: a `PreTrainedModel` class.
        model_inputs: names of the batch entries handed to the model.
        losses: the task's own loss terms; attention supervision adds its own.
        metrics: makes fresh metrics for one evaluation.
        collate: `(rows, regions, processor, generator) -> batch`; `regions` holds one entry a row, or is None for text
            alone; `generator(key)` gives the random generator of one row in this epoch.
        to_rows: turns the builder's split into the rows the task trains on (identity by default).
    """

    name: str
    builder: str
    layout: str
    model_class: type[PreTrainedModel]
    model_inputs: tuple[str, ...]
    losses: tuple[LossComponent, ...]
    metrics: Callable[[], list[Metric]]
    collate: Callable[..., dict[str, Any]]
    to_rows: Callable[[Any], Any] = field(default=lambda split: split)


def region_arguments(regions: Sequence[Any] | None) -> dict[str, Any]:
    """The processor's region arguments for one `Regions` record a row (none for text alone)."""
    if regions is None:
        return {}
    return {
        "region_features": [record.features for record in regions],
        "region_boxes": [record.boxes for record in regions],
    }


def pad_labels(labels: Sequence[Sequence[int]], width: int, padding: int = -100) -> Tensor:
    """Ragged label lists as an int64 tensor (B, width), short rows filled with `padding`."""
    padded = torch.full((len(labels), width), padding, dtype=torch.int64)
    for row, values in zip(padded, labels, strict=True):
        row[: len(values)] = torch.as_tensor(values, dtype=torch.int64)
    return padded
