# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region features of many images: a `datasets` data set of float16 Arrow shards, memory-mapped, one row an image.

A table is a folder:

    regions-00000.arrow   rows, an Arrow IPC stream (further shards for large tables); `datasets.Dataset.from_file`
                          and any Arrow library open a shard, `RegionTable.dataset` all of them
    regions.index.arrow   image id and number of regions of each row: opening a table reads this file and no features
    regions.json          manifest: provenance, feature size, checksum, summary of the import; written last
    regions.partial.json  exists instead of the manifest while rows are written

The checksum is the sum, modulo 2^128, of a BLAKE2b hash of each row's content (id, size, arrays). It depends neither
on the order of the rows nor on the shards; `RegionTable.verify` recomputes it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.files.manifests import check_file
from grounded_attention.utils.named_types import AnyPath, Fields
from grounded_attention.utils.safe_paths import path_below

from .rows import Regions, normalise_boxes
from .shards import COPY_HINT, INDEX, KIND, MANIFEST, SHARDS, Shard, add_digest, digest_text, read_index, read_manifest
from .writer import RegionTableWriter

if TYPE_CHECKING:
    import datasets

__all__ = ["MissingRegionsError", "RegionTable", "RegionTableWriter", "Regions", "local_folder", "normalise_boxes"]


class MissingRegionsError(DataError, KeyError):
    """The region table has no row for an image id."""

    # KeyError prints the message in quotes.
    __str__ = Exception.__str__


def local_folder(place: AnyPath) -> Path:
    """Returns the folder of a region table; downloads one on the Hub and checks it once."""
    if not str(place).startswith("hub://"):
        return Path(place)
    from grounded_attention.dataset_scripts.hub.tables import table_folder

    return table_folder(place, KIND, (INDEX, SHARDS), lambda folder: RegionTable(folder).verify())


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

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path).absolute()
        self.info: Fields = read_manifest(self.path)
        shards = self.info["shards"]
        self._paths = [path_below(self.path, shard["file"]) for shard in shards]
        for file, shard in zip(self._paths, shards, strict=True):
            check_file(file, shard["bytes"], COPY_HINT)
        self._ends = list(accumulate(shard["rows"] for shard in shards))
        self._index = read_index(self.path / INDEX, self.info["index_bytes"], self.info["images"])
        self._shards: dict[int, Shard] = {}

    @classmethod
    def open(cls, path: AnyPath) -> "RegionTable":
        """Opens the table in a folder or on the Hub, of which it keeps a copy on this disk.

        Args:
            path (`str` or `os.PathLike`): A folder, `hub://ORG/NAME` or `hub://ORG/NAME@REVISION`.

        Returns:
            `RegionTable`: The table.

        Raises:
            MissingFileError: There is no table, or one of its files does not exist.
            DataError: The table is unfinished or damaged, a file has a wrong size, the manifest is invalid, or the Hub
                cannot be read.
        """
        return cls(local_folder(path))

    @property
    def dataset(self) -> "datasets.Dataset":
        """The rows as a data set of `datasets`, memory-mapped too."""
        import datasets

        return datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in self._paths])

    @property
    def ids(self) -> list[str]:
        """Image ids in the order of the rows."""
        return list(self._index)

    @property
    def feature_size(self) -> int:
        """D, the number of feature values of a region."""
        return self.info["feature_size"]

    @property
    def provenance(self) -> Fields:
        """The source of the rows, as given to the writer."""
        return self.info["provenance"]

    @property
    def class_names(self) -> list[str]:
        """The detector's names of its classes; empty if the provenance does not contain them.

        Raises:
            DataError: The provenance contains something else in their place.
        """
        detector = self.provenance.get("detector")
        if isinstance(detector, Mapping):
            named = detector.get("label_names")
        else:
            named = self.provenance.get("classes")
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
        shard, row = self._place(self._row(image_id))
        regions = shard.regions(row)
        regions.provenance = self.provenance
        return regions

    def _row(self, image_id: str) -> int:
        row = self._index.row(image_id)
        if row is None:
            raise self._missing(image_id)
        return row

    def _place(self, row: int) -> tuple[Shard, int]:
        """The shard that holds a row of the table, and its number there."""
        number = bisect_right(self._ends, row)
        shard = self._shards.get(number)
        if shard is None:
            facts = self.info["shards"][number]
            shard = Shard(self._paths[number], facts["bytes"])
            refuse_if(
                len(shard) != facts["rows"] or shard.arrays_of_rows != self.info["arrays"],
                "shard of another table",
                file=shard.path,
                hint=COPY_HINT,
            )
            self._shards[number] = shard
        return shard, row - self._ends[number] + len(shard)

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
        return self._index.counts[[self._row(image_id) for image_id in ids]]

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
        total = 0
        for row, image_id in enumerate(self):
            shard, place = self._place(row)
            regions, digest = shard.verified(place)
            if regions.image_id != image_id or len(regions) != self._index.counts[row]:
                problem = "damaged row, or an index of another table"
                raise DataError(problem, file=self.path, where=f"image {image_id}", hint=COPY_HINT)
            total = add_digest(total, digest)
        if digest_text(total) != self.info["checksum"]:
            expected = f"{self.info['checksum']} (of the manifest)"
            raise DataError("checksum differs", file=self.path / MANIFEST, found=digest_text(total), expected=expected)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def __repr__(self) -> str:
        return f"RegionTable({str(self.path)!r}: {len(self)} images, {self.feature_size} feature values)"
