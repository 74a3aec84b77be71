# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The declaration of a task, which connects data, model, losses and metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from grounded_attention.analysis.perturbation_curves import Explained
from grounded_attention.modeling.task_losses import count_labels, cross_entropy_sum
from grounded_attention.reports.failures import Judged
from grounded_attention.utils.schema import Section

from .judges import JudgeTask

# Inputs of all models with one sequence of text and regions.
TEXT_AND_REGIONS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "region_features",
    "region_boxes",
    "region_attention_mask",
    "region_token_type_ids",
    "pixel_values",
    "image_sizes",
)

Batch = Mapping[str, Any]
RowGenerator = Callable[[str], np.random.Generator]


@dataclass(frozen=True)
class LossComponent:
    """One term of the loss of a task: a sum over items, and the number of items.

    Sum and count are separate, so the Trainer can divide by the count over all accumulated micro-batches and
    processes. The result is exactly the loss of one large batch, even if micro-batches have different counts.
    """

    name: str
    total: Callable[[Any, Batch], Tensor]
    count: Callable[[Batch], Tensor | None]
    weight: float = 1.0
    begin: float = 0.0


def classification(name: str, logits: str, labels: str) -> LossComponent:
    """Makes the cross-entropy loss of a classification, over items with a label."""
    return LossComponent(
        name,
        lambda outputs, batch: cross_entropy_sum(getattr(outputs, logits), batch[labels])[0],
        lambda batch: count_labels(batch[labels]),
    )


class Metric(Protocol):
    """A streaming metric; its state is a dictionary of tensors that are summed over batches and processes."""

    def forward_kwargs(self, batch: Batch) -> dict[str, Any]: ...

    def update(self, outputs: Any, batch: Batch) -> None: ...

    def state(self) -> dict[str, Tensor]: ...

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Examples:
    """The data from which `collate` makes one batch."""

    rows: Sequence[Mapping[str, Any]]
    regions: Sequence[Any] | None
    generator: RowGenerator
    split: Sequence[Mapping[str, Any]] | None = None
    texts: Sequence[Mapping[str, Any]] | None = None
    images: Sequence[Any] | None = None
    training: bool = False
    find_regions: Callable[[Mapping[str, Any]], Any] | None = None


@dataclass(frozen=True)
class PredictionFile:
    """The official file format of the predictions of a task, which can be read and scored without a model."""

    content: str
    read: Callable[[Path], dict[str, str]]
    to_options: Callable[[dict[str, str]], dict[str, Any]]
    score: Callable[[Path, dict[str, str], str, Any], "ScoredFile"]


@dataclass(frozen=True)
class ScoredFile:
    """The scores of an official file of predictions."""

    figures: dict[str, Any]
    judged: list[Judged]
    items: dict[str, list]


@dataclass(frozen=True)
class NoOptions(Section):
    """The options of a task without options."""


@dataclass(frozen=True)
class Task:
    """Connects the rows of a builder, a sequence layout, a model head, losses and metrics.

    Args:
        name (`str`): key in the registry and in recipes.
        title (`str`): name in model cards.
        builder (`str`): default data builder (see `grounded_attention.commands.build_data`).
        columns (`tuple[str, ...]`): columns of all rows, after `to_rows`.
        head (`str`): head that the model needs, a key of `families.HEADS`.
        model_inputs (`tuple[str, ...]`): names of the batch entries that are inputs of the model.
        losses (`tuple[LossComponent, ...]`): losses of the task; attention supervision adds further losses.
        metrics (`Callable[[], list[Metric]]`): makes new metrics for one evaluation.
        collate (`Callable[[Examples, Any, Any], dict[str, Any]]`): (examples, processor, options) -> batch.
        judge (`JudgeTask`): converts outputs to predictions as words and boxes, for reports; see `judges.py`.
        example (`str`): code for model cards that uses the model, a template for `str.format`: `{word}` is a word of
            the caption, `{other}` a phrase in it. The code may use `processor`, `model`, `caption`, `phrase`, `boxes`
            and `seen` (the region arguments of the processor).
        options (`type`, *optional*, defaults to `NoOptions`): frozen dataclass of options; it raises ValueError for
            wrong values.
        model_config (`Callable[[Any], dict[str, Any]]`, *optional*): options -> fields of the model configuration.
        to_rows (`Callable[[Any], Any]`, *optional*): converts a split of the builder to the rows of the task; identity
            by default.
        to_grounded_rows (`Callable[[Any], Any]`, *optional*): the same as `to_rows`, with a column `phrases` where the
            split has phrases with boxes, for a method that needs them. Without it, all rows of the task have phrases,
            or none has.
        fit_options (`Callable[[Any, Mapping[str, Any]], Any]`, *optional*): (options, splits) -> options completed
            with values from the rows, such as a list of answers.
        remarks (`Callable[[Any, Mapping[str, Any]], list[str]]`, *optional*): (completed options, splits) -> lines
            that a run prints before training.
        configure (`Callable[[Task, Any, Any], Task]`, *optional*): (task, completed options, model configuration) ->
            task with the losses and metrics for these.
        initialise (`Callable[[Any, Any, Any], None]`, *optional*): function of model, processor and options that is
            called once before training.
        export (`Callable[[Mapping[str, list], Path], None]`, *optional*): function of the items of an evaluated split
            (see `grounded_attention.metrics.item_scores`) and a path without suffix; it writes the file for the
            evaluation server.
        prediction_file (`PredictionFile`, *optional*): the official file format of predictions.
        explained (`Explained`, *optional*): the decision that the perturbation test explains; None if an example has
            more than one decision.
        trained_options (`Callable[[Any, bool], dict[str, Any]]`, *optional*): (configuration of a trained model,
            whether there are regions) -> options for its evaluation.
        hub_task (`str`, *optional*, defaults to `"visual-grounding"`): name of the task on the Hub, for results in
            model cards.
        citation (`str`, *optional*): BibTeX entry of the paper of the task, for model cards.
        generate (`Callable[[Any, Any, Batch], dict[str, Any]]`, *optional*): function of model, tokenizer and batch
            that is called in evaluations; it returns entries to add to the batch for the metrics.
        needs_regions (`bool`, *optional*, defaults to `False`): whether the task requires regions.
        image_tokens (`bool`, *optional*, defaults to `False`): whether the regions are the image tokens of a
            vision-language model, which reads pictures and no region table.
        empty_images (`bool`, *optional*, defaults to `False`): whether an image that is not in the region table counts
            as an image without detections, instead of an error.
    """

    name: str
    title: str
    builder: str
    columns: tuple[str, ...]
    head: str
    model_inputs: tuple[str, ...]
    losses: tuple[LossComponent, ...]
    metrics: Callable[[], list[Metric]]
    collate: Callable[[Examples, Any, Any], dict[str, Any]]
    judge: JudgeTask
    example: str
    options: type = NoOptions
    model_config: Callable[[Any], dict[str, Any]] = field(default=lambda options: {})
    to_rows: Callable[[Any], Any] = field(default=lambda split: split)
    to_grounded_rows: Callable[[Any], Any] | None = None
    fit_options: Callable[[Any, Mapping[str, Any]], Any] = field(default=lambda options, splits: options)
    remarks: Callable[[Any, Mapping[str, Any]], list[str]] = field(default=lambda options, splits: [])
    configure: Callable[["Task", Any, Any], "Task"] = field(default=lambda task, options, config: task)
    initialise: Callable[[Any, Any, Any], None] = field(default=lambda model, processor, options: None)
    export: Callable[[Mapping[str, list], Path], None] | None = None
    prediction_file: PredictionFile | None = None
    explained: Explained | None = None
    trained_options: Callable[[Any, bool], dict[str, Any]] = field(default=lambda config, grounded: {})
    hub_task: str = "visual-grounding"
    citation: str | None = None
    generate: Callable[[Any, Any, Batch], dict[str, Any]] | None = None
    needs_regions: bool = False
    image_tokens: bool = False
    empty_images: bool = False

    @property
    def can_have_phrases(self) -> bool:
        """Whether rows of the task can have phrases, so that their grounding can be supervised."""
        return self.image_tokens or "phrase_mask" in self.model_inputs

    @property
    def always_has_phrases(self) -> bool:
        """Whether all rows of the task have phrases, also without a method that needs them."""
        return self.can_have_phrases and self.to_grounded_rows is None


def region_arguments(regions: Sequence[Any] | None) -> dict[str, Any]:
    """Makes the region arguments of the processor from one `Regions` record per row; empty for text only."""
    if regions is None:
        return {}
    return {
        "region_features": [record.features for record in regions],
        "region_boxes": [record.boxes for record in regions],
    }


def joined_arguments(regions: Sequence[Sequence[Any]] | None) -> dict[str, Any]:
    """Makes the region arguments of the processor for rows with several images; their regions are concatenated."""
    if regions is None:
        return {}
    return {
        "region_features": [np.concatenate([record.features for record in records]) for records in regions],
        "region_boxes": [np.concatenate([record.boxes for record in records]) for records in regions],
        "region_image_indices": [
            np.repeat(np.arange(len(records)), [len(record.boxes) for record in records]) for records in regions
        ],
    }


def pixel_arguments(images: Sequence[Any], regions: Sequence[Any] | None) -> dict[str, Any]:
    """Makes the arguments of the processor for pictures and boxes; without regions only the whole image is used."""
    boxes = [np.zeros((0, 4), dtype=np.float32)] * len(images) if regions is None else [r.boxes for r in regions]
    return {"images": list(images), "region_boxes": boxes}


def seen_arguments(images: Sequence[Any] | None, regions: Sequence[Any] | None) -> dict[str, Any]:
    """Makes the arguments of the processor for pictures, for regions, or for text only (empty)."""
    return region_arguments(regions) if images is None else pixel_arguments(images, regions)


def identify(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns `example_id` and `image_id` of each row, which metrics of single examples read in a batch."""
    return {name: [row[name] for row in rows] for name in ("example_id", "image_id")}


def pad_labels(labels: Sequence[Sequence[int]], width: int, padding: int = -100) -> Tensor:
    """Converts label lists of different lengths to an int64 tensor (B, width), padded with `padding`."""
    padded = np.full((len(labels), width), padding, dtype=np.int64)
    for row, values in zip(padded, labels, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(padded)
