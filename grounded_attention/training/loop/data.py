# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows joined with region features, and batches of them."""

import re
import zlib
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grounded_attention.processing.open_images import open_image
from grounded_attention.supervision import SupervisionMethod
from grounded_attention.supervision.controls import control_labels
from grounded_attention.tasks import Task
from grounded_attention.tasks.task import Examples

from .shuffled_targets import LentTargets

COUNTS = "component_counts"  # the entry of a training batch

# The draws of a validation or test split are those of this epoch, which no training reaches.
EVALUATION = 2**31 - 1


def count_components(task: Task, method: SupervisionMethod, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Loss component -> how many things its sum runs over, () int64; without those that the batch has nothing of."""
    counted = {component.name: component.count(batch) for component in task.losses}
    return {name: count for name, count in counted.items() if count is not None} | method.counts(batch)


class Collator:
    """Turns a task's rows into a batch: looks up each row's regions, lets the task build inputs and targets.

    Draws that a task makes (masking) depend on the seed, the epoch and the row's own key alone: they change from epoch
    to epoch and are the same after a resume, with any number of processes or workers.

    Args:
        task (`Task`): whose `collate` builds the batch.
        processor (`Any`): the model family's processor.
        regions (`Any | None`): a region table, or None for text alone.
        seed (`int`, *optional*, defaults to `0`): of the draws.
        split (`Any`, *optional*): the rows that are trained on, for tasks that draw others beside a row.
        texts (`Any`, *optional*): rows of a text corpus, for tasks that read one.
        images (`str | Path`, *optional*): folder of the pictures, `file_name` of a row or `<image_id>.jpg`, for models
            that read pixels.
        options (`Any`, *optional*): the task's options, or what they are made of.
        labels (`str`, *optional*, defaults to `"gold"`): the regions that phrases are trained with, see
            `supervision/controls.py`; what is measured is always gold.
        method (`SupervisionMethod`, *optional*): how attention is supervised: what it needs of a batch is made here,
            once, on the CPU.

    Raises:
        ValueError: from a call: what the processor or the task has against a row; the message names the image.
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
        self.task, self.processor, self.regions, self.seed = task, processor, regions, seed
        self.split, self.texts = split, texts
        self.options = options if isinstance(options, task.options) else task.options(**options or {})
        self.images = None if images is None else Path(images)
        self.training, self.labels = True, labels
        self.method = method
        self._readers: tuple[Any, ...] = () if method is None else (method,)
        self._lent = LentTargets(split, self._collate, seed)
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # seen by running DataLoader workers too

    def set_epoch(self, epoch: int) -> None:
        """Chooses the draws of this epoch."""
        self._epoch.fill_(epoch)

    def evaluating(self, split: Any, regions: Any | None = None, metrics: Sequence[Any] = ()) -> "Collator":
        """The same for a split that is measured: the same draws every time, whatever the epoch of training.

        Args:
            split (`Any`): its rows.
            regions (`Any`, *optional*): a region table in the place of the one that is trained on.
            metrics (`Sequence[Any]`, *optional*, defaults to `()`): what is measured; the batches hold what their
                `prepare_batch` makes, where they have one.
        """
        other = copy(self)
        other.split, other.training = split, False
        other._readers = tuple(metric for metric in metrics if hasattr(metric, "prepare_batch"))
        other.regions = self.regions if regions is None else regions
        other._epoch = torch.tensor(EVALUATION)
        return other

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        batch = self._collate(rows)
        if self.training and self.labels != "gold" and "phrase_regions" in batch:
            batch["phrase_regions"] = self._control(rows, batch)
        for reader in self._readers:
            batch |= reader.prepare_batch(batch)
        if self.training and self.method is not None:
            # Plain numbers, for which no device has to be waited.
            batch[COUNTS] = {
                name: int(count) for name, count in count_components(self.task, self.method, batch).items()
            }
        return batch

    def _control(self, rows: Sequence[Mapping[str, Any]], batch: Mapping[str, Any]) -> torch.Tensor:
        entities = [[phrase.get("entity_id") for phrase in row.get("phrases") or ()] for row in rows]
        images, epoch = [row["image_id"] for row in rows], int(self._epoch)
        return control_labels(
            self.labels,
            batch,
            images,
            entities,
            seed=self.seed,
            epoch=epoch,
            lender=self._lent if self.split is not None else None,
        )

    def _collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        records = None if self.regions is None else [self._regions(row) for row in rows]
        try:
            examples = Examples(
                rows, records, self.generator, self.split, self.texts, self._pictures(rows), self.training
            )
            return self.task.collate(examples, self.processor, self.options)
        except ValueError as error:
            raise ValueError(f"{_image(rows, str(error))}{error}") from error

    def _regions(self, row: Mapping[str, Any]) -> Any:
        """The region record of the row's image, or the tuple of those of its `image_ids`."""
        table: Any = self.regions
        return tuple(table[each] for each in row["image_ids"]) if "image_ids" in row else table[row["image_id"]]

    def _pictures(self, rows: Sequence[Mapping[str, Any]]) -> list[Any] | None:
        if self.images is None:
            return None
        return [open_image(self.images / (row.get("file_name") or f"{row['image_id']}.jpg")) for row in rows]

    def generator(self, key: str) -> np.random.Generator:
        """The random generator of the row with this key, in this epoch."""
        return np.random.default_rng((self.seed, int(self._epoch), zlib.crc32(key.encode())))


def _image(rows: Sequence[Mapping[str, Any]], message: str) -> str:
    """The image of the example of the batch that a processor's message counts."""
    counted = re.match(r"Example (\d+)", message)
    if counted is None or int(counted[1]) >= len(rows):
        return ""
    return f"image {rows[int(counted[1])]['image_id']}: "


def check_regions(splits: Sequence[Any], regions: Any, empty_images: bool = False) -> None:
    """Refuses rows whose image has no features, before training rather than in the middle of it.

    Args:
        splits (`Sequence[Any]`): the rows of each split.
        regions (`Any`): the region table.
        empty_images (`bool`, *optional*, defaults to `False`): whether an image without features is one without
            detections; then some must have them.
    """
    wanted = {image_id for rows in splits for image_id in _images(rows)}
    missing = sorted(wanted - set(regions.ids))
    if not missing:
        return
    if not empty_images:
        regions[missing[0]]  # raises the table's own error, which names the table and the image
    if len(missing) == len(wanted):
        known = ", ".join(repr(image_id) for image_id in regions.ids[:3])
        raise ValueError(
            f"none of the {len(wanted)} images of the rows has regions, such as {missing[0]!r}; the table holds ids "
            f"such as {known}: give the table of these images, or another data.options.image_id_format"
        )


def _images(rows: Any) -> set[str]:
    """The images of the rows, which have one each, or several as `image_ids`."""
    if "image_ids" in rows.column_names:
        return {image_id for images in rows["image_ids"] for image_id in images}
    return set(rows.unique("image_id"))


def limit_rows(rows: Any, limit: int | None, seed: int) -> Any:
    """At most `limit` rows, chosen by a seeded shuffle; in their original order."""
    if limit is None or limit >= len(rows):
        return rows
    chosen = np.random.default_rng(seed).permutation(len(rows))[:limit]
    return rows.select(np.sort(chosen))
