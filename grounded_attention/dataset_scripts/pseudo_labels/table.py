# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pseudo-labels of many captions: one row a caption, in Parquet files, read through memory-mapped Arrow files.

A table is a folder:

    pseudo_labels-00000.parquet  rows in the order of the captions (further shards for large tables)
    pseudo_labels.json           manifest: provenance, statistics, checksums; written last
    pseudo_labels.partial.json   exists instead of the manifest while captions are labelled, beside the folder parts/
"""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.manifests import check_file, sha256
from grounded_attention.dataset_scripts.hub.tables import table_folder
from grounded_attention.utils.safe_paths import path_below

from .files import KIND, SHARDS, read_manifest
from .rows import SCHEMA, CaptionLabels, check_labels

_COPY_HINT = "copy the pseudo-labels again, or make them again"


class MissingLabelsError(DataError, KeyError):
    """The table has no row for a caption."""

    # KeyError prints the message in quotes.
    __str__ = Exception.__str__


class PseudoLabelTable:
    """Finished pseudo-labels, opened for reading.

    The rows are converted once into Arrow files in the cache of `datasets` and mapped into memory, so memory holds the
    ids of the captions but no boxes. A table is cheap to pickle, and workers of a DataLoader share the files.

    Example:
        >>> table = PseudoLabelTable.open("data/pseudo_labels")  # doctest: +SKIP
        >>> table["1016887272#0"].phrases[0]["boxes"]  # doctest: +SKIP
        [[0.1, 0.2, 0.4, 0.9]]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.info: dict[str, Any] = read_manifest(self.path)
        self._rows = _map_rows(self._shards())
        ids = self._rows.data.column("caption_id").combine_chunks()
        self._ids = pa.concat_arrays(ids.chunks) if isinstance(ids, pa.ChunkedArray) else ids
        self._order = pc.sort_indices(self._ids).to_numpy()

    @classmethod
    def open(cls, place: str | os.PathLike[str]) -> "PseudoLabelTable":
        """Opens pseudo-labels in a folder or on the Hub."""
        return cls(table_folder(place, KIND, (SHARDS,), lambda folder: cls(folder).verify()))

    def _shards(self) -> list[Path]:
        paths = [path_below(self.path, shard["file"]) for shard in self.info["shards"]]
        for path, shard in zip(paths, self.info["shards"], strict=True):
            check_file(path, shard["bytes"], _COPY_HINT)
        return paths

    @property
    def provenance(self) -> dict[str, Any]:
        """The captions, the source of the phrases, the grounder and its options."""
        return self.info["provenance"]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return (caption_id.as_py() for caption_id in self._ids)

    def __contains__(self, caption_id: object) -> bool:
        return isinstance(caption_id, str) and self._find(caption_id) is not None

    def __getitem__(self, caption_id: str) -> CaptionLabels:
        row = self._find(caption_id)
        if row is None:
            hint = "label its captions with `grounded-attention data pseudo-ground`"
            raise MissingLabelsError("the caption was never labelled", file=self.path, found=caption_id, hint=hint)
        return self._labels(row)

    def _labels(self, place: int) -> CaptionLabels:
        """A row, which was written by somebody else."""
        labels = CaptionLabels(**self._rows[place])
        try:
            check_labels(labels)
        except TypeError as error:
            problem = f"row {place} of the pseudo-labels has a null"
            raise DataError(
                problem, file=self.path, expected="phrases with boxes and scores", hint=_COPY_HINT
            ) from error
        return labels

    def _find(self, caption_id: str) -> int | None:
        place = bisect_left(self._order, caption_id, key=lambda row: self._ids[row].as_py())
        if place == len(self._order):
            return None
        row = int(self._order[place])
        return row if self._ids[row].as_py() == caption_id else None

    def missing(self, caption_ids: Iterable[str]) -> list[str]:
        """Returns the ids that the table does not have, in their order."""
        wanted = pa.array(caption_ids, pa.string())
        unknown = pc.invert(pc.is_in(wanted, value_set=self._ids))
        return wanted.filter(unknown).to_pylist()

    def rows(self) -> Iterator[CaptionLabels]:
        """Yields all rows in order; few are in memory at a time."""
        return map(self._labels, range(len(self)))

    def chosen(self, places: Iterable[int]) -> Iterator[CaptionLabels]:
        """Yields the rows at these places."""
        return (self._labels(int(place)) for place in places)

    def verify(self) -> None:
        """Reads every file and compares it with its checksum; checks every row."""
        for path, shard in zip(self._shards(), self.info["shards"], strict=True):
            if sha256(path) != shard["sha256"]:
                raise DataError("the file is damaged: its checksum differs", file=path, hint=_COPY_HINT)
        if len(self) != self.info["statistics"]["captions"] or len(np.unique(self._ids)) != len(self):
            expected = f"{self.info['statistics']['captions']} captions, each once"
            raise DataError("the rows are not those of the manifest", file=self.path, expected=expected)
        for _ in self.rows():
            pass

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"PseudoLabelTable({str(self.path)!r}: {len(self)} captions)"


def _map_rows(paths: list[Path]) -> datasets.Dataset:
    """The rows of Parquet files as Arrow files in the cache of `datasets`."""
    try:
        rows = datasets.Dataset.from_parquet(
            [str(path) for path in paths], features=datasets.Features.from_arrow_schema(SCHEMA)
        )
    except (pa.ArrowException, datasets.exceptions.DatasetGenerationError) as error:
        problem = "not the Parquet files of pseudo-labels"
        raise DataError(problem, file=paths[0], found=str(error), hint=_COPY_HINT) from error
    return rows
