# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region features of many images: one float16 Arrow table, memory-mapped, one row an image.

A table is a folder:

    regions-00000.arrow   rows, an Arrow IPC stream with one record batch an image (further shards for large tables;
                          `datasets.Dataset.from_file` and any Arrow library open a shard)
    regions.index.arrow   image id -> shard, offset, length: opening a table reads this file and no features
    regions.json          manifest: provenance, feature size, checksum, summary of the import; written last
    regions.partial.json  exists instead of the manifest while rows are written

The checksum is the sum, modulo 2^128, of a BLAKE2b hash of each row's content (id, size, arrays). It depends neither
on the order of the rows nor on the Arrow version; `RegionTable.verify` recomputes it.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError, placed, refuse_if
from grounded_attention.utils.safe_paths import path_below

from .files import INDEX, MANIFEST, add_digest, digest_text, map_file, read_manifest
from .index import read_index
from .rows import Regions, RowDecoder, normalise_boxes, read_schema, row_schema
from .writer import RegionTableWriter

__all__ = ["MissingRegionsError", "RegionTable", "RegionTableWriter", "Regions", "normalise_boxes"]


class MissingRegionsError(DataError, KeyError):
    """The region table has no row for an image id."""

    # KeyError prints the message in quotes.
    __str__ = Exception.__str__


# Scheme of a path, such as "hub" -> the function that opens it: `(path, download) -> RegionTable`.
OPENERS: dict[str, Callable[[str, bool], "RegionTable"]] = {}


class RegionTable:
    """A finished region table, opened for reading.

    Access to an image maps its bytes and copies nothing: the arrays of the `Regions` are read-only views, so convert
    them (`regions.features.astype("float32")`) before you change them or pass them to `torch.from_numpy`. A table is
    cheap to pickle and safe to use in forked or spawned DataLoader workers, which open it again from its path.

    Args:
        path (`str` or `os.PathLike`): The folder of the table.

    Raises:
        MissingFileError: There is no table, or one of its files does not exist.
        DataError: The table is unfinished or damaged.

    Example:
        >>> table = RegionTable.open("data/regions")  # doctest: +SKIP
        >>> table["1016887272"].boxes.shape  # doctest: +SKIP
        (36, 4)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.info: dict[str, Any] = read_manifest(self.path)
        self._shards = self._open_shards()
        self._index = read_index(self.path / INDEX, self.info)
        self._decoder = RowDecoder(row_schema(self.info["arrays"]))

    @classmethod
    def open(cls, path: str | os.PathLike[str], download: bool = True) -> "RegionTable":
        """Opens the table in a folder or on the Hub.

        Args:
            path (`str` or `os.PathLike`): A folder, `hub://ORG/NAME` or `hub://ORG/NAME@REVISION`.
            download (`bool`, *optional*, defaults to `True`): For a table on the Hub: keep a copy on this disk and
                check its checksums. Otherwise each row is requested on access.

        Returns:
            `RegionTable`: The table.

        Raises:
            MissingFileError: There is no table, or one of its files does not exist.
            DataError: The table is unfinished or damaged, a file has a wrong size, the manifest is invalid, or the Hub
                cannot be read.
        """
        opener = OPENERS.get(str(path).partition("://")[0])
        return cls(path) if opener is None else opener(str(path), download)

    def _open_shards(self) -> list[pa.Buffer]:
        return [map_file(path_below(self.path, shard["file"]), shard["bytes"]) for shard in self.info["shards"]]

    @property
    def ids(self) -> list[str]:
        """Image ids in the order of the rows."""
        return list(self._index)

    @property
    def feature_size(self) -> int:
        """D, the number of feature values of a region."""
        return self.info["feature_size"]

    @property
    def provenance(self) -> dict[str, Any]:
        """The source of the rows, as given to the writer."""
        return self.info["provenance"]

    @property
    def class_names(self) -> list[str]:
        """The detector's names of its classes; empty if the provenance does not contain them.

        Raises:
            DataError: The provenance contains something else in their place.
        """
        detector = self.provenance.get("detector")
        named = detector.get("label_names") if isinstance(detector, Mapping) else self.provenance.get("classes")
        if not isinstance(names := named or [], list) or not all(isinstance(name, str) for name in names):
            problem = "the class names of the detector are no list of texts"
            raise DataError(problem, file=self.path / MANIFEST, found=named, hint="copy the table again")
        return list(names)

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __contains__(self, image_id: object) -> bool:
        return self._index.row(image_id) is not None

    def __getitem__(self, image_id: str) -> Regions:
        try:
            regions = self._decoder.decode(self._message(image_id))
        except DataError as error:
            if isinstance(error, MissingRegionsError):
                raise
            hint = "copy the table again, or import the features again"
            raise DataError(str(error), file=self.path, where=f"image {image_id}", hint=hint) from error
        regions.provenance = self.provenance
        return regions

    def _message(self, image_id: str) -> pa.Buffer:
        shard, offset, length = self._place(image_id)
        return self._shards[shard].slice(offset, length)

    def _place(self, image_id: str) -> tuple[int, int, int]:
        row = self._index.row(image_id)
        if row is None:
            raise self._missing(image_id)
        return self._index.place(row)

    def _missing(self, image_id: object) -> MissingRegionsError:
        examples = ", ".join(repr(known) for known in islice(self, 3))
        hint = "ids are strings" if not isinstance(image_id, str) else "import the features of this image too"
        expected = f"one of {len(self)} ids such as {examples}"
        return MissingRegionsError(
            "no regions for this image", file=self.path, found=image_id, expected=expected, hint=hint
        )

    def counts(self, ids: Iterable[str]) -> npt.NDArray[np.int64]:
        """Returns the number of regions of each image; reads only the index.

        Args:
            ids (iterable of `str`): Image ids.

        Returns:
            `np.ndarray`: (number of ids,) int64.

        Raises:
            MissingRegionsError: The table has no row for an id.
        """
        requested = list(ids)
        lengths = np.array([self._place(image_id)[2] for image_id in requested], dtype=np.int64)
        id_lengths = np.array([len(image_id.encode()) for image_id in requested], dtype=np.int64)
        first = next(iter(self))
        example = (self._place(first)[2], len(first.encode()), len(self[first]))
        counts = self._decoder.count_regions(lengths, id_lengths, example)
        for row in np.flatnonzero(counts < 0):  # a writer with other padding
            counts[row] = len(self[requested[row]])
        return counts

    def mean_features(self, ids: Iterable[str]) -> npt.NDArray[np.float32]:
        """Returns the mean feature vector of each image's regions; one image is in memory at a time.

        Args:
            ids (iterable of `str`): Image ids.

        Returns:
            `np.ndarray`: (number of ids, D) float32.

        Raises:
            MissingRegionsError: The table has no row for an id.
        """
        requested = list(ids)
        means = np.empty((len(requested), self.feature_size), dtype=np.float32)
        for row, image_id in enumerate(requested):
            means[row] = self[image_id].features.mean(axis=0, dtype=np.float32)
        return means

    def verify(self) -> None:
        """Reads every byte and compares it with the checksums.

        Raises:
            DataError: A shard or an image is damaged (the message names the first), or rows were replaced.
        """
        for shard, buffer in zip(self.info["shards"], self._shards, strict=False):  # empty for a table on the Hub
            self._verify_head(self.path / shard["file"], buffer)
        total = 0
        for image_id in self:
            try:
                regions, _, digest = self._decoder.verified(self._message(image_id))
                found = regions.image_id
            except DataError:
                found = None
            if found != image_id:
                hint = "import the features again"
                raise DataError("damaged row", file=self.path, where=f"image {image_id}", hint=hint)
            total = add_digest(total, digest)
        if digest_text(total) != self.info["checksum"]:
            expected = f"{self.info['checksum']} (of the manifest)"
            raise DataError("checksum differs", file=self.path / MANIFEST, found=digest_text(total), expected=expected)

    def _verify_head(self, shard: Path, buffer: pa.Buffer) -> None:
        with placed(file=shard, hint="import the features again"):
            schema = read_schema(pa.BufferReader(buffer))
        refuse_if(schema != self._decoder.schema, "shard of another table", file=shard, hint="copy the table again")

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"RegionTable({str(self.path)!r}: {len(self)} images, {self.feature_size} feature values)"
