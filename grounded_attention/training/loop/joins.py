# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What rows are joined with: pseudo-labels, regions of one or several tables, targets of other images."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from grounded_attention.dataset_scripts.files.errors import DataError, placed
from grounded_attention.dataset_scripts.pseudo_labels.rows import check_labels
from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable
from grounded_attention.supervision.controls import keyed_generator
from grounded_attention.utils.boxes import check_shape

Row = Mapping[str, Any]


def join_labels(
    rows: Sequence[Row], table: PseudoLabelTable, records: Sequence[Any] | None = None, training: bool = True
) -> list[Row]:
    """Gives rows the phrases of their captions."""
    return [
        _join(row, table, None if records is None else records[place])
        if training or row.get("phrases") is None
        else row
        for place, row in enumerate(rows)
    ]


def _join(row: Row, table: PseudoLabelTable, record: Any) -> Row:
    labels = table[row["caption_id"]]
    with placed(file=table.path):
        check_labels(labels, row["text"])
    if labels.image_id != row["image_id"]:
        problem, where = "the labels are those of another image", f"caption {labels.caption_id}"
        raise DataError(problem, file=table.path, where=where, found=labels.image_id, expected=repr(row["image_id"]))
    if record is not None and len(record):  # an image without detections may have no known size
        size = (labels.width, labels.height) if labels.width else None
        held, source = (record.width, record.height), f"pseudo-labels {table.path}"
        check_shape(size, held, labels.image_id, "region table", of=source)
    return {**row, "phrases": labels.phrases}


def check_label_rows(splits: Mapping[str, Any], trained: Sequence[str], table: PseudoLabelTable) -> None:
    """Checks before training that every caption that needs labels has some."""
    for name, rows in splits.items():
        if "caption_id" not in rows.column_names:
            expected, columns = "rows of captions", ", ".join(rows.column_names)
            raise DataError("the rows have no column caption_id", found=columns, expected=expected)
        if name not in trained and "phrases" in rows.column_names:
            continue
        missing = table.missing(rows["caption_id"])
        if missing:
            problem = f"{len(missing)} of {len(rows)} captions were never labelled"
            hint = (
                "label them with `grounded-attention data pseudo-ground`, with the same builder and options; or leave "
                "the split out with data.options.splits"
            )
            raise DataError(problem, file=table.path, where=f"split {name}", found=missing[0], hint=hint)


class JoinedRegions:
    """The part of the interface of `RegionTable` that training uses, over one or several tables."""

    def __init__(self, tables: Sequence[RegionTable], empty: bool = False):
        self.tables, self.empty = list(tables), empty
        widths = {table.feature_size for table in tables}
        if len(widths) > 1:
            listed = ", ".join(f"{table.path} {table.feature_size}" for table in tables)
            raise ValueError(
                f"region tables that are read together must have features of the same width, found {listed}"
            )

    @property
    def ids(self) -> list[str]:
        """Ids of the images that are in at least one table."""
        return list(dict.fromkeys(image_id for table in self.tables for image_id in table.ids))

    @property
    def feature_size(self) -> int:
        """D, the number of feature values per region."""
        return self.tables[0].feature_size

    @property
    def class_names(self) -> list[str]:
        """Class names of the first table; if classes matter, all tables have the same detector."""
        return self.tables[0].class_names

    def __contains__(self, image_id: object) -> bool:
        return any(image_id in table for table in self.tables)

    def __getitem__(self, image_id: str) -> Regions:
        records = [table[image_id] for table in self.tables if image_id in table]
        if records:
            return records[0] if len(records) == 1 else join_regions(records)
        if self.empty:
            features = np.zeros((0, self.feature_size), dtype=np.float16)
            return Regions(image_id, 1, 1, np.zeros((0, 4), dtype=np.float32), features)
        return self.tables[0][image_id]  # raises the error of the table

    def counts(self, ids: Iterable[str]) -> npt.NDArray[np.int64]:
        """The number of regions of each image: (number of ids,) int64."""
        wanted = list(ids)
        total = np.zeros(len(wanted), dtype=np.int64)
        for table in self.tables:
            held = np.array([image_id in table for image_id in wanted], dtype=bool)
            total[held] += table.counts([image_id for image_id, there in zip(wanted, held, strict=True) if there])
        return total


def join_regions(records: Sequence[Regions]) -> Regions:
    """Concatenates the records of one image; keeps the arrays that all records have."""
    first = records[0]
    sizes = [(record.width, record.height) for record in records]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"image {first.image_id}: region tables that are read together have different sizes for it: {sizes}"
        )
    held = [record.arrays() for record in records]
    shared = [name for name in held[0] if all(name in arrays for arrays in held)]
    joined = {
        name: np.concatenate([arrays[name] for arrays in held])
        for name in shared
        if len({arrays[name].shape[1:] for arrays in held}) == 1
    }
    return Regions(first.image_id, first.width, first.height, **joined)


DRAWS = 1000  # rows to draw before the split counts as one with a single grounded image
REMEMBERED = 10_000  # images in the cache; a split has several rows of each image


class ShuffledTargets:
    """Finds a donor image for each image, and returns the targets of the donor: `targets(image_id)`."""

    def __init__(self, split: Any, collate: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]], seed: int):
        self.split, self.collate, self.seed = split, collate, seed
        self._known: OrderedDict[str, Sequence[np.ndarray]] = OrderedDict()

    def __call__(self, image_id: str) -> Sequence[np.ndarray]:
        """The targets of the donor of an image."""
        if image_id not in self._known:
            self._known[image_id] = self._draw(image_id)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[image_id]

    def _draw(self, image_id: str) -> Sequence[np.ndarray]:
        # The word is part of the seed: another word would draw other donors and change published numbers.
        rng = keyed_generator(self.seed, "lender", image_id)
        for _ in range(DRAWS):
            row = self.split[int(rng.integers(len(self.split)))]
            targets = [] if row["image_id"] == image_id else self._targets(row)
            if targets:
                return targets
        raise ValueError(
            f"found no grounded phrase of an image other than {image_id!r} in {len(self.split)} rows: "
            "supervision.labels=shuffled needs rows of several images with grounded phrases"
        )

    def _targets(self, row: Mapping[str, Any]) -> list[np.ndarray]:
        batch = self.collate([row])
        gold = batch["phrase_regions"][0][:, batch["region_candidate_mask"][0].bool()].bool().numpy()
        return [np.flatnonzero(regions) for regions in gold if regions.any()]
