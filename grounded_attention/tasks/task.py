# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a task is: one declaration that binds data, model, losses and metrics."""

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

from .judges import JudgeTask

# What every single-stream model reads.
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
    """One term of a task's loss, as a sum and the number of things summed.

    Sum and count are kept apart so that a Trainer can divide by the count over all accumulated micro-batches and
    processes: ragged counts then give the loss of the large batch exactly.

    Args:
        name: what the term is called in logs (`loss_<name>`).
        total: `(outputs, batch) -> ()` tensor, the sum over the counted things, with a graph even where none is.
        count: `batch -> ()` tensor, how many things the sum runs over; needs no forward pass. None where the batch
            lacks what the term is about (an objective that is switched off): the term is left out then.
        weight: factor of the mean in the total loss.
    """

    name: str
    total: Callable[[Any, Batch], Tensor]
    count: Callable[[Batch], Tensor | None]
    weight: float = 1.0


def classification(name: str, logits: str, labels: str) -> LossComponent:
    """The cross-entropy of one of several classes, over the items with a label.

    Args:
        name: what the term is called in logs.
        logits: name of the output with the scores, (..., classes).
        labels: name of the batch entry with the classes, (...) int64, -100 to leave an item out.
    """
    return LossComponent(
        name,
        lambda outputs, batch: cross_entropy_sum(getattr(outputs, logits), batch[labels])[0],
        lambda batch: count_labels(batch[labels]),
    )


class Metric(Protocol):
    """A streaming metric whose state is a dictionary of tensors that add up over batches and processes."""

    def forward_kwargs(self, batch: Batch) -> dict[str, Any]: ...

    def update(self, outputs: Any, batch: Batch) -> None: ...

    def state(self) -> dict[str, Tensor]: ...

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Examples:
    """What one batch is made from.

    Args:
        rows: the rows.
        regions: one region record a row, for a row with `image_ids` a tuple of one for each; or None: text alone, or
            regions found by the processor in `images`.
        generator: `generator(key)` is the random generator of the row with this key in this epoch.
        split: all rows of the split, to draw others from.
        texts: rows with a `text` each, of a corpus without images.
        images: one picture a row, where the model reads pixels.
        training: whether the batch is trained on; one that is measured is not augmented.
    """

    rows: Sequence[Mapping[str, Any]]
    regions: Sequence[Any] | None
    generator: RowGenerator
    split: Sequence[Mapping[str, Any]] | None = None
    texts: Sequence[Mapping[str, Any]] | None = None
    images: Sequence[Any] | None = None
    training: bool = False


@dataclass(frozen=True)
class PredictionFile:
    """The official file format of a task's predictions: how it is read, and scored without a model.

    Args:
        content (`str`): what the file contains, for help texts and errors.
        read (`Callable[[Path], dict[str, str]]`): file -> question id -> prediction. Raises `ValueError` for a damaged
            file.
        to_options (`Callable[[dict[str, str]], dict[str, Any]]`): predictions -> options of the task.
        score (`Callable[[Path, dict[str, str], str, Any], ScoredFile]`): (file, predictions, name of the split, rows)
            -> scores. Raises `ValueError` if predictions are missing or unknown.
    """

    content: str
    read: Callable[[Path], dict[str, str]]
    to_options: Callable[[dict[str, str]], dict[str, Any]]
    score: Callable[[Path, dict[str, str], str, Any], "ScoredFile"]


@dataclass(frozen=True)
class ScoredFile:
    """The scores of an official file of predictions.

    Args:
        figures (`dict[str, Any]`): name -> figure, as after training.
        judged (`list[Judged]`): the predictions.
        items (`dict[str, list]`): columns of the task's items, for `Task.export`.
    """

    figures: dict[str, Any]
    judged: list[Judged]
    items: dict[str, list]


@dataclass(frozen=True)
class NoOptions:
    """The options of a task that has none."""


@dataclass(frozen=True)
class Task:
    """Binds a builder's rows, a sequence layout, a model's head, losses and metrics.

    Args:
        name: key in the registry and in recipes.
        title: what a model card calls it.
        builder: name of the data builder (`grounded_attention.commands.build_data`) that a recipe need not name.
        columns: what every row has, after `to_rows`.
        head: what a model needs for it, a key of `families.HEADS`.
        model_inputs: names of the batch entries handed to the model.
        losses: the task's own loss terms; attention supervision adds its own.
        metrics: makes fresh metrics for one evaluation.
        collate: `(examples, processor, options) -> batch`.
        judge: from outputs to predictions in words and boxes, for the report of errors; see `judges.py`.
        example: the lines of a model card's snippet that use the model, for `str.format`: `{word}` is a word of the
            caption, `{other}` a phrase of it. The snippet has `processor`, `model`, `caption`, `phrase`, `boxes` and
            `seen` (regions as the processor takes them) by then.
        options: frozen dataclass of the task's options; its values are checked when one is made (ValueError).
        model_config: options -> configuration fields that a model needs for them.
        to_rows: turns the builder's split into the rows the task trains on (identity by default).
        fit_options: (options, splits) -> the options completed with what the rows say, such as a list of answers.
        remarks: (completed options, splits) -> lines that a run prints before it trains.
        configure: (task, completed options, model configuration) -> the task with the losses and metrics these ask
            for.
        initialise: (model, processor, options) -> None, before training and only then.
        export: (items of a measured split, path without suffix) -> None writes what the task's evaluation server
            takes; items as `grounded_attention.metrics.item_scores` has them.
        prediction_file: the official file format of predictions; None if the task has none.
        explained: the decision that the perturbation test explains; None where there is not one decision.
        trained_options: (configuration of a trained model, whether there are regions) -> the options with which that
            model is evaluated.
        hub_task: what the Hub calls the task, for the results of a model card.
        citation: BibTeX of the task's paper, for model cards.
        needs_regions: whether there is no task without regions.
        empty_images: whether an image that the region table lacks is one without detections, instead of an error.
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
    needs_regions: bool = False
    empty_images: bool = False


def region_arguments(regions: Sequence[Any] | None) -> dict[str, Any]:
    """The processor's region arguments for one `Regions` record a row (none for text alone)."""
    if regions is None:
        return {}
    return {
        "region_features": [record.features for record in regions],
        "region_boxes": [record.boxes for record in regions],
    }


def joined_arguments(regions: Sequence[Sequence[Any]] | None) -> dict[str, Any]:
    """The processor's region arguments for rows of several images, whose regions follow one another."""
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
    """The processor's arguments for pictures, with the boxes of their regions (the whole image alone for none)."""
    boxes = [np.zeros((0, 4), dtype=np.float32)] * len(images) if regions is None else [r.boxes for r in regions]
    return {"images": list(images), "region_boxes": boxes}


def seen_arguments(images: Sequence[Any] | None, regions: Sequence[Any] | None) -> dict[str, Any]:
    """The processor's arguments for what the model sees: pictures, or regions, or nothing."""
    return region_arguments(regions) if images is None else pixel_arguments(images, regions)


def identify(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """`example_id` and `image_id` of each row, as metrics of single examples read them in a batch."""
    return {name: [row[name] for row in rows] for name in ("example_id", "image_id")}


def pad_labels(labels: Sequence[Sequence[int]], width: int, padding: int = -100) -> Tensor:
    """Ragged label lists as an int64 tensor (B, width), short rows filled with `padding`."""
    padded = torch.full((len(labels), width), padding, dtype=torch.int64)
    for row, values in zip(padded, labels, strict=True):
        row[: len(values)] = torch.as_tensor(values, dtype=torch.int64)
    return padded
