# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Batches of a task: rows are joined with regions, pictures and pseudo-labels, and terms of losses are counted.

With `training: {train_sampling_strategy: group_by_length}` the Trainer draws each batch from examples of similar
length, given by the column `length` of the rows, which need little padding.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.data import Sampler

from grounded_attention.modeling.task_losses import Counts
from grounded_attention.processing.phrase_arrays import TRUNCATED
from grounded_attention.supervision import SupervisionMethod
from grounded_attention.supervision.controls import control_labels
from grounded_attention.supervision.method import RowGenerators
from grounded_attention.tasks import Task
from grounded_attention.tasks.task import Examples, row_key
from grounded_attention.utils.boxes import check_shape
from grounded_attention.utils.named_types import Batch, Columns, Fields, Row
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.processes import shares_memory
from grounded_attention.utils.safe_paths import path_below

from .grounding_collator import ROW_KEYS, GroundingCollator
from .joins import ShuffledTargets

CUT_ROWS = "cut_rows"  # of any batch of a task: key of a row whose text was cut -> tokens and phrases that it lost

# Random draws of a validation or test split use this epoch number, which no training reaches.
EVALUATION = 2**31 - 1


def count_components(task: Task, method: SupervisionMethod, batch: Batch) -> Counts:
    """Loss component -> number of terms in its sum, () int64; without components that the batch does not have."""
    counted = {component.name: component.count(batch) for component in task.losses}
    return {name: count for name, count in counted.items() if count is not None} | method.counts(batch)


class Collator(GroundingCollator):
    """Makes a batch of a task's rows: looks up the regions of each row; the task builds inputs and targets. Random
    draws of a task (masking) depend only on the seed, the epoch and the key of the row.
    """

    def __init__(
        self,
        task: Task,
        processor: Any,
        regions: Any | None,
        seed: int = 0,
        *,
        split: Any | None = None,
        texts: Any | None = None,
        images: str | Path | None = None,
        options: Any | None = None,
        labels: str = "gold",
        method: SupervisionMethod | None = None,
    ):
        self._set(method, regions)
        self.task = task.configure(options)
        self.processor = processor
        self.seed = seed
        self.labels = labels
        self.split = split
        self.texts = texts
        self.images = None if images is None else Path(images)
        self._epoch = torch.zeros((), dtype=torch.int64)
        if shares_memory():  # with running DataLoader workers
            self._epoch.share_memory_()
        donors = copy(self)
        donors._epoch = torch.tensor(EVALUATION)  # an image has the same donor in every epoch, also if captions change
        self._donor_targets = ShuffledTargets(split, donors.collate, seed)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def evaluating(self, split: Any, regions: Any | None = None, metrics: Sequence[Any] = ()) -> "Collator":
        """A copy for an evaluation split; its random draws are the same in every epoch."""
        other = copy(self)
        other.split = split
        other.training = False
        other._readers = tuple(metric for metric in metrics if hasattr(metric, "prepare_batch"))
        other.regions = self.regions if regions is None else regions
        other._epoch = torch.tensor(EVALUATION)
        return other

    def __call__(self, rows: Sequence[Row]) -> Fields:
        return self.prepare(self.collate(rows), rows)

    def prepare(self, batch: Fields, rows: Sequence[Row]) -> Fields:
        if self.training and self.labels != "gold" and "phrase_regions" in batch:
            batch["gold_regions"] = batch["phrase_regions"]  # a control is one of attention, not of region words
            batch["phrase_regions"] = self._control(rows, batch).float()
            batch.pop("phrase_boxes", None)  # the control's regions are those of no box
        named = {}
        if self.training and self.method is not None:
            named = {ROW_KEYS: [row_key(row) for row in rows]}
        elif not self.training and all("image_id" in row for row in rows):
            named = {"image_id": [row["image_id"] for row in rows]}  # items of one image count together
        return {**super().prepare(batch, rows), **named, **_cut_rows(batch, rows)}

    def generators(self, rows: Sequence[Row]) -> RowGenerators:
        return lambda row: self.generator(f"{row_key(rows[row])} supervision")

    def counts(self, batch: Batch) -> Columns:
        return count_components(self.task, cast(SupervisionMethod, self.method), batch)

    def _control(self, rows: Sequence[Row], batch: Batch) -> Tensor:
        entities = []
        for row in rows:
            entities.append([phrase.get("entity") for phrase in row.get("phrases") or ()])
        images = [row["image_id"] for row in rows]
        epoch = int(self._epoch)
        return control_labels(
            self.labels,
            batch,
            images,
            entities,
            seed=self.seed,
            epoch=epoch,
            donor_targets=self._donor_targets if self.split is not None else None,
        )

    def collate(self, rows: Sequence[Row]) -> Fields:
        records = None
        if self.regions is not None:
            records = [self._regions(row) for row in rows]
        try:
            examples = Examples(
                rows,
                records,
                self.generator,
                self.split,
                self.texts,
                self._pictures(rows),
                self.training,
                None if self.regions is None else self._regions,
            )
            return self.task.collate(examples, self.processor)
        except ValueError as error:
            raise ValueError(f"{_image(rows, str(error))}{error}") from error

    def _regions(self, row: Row) -> Any:
        """The region record of the row's image, or a tuple with one record for each of its `image_ids`."""
        table: Any = self.regions
        if "image_ids" in row:
            return tuple(table[each] for each in row["image_ids"])
        record = table[row["image_id"]]
        if len(record.boxes):  # an image without detections may have no known size
            _check_size(row, record, "region table")
        return record

    def _pictures(self, rows: Sequence[Row]) -> list[Any] | None:
        if self.images is None:
            return None
        names = [row.get("file_name") or f"{row['image_id']}.jpg" for row in rows]
        pictures = [open_image(path_below(self.images, name)) for name in names]
        for row, picture in zip(rows, pictures, strict=True):
            _check_size(row, picture, "picture")
        return pictures

    def generator(self, key: str) -> np.random.Generator:
        """The random generator for the row with this key, in this epoch."""
        return np.random.default_rng((self.seed, int(self._epoch), zlib.crc32(key.encode())))


def _check_size(row: Row, held: Any, what: str) -> None:
    size: Any = (row.get("width"), row.get("height"))
    if None not in size:
        check_shape(size, (held.width, held.height), row["image_id"], what)


def _cut_rows(batch: Batch, rows: Sequence[Row]) -> Fields:
    if "cut_tokens" not in batch:
        return {}
    cut = np.reshape(batch["cut_tokens"], (len(rows), -1)).sum(1).tolist()  # a row may have several texts
    dropped = batch.get("dropped_phrases") or [[]] * len(rows)
    lost = []
    for of_row in dropped:
        lost.append([each.words for each in of_row if each.reason == TRUNCATED])
    return {CUT_ROWS: {row_key(row): each for row, *each in zip(rows, cut, lost, strict=True) if each[0]}}


def _image(rows: Sequence[Row], message: str) -> str:
    """The image of the example whose number a message of the processor contains."""
    counted = re.match(r"Example (\d+)", message)
    if counted is None or int(counted[1]) >= len(rows):
        return ""
    return f"image {rows[int(counted[1])]['image_id']}: "


def check_regions(splits: Sequence[Any], regions: Any, empty_images: bool = False) -> None:
    """Checks that every image of the rows of each split is in the region table; with `empty_images`, that one is."""
    wanted = {image_id for rows in splits for image_id in _images(rows)}
    missing = sorted(image_id for image_id in wanted if image_id not in regions)
    if not missing:
        return
    if not empty_images:
        regions[missing[0]]  # raises the error of the table, which contains the table and the image
    if len(missing) == len(wanted):
        known = ", ".join(repr(image_id) for image_id in regions.ids[:3])
        raise ValueError(
            f"none of the {len(wanted)} images of the rows is in the region table; the rows have ids such as "
            f"{missing[0]!r}, the table has {known}: give the table of these images, or another "
            "data.options.image_id_format"
        )


def _images(rows: Any) -> set[str]:
    """The image ids of the rows; a row has one `image_id` or several `image_ids`."""
    if "image_ids" in rows.column_names:
        return {image_id for images in rows["image_ids"] for image_id in images}
    return set(rows.unique("image_id"))


def limit_rows(rows: Any, limit: int | None, seed: int) -> Any:
    """At most `limit` rows (None keeps all), chosen by a shuffle with `seed` and kept in their original order."""
    if limit is None or limit >= len(rows):
        return rows
    chosen = np.random.default_rng(seed).permutation(len(rows))[:limit]
    return rows.select(np.sort(chosen))


LENGTH = "length"
# The rows of this many batches are drawn at random, then sorted by length. A small number mixes the rows better, a
# large number gives more similar lengths.
BATCHES_SORTED = 50
# Columns of our builders and tasks whose words are part of the sequence.
TEXT_COLUMNS = ("text", "captions")


def row_lengths(rows: datasets.Dataset, regions: Any | None) -> list[int]:
    """The number of words and regions of each row: its sequence length without word pieces and special tokens."""
    columns = [name for name in TEXT_COLUMNS if name in rows.column_names]
    if not columns:
        raise ValueError(
            f"cannot group the rows by length: their columns are {rows.column_names}, expected one of {TEXT_COLUMNS}"
        )
    table = rows.with_format("arrow")  # whole columns: row by row takes ten times as long
    lengths = np.zeros(len(rows), dtype=np.int64)
    for name in columns:
        if name == "captions":
            texts = pc.binary_join(table[name], " ")
        else:
            texts = table[name]
        lengths += pc.count_substring_regex(texts, r"\S+").to_numpy()
    if regions is not None:
        several = "image_ids" in rows.column_names
        images = zip(*table["image_ids"].to_pylist(), strict=True) if several else [table["image_id"].to_pylist()]
        for ids in images:
            unique, inverse = np.unique(ids, return_inverse=True)  # an image has many captions
            lengths += regions.counts(unique.tolist())[inverse]
    return lengths.tolist()


def add_lengths(rows: datasets.Dataset, regions: Any | None) -> datasets.Dataset:
    """Adds the lengths of the rows as the column `length`."""
    return rows.add_column(LENGTH, row_lengths(rows, regions))


class LengthSampler(Sampler[int]):
    """Samples indices in runs of `batch_size` rows with similar length. The runs are in random order, except that the
    run with the longest row comes first, so that a lack of memory shows in the first step.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray, batch_size: int, seed: int):
        self.lengths = np.asarray(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the order."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng([self.seed, self.epoch])
        drawn = rng.permutation(len(self))
        span = self.batch_size * BATCHES_SORTED
        groups = np.split(drawn, range(span, len(self), span))
        order = np.concatenate([group[np.argsort(-self.lengths[group], kind="stable")] for group in groups])
        whole = len(self) // self.batch_size
        batches = rng.permutation(order[: whole * self.batch_size].reshape(whole, self.batch_size))
        if whole:
            longest = int(self.lengths[batches].max(axis=1).argmax())
            batches[[0, longest]] = batches[[longest, 0]]
        return iter([*batches.ravel().tolist(), *order[whole * self.batch_size :].tolist()])
