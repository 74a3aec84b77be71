# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The base class of tasks, which connect data, model, losses and metrics."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from grounded_attention.analysis.relevancy import ReadOut
from grounded_attention.modeling.task_losses import UNLABELLED, count_labels, cross_entropy_sum
from grounded_attention.pages.failures import Judged
from grounded_attention.utils.named_types import Batch, Columns, Fields, Row
from grounded_attention.utils.schema import Section, validate

from .judges import JudgeContext, Rows

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

RowGenerator = Callable[[str], np.random.Generator]


@dataclass(frozen=True)
class LossComponent:
    """One term of the loss of a task: a sum over items, and the number of items. Sum and count are separate, so the
    Trainer can divide by the count over all accumulated micro-batches and processes.
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
    """A streaming metric; its state has tensors and lists, which are added over batches and processes."""

    def forward_kwargs(self, batch: Batch) -> Fields: ...

    def update(self, outputs: Any, batch: Batch) -> None: ...

    def state(self) -> Fields: ...

    def compute(self, state: Columns) -> Fields: ...


@dataclass(frozen=True)
class Examples:
    """The data from which `collate` makes one batch."""

    rows: Sequence[Row]
    regions: Sequence[Any] | None
    generator: RowGenerator
    split: Sequence[Columns] | None = None
    texts: Sequence[Columns] | None = None
    images: Sequence[Any] | None = None
    training: bool = False
    find_regions: Callable[[Columns], Any] | None = None


@dataclass(frozen=True)
class ScoredFile:
    """The scores of an official file of predictions."""

    numbers: Fields
    judged: list[Judged]
    items: dict[str, list]


@dataclass(frozen=True)
class NoOptions(Section):
    """The options of a task without options."""


class Task(ABC):
    """A task: the rows of a builder, the inputs of a model with some head, losses, metrics, and words for reports.

    A subclass sets the attributes, defines the abstract methods, and overrides those that are particular to it; with
    `explains` also `read_out` and `example_scores`, with `predictions` also `read_predictions` and
    `score_predictions`. `TASKS` has one object of each; `configure` makes a copy for a run.

    Attributes:
        name (`str`): key in the registry and in recipes.
        title (`str`): name in model cards.
        builder (`str`): default data builder (see `grounded_attention.commands.build_data`).
        columns (`tuple[str, ...]`): columns of all rows, after `to_rows`.
        head (`str`): head that the model needs, a key of `families.HEADS`.
        model_inputs (`tuple[str, ...]`): names of the batch entries that are inputs of the model.
        example (`str`): code for model cards that uses the model, a template for `str.format`: `{word}` is a word of
            the caption, `{other}` a phrase in it. The code may use `processor`, `model`, `caption`, `phrase`, `boxes`
            and `seen` (the region arguments of the processor).
        Options (`type`): frozen dataclass of options, a `Section`.
        options (`Any`): the options of this object.
        config (`Any`): the configuration of the model; None before there is one.
        hub_task (`str`): name of the task on the Hub, for results in model cards.
        citation (`str`, *optional*): BibTeX entry of the paper of the task, for model cards.
        predictions (`str`, *optional*): content of the official file of predictions, if such a file can be scored.
        explains (`bool`): whether maps can be tested: an example has one decision, see `read_out`.
        needs_regions (`bool`): whether the task requires regions.
        image_tokens (`bool`): whether the regions are the image tokens of a vision-language model, which reads
            pictures and no region table.
        empty_images (`bool`): whether an image that is not in the region table counts as an image without detections,
            instead of an error.
        phrases_on_demand (`bool`): whether rows have phrases only for a method that needs them.
    """

    name: str
    title: str
    builder: str
    columns: tuple[str, ...]
    head: str
    model_inputs: tuple[str, ...] = TEXT_AND_REGIONS
    example: str = ""
    Options: type = NoOptions
    hub_task: str = "visual-grounding"
    citation: str | None = None
    predictions: str | None = None
    explains: bool = False
    needs_regions: bool = False
    image_tokens: bool = False
    empty_images: bool = False
    phrases_on_demand: bool = False

    def __init__(self) -> None:
        self.options: Any = self.Options()
        self.config: Any = None

    def configure(self, options: Any = None, config: Any = None) -> Self:
        """A copy with these options (by default those of this object) and the configuration of the model.

        Raises:
            ValueError: if an option has a wrong value, or the model cannot do what the options ask for.
        """
        task = copy(self)
        chosen = self.options if options is None else options
        if isinstance(chosen, self.Options):
            task.options = chosen
        else:
            task.options = validate(self.Options, chosen, "options")
        if config is not None:
            task.config = config
            task.check_config()
        return task

    def check_config(self) -> None:  # noqa: B027 - few tasks need it
        """Raises ValueError if a model with this configuration cannot do what the options ask for."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the batch entries that the model reads only in training, to score just what has a label."""
        return ()

    @property
    def can_have_phrases(self) -> bool:
        """Whether rows of the task can have phrases, so that their grounding can be supervised."""
        return self.image_tokens or "phrase_mask" in self.model_inputs

    @property
    def always_has_phrases(self) -> bool:
        """Whether all rows of the task have phrases, also without a method that needs them."""
        return self.can_have_phrases and not self.phrases_on_demand

    # Data and model

    def to_rows(self, split: Any, grounded: bool = False) -> Any:
        """The rows of a split of the builder, with a column `phrases` for a method that needs grounding."""
        return split

    def fit_own_rows(self, rows: Any) -> Any:
        """The rows of a split of `data.source`, written as those of the task's data set are."""
        return rows

    def fit_options(self, splits: Columns) -> Any:
        """The options completed with facts about the rows, such as a list of answers."""
        return self.options

    def remarks(self, splits: Columns) -> list[str]:
        """Lines that a run prints before training."""
        return []

    def model_config(self) -> Fields:
        """The fields of a model's configuration that the options determine."""
        return {}

    def initialise(self, model: Any, processor: Any) -> None:  # noqa: B027 - few tasks need it
        """Called once before training."""

    def trained_options(self, config: Any, grounded: bool) -> Fields:
        """The options for the evaluation of a trained model with this configuration; `grounded`: with regions."""
        return {}

    @abstractmethod
    def collate(self, examples: Examples, processor: Any) -> Fields:
        """Makes a batch: inputs of the model, and what losses and metrics read."""

    # Losses and numbers

    @property
    @abstractmethod
    def losses(self) -> tuple[LossComponent, ...]:
        """The losses of the task; attention supervision adds further ones."""

    @abstractmethod
    def metrics(self) -> list[Metric]:
        """New metrics for one evaluation."""

    def generate(self, model: Any, tokenizer: Any, batch: Batch) -> Fields:
        """Entries to add to a batch of an evaluation, for the metrics."""
        return {}

    def read_out(self, outputs: Any, inputs: Batch) -> ReadOut:
        """The score of the decision that maps explain, and the position that it is read from."""
        raise self._lacks("decision to explain")

    def example_scores(self, outputs: Any, batch: Batch) -> Sequence[float | None]:
        """The score of the decision about each example; None if it has none."""
        raise self._lacks("decision to explain")

    # Reports and files

    @abstractmethod
    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        """Converts outputs to predictions as words and boxes next to the gold answers."""

    def export(self, items: Mapping[str, list], path: Path) -> bool:
        """Writes the file for the evaluation server, with a suffix, and returns True; False without such a file.
        `items` are those of an evaluated split (`grounded_attention.metrics.item_scores`)."""
        return False

    def read_predictions(self, path: Path) -> dict[str, str]:
        """Reads an official file of predictions."""
        raise self._lacks("official file of predictions")

    def prediction_options(self, predictions: Mapping[str, str]) -> Fields:
        """The options with which such a file is scored."""
        return {}

    def score_predictions(self, path: Path, predictions: Mapping[str, str], split: str, rows: Any) -> "ScoredFile":
        """Scores such a file."""
        raise self._lacks("official file of predictions")

    def _lacks(self, what: str) -> ValueError:
        return ValueError(f"the task {self.name!r} has no {what}")


def region_arguments(regions: Sequence[Any] | None) -> Fields:
    """Makes the region arguments of the processor from one `Regions` record per row; empty for text only."""
    if regions is None:
        return {}
    return {
        "region_features": [record.features for record in regions],
        "region_boxes": [record.boxes for record in regions],
    }


def joined_arguments(regions: Sequence[Sequence[Any]] | None) -> Fields:
    """Makes the region arguments of the processor for rows with several images; their regions are concatenated."""
    if regions is None:
        return {}
    joined: Fields = {"region_features": [], "region_boxes": [], "region_image_indices": []}
    for records in regions:  # of one row
        counts = [len(record.boxes) for record in records]
        joined["region_features"].append(np.concatenate([record.features for record in records]))
        joined["region_boxes"].append(np.concatenate([record.boxes for record in records]))
        joined["region_image_indices"].append(np.repeat(np.arange(len(records)), counts))
    return joined


def pixel_arguments(images: Sequence[Any], regions: Sequence[Any] | None) -> Fields:
    """Makes the arguments of the processor for pictures and boxes; without regions only the whole image is used."""
    if regions is None:
        boxes = [np.zeros((0, 4), dtype=np.float32)] * len(images)
    else:
        boxes = [r.boxes for r in regions]
    return {"images": list(images), "region_boxes": boxes}


def seen_arguments(images: Sequence[Any] | None, regions: Sequence[Any] | None) -> Fields:
    """Makes the arguments of the processor for pictures, for regions, or for text only (empty)."""
    if images is None:
        return region_arguments(regions)
    return pixel_arguments(images, regions)


def row_key(row: Row) -> str:
    """The name of a row, which decides its random draws."""
    if "example_id" in row:
        return row["example_id"]
    return row["caption_id"]


def identify(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Returns the name and the `image_id` of each row, which metrics of single examples read in a batch."""
    return {"example_id": [row_key(row) for row in rows], "image_id": [row["image_id"] for row in rows]}


def text_inputs(rows: Sequence[Row], processor: Any, **arguments: Any) -> Fields:
    """The model inputs of the `text` of rows with further arguments of the processor, and the ids of the rows."""
    inputs = processor(text=[row["text"] for row in rows], return_tensors="pt", **arguments)
    return {**inputs.reported(), **identify(rows)}


def known_labels(rows: Sequence[Row]) -> Tensor:
    """(B,) int64: the `label` of each row, -100 where it is not published."""
    return torch.tensor([row["label"] if row["label"] >= 0 else UNLABELLED for row in rows])


def choice_scores(name: str, outputs: Any, batch: Batch) -> dict[str, list[float | None]]:
    """`{name}_accuracy`: whether the choice with the highest score is right, None without a label; none at all if no
    label of the batch is known."""
    right: list[float | None] = []
    for choice, label in zip(outputs.logits.argmax(-1).tolist(), batch["labels"].tolist(), strict=True):
        right.append(None if label < 0 else float(choice == label))
    if right.count(None) == len(right):
        return {}
    return {f"{name}_accuracy": right}


def pad_labels(labels: Sequence[Sequence[int]], width: int) -> Tensor:
    """Converts label lists of different lengths to an int64 tensor (B, width), padded with -100."""
    padded = np.full((len(labels), width), -100, dtype=np.int64)
    for row, values in zip(padded, labels, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(padded)
