# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Several region tables read as one; an image has the regions of each table, concatenated."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable


class JoinedRegions:
    """The part of the interface of `RegionTable` that training uses, over one or several tables."""

    def __init__(self, tables: Sequence[RegionTable], empty: bool = False):
        self.tables, self.empty = list(tables), empty
        widths = {table.feature_size for table in tables}
        if len(widths) > 1:
            found = ", ".join(f"{table.path} {table.feature_size}" for table in tables)
            raise ValueError(
                f"region tables that are read together must have features of the same width, found {found}"
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
        found = [table[image_id] for table in self.tables if image_id in table]
        if found:
            return found[0] if len(found) == 1 else join_regions(found)
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
