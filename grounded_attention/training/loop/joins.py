# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What rows are joined with: pseudo-labels, regions of one or several tables, targets of other images."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable
from grounded_attention.labelling.labels import PseudoLabels
from grounded_attention.supervision.controls import keyed_generator
from grounded_attention.utils.named_types import Columns, Row


def join_labels(
    splits: Mapping[str, datasets.Dataset], trained: Sequence[str], labels: PseudoLabels
) -> dict[str, datasets.Dataset]:
    """Gives rows the labelled phrases of their captions: those of the trained splits, and those without phrases."""
    joined = {}
    for name, rows in splits.items():
        joined[name] = rows
        if name in trained or "phrases" not in rows.column_names:
            joined[name] = _joined(f"split {name}", rows, labels)
    return joined


def _joined(split: str, rows: datasets.Dataset, labels: PseudoLabels) -> datasets.Dataset:
    if "caption_id" not in rows.column_names:
        expected = "rows of captions"
        columns = ", ".join(rows.column_names)
        raise DataError("the rows have no column caption_id", found=columns, expected=expected)
    ids = rows["caption_id"][:]
    places = pc.index_in(pa.array(ids, pa.string()), labels.rows.data.column("caption_id").combine_chunks())
    if places.null_count:
        hint = (
            "label them with `grounded-attention data pseudo-ground`, with the same builder and options; or leave "
            "the split out with data.options.splits"
        )
        problem = f"{places.null_count} of {len(rows)} captions were never labelled"
        first = ids[places.index(None).as_py()]
        raise DataError(problem, file=labels.path, where=split, found=first, hint=hint)
    found = labels.rows.select(places.to_numpy())
    for column, what in (("image_id", "image"), ("text", "text")):
        for caption, own, labelled in zip(ids, rows[column], found[column], strict=True):
            if own != labelled:
                problem = f"the labels are those of another {what}; label the captions again"
                where = f"caption {caption}"
                raise DataError(problem, file=labels.path, where=where, found=labelled, expected=repr(own))
    joined = ["phrases", *(name for name in ("width", "height") if name not in rows.column_names)]
    rows = rows.select_columns([name for name in rows.column_names if name != "phrases"])
    return datasets.concatenate_datasets([rows, found.select_columns(joined)], axis=1)


class JoinedRegions:
    """The part of the interface of `RegionTable` that training uses, over one or several tables."""

    def __init__(self, tables: Sequence[RegionTable], empty: bool = False):
        self.tables = list(tables)
        self.empty = empty
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
            if len(records) == 1:
                return records[0]
            return join_regions(records)
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
    joined = {}
    for name in shared:
        if len({arrays[name].shape[1:] for arrays in held}) == 1:
            joined[name] = np.concatenate([arrays[name] for arrays in held])
    return Regions(first.image_id, first.width, first.height, **joined)


DRAWS = 1000  # rows to draw before the split counts as one with a single grounded image
REMEMBERED = 10_000  # images in the cache; a split has several rows of each image


class ShuffledTargets:
    """Finds a donor image for each image, and returns the targets of the donor: `targets(image_id)`."""

    def __init__(self, split: Any, collate: Callable[[Sequence[Columns]], Columns], seed: int):
        self.split = split
        self.collate = collate
        self.seed = seed
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
            if row["image_id"] == image_id:
                targets = []
            else:
                targets = self._targets(row)
            if targets:
                return targets
        raise ValueError(
            f"found no grounded phrase of an image other than {image_id!r} in {len(self.split)} rows: "
            "supervision.labels=shuffled needs rows of several images with grounded phrases"
        )

    def _targets(self, row: Row) -> list[np.ndarray]:
        batch = self.collate([row])
        gold = batch["phrase_regions"][0][:, batch["region_candidate_mask"][0].bool()].bool().numpy()
        return [np.flatnonzero(regions) for regions in gold if regions.any()]
