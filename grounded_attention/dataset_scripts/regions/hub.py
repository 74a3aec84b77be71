# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region tables on the Hub: the same files as on a disk, in a data set repository.

`RegionTable.open("hub://ORG/NAME")` downloads them once, checks every byte, and maps them into memory.
`RegionTable.open("hub://ORG/NAME", download=False)` reads single rows, each by a request for its bytes.
"""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download

from grounded_attention.dataset_scripts.files.errors import placed
from grounded_attention.dataset_scripts.hub.hub_errors import hub_errors
from grounded_attention.dataset_scripts.hub.tables import PREFIX, RETRY_HINT, parse_place, table_folder

from .files import INDEX, KIND, MANIFEST, SHARDS
from .table import OPENERS, RegionTable


def local_folder(place: str | os.PathLike[str]) -> Path:
    """Returns the local folder of a region table, see [`table_folder`]."""
    return table_folder(place, KIND, (INDEX, SHARDS), lambda folder: RegionTable(folder).verify())


class RemoteRegionTable(RegionTable):
    """A region table on the Hub whose rows are requested one by one; only manifest and index are downloaded."""

    def __init__(self, place: str) -> None:
        name, revision = parse_place(place)
        with hub_errors("opening the region table", name, RETRY_HINT):
            # All requests use one commit, also after a new push.
            commit = HfApi().dataset_info(name, revision=revision).sha
            paths = [hf_hub_download(name, file, repo_type="dataset", revision=commit) for file in (MANIFEST, INDEX)]
        self.place = f"{PREFIX}{name}@{commit}"
        self._folder = f"datasets/{name}@{commit}"
        self._files: dict[int, Any] = {}
        super().__init__(Path(paths[0]).parent)

    def _open_shards(self) -> list[pa.Buffer]:
        return []

    def _message(self, image_id: str) -> pa.Buffer:
        shard, offset, length = self._place(image_id)
        with hub_errors(f"reading the regions of image {image_id}", self.place, "try again"):
            if shard not in self._files:
                path = f"{self._folder}/{self.info['shards'][shard]['file']}"
                # No read-ahead: the requested rows are far apart, so the bytes after a row are not needed.
                self._files[shard] = HfFileSystem().open(path, "rb", cache_type="none")
            self._files[shard].seek(offset)
            message = pa.py_buffer(self._files[shard].read(length))
        hint = "the pushed table is damaged; its owner has to push it again"
        with placed(file=self.place, where=f"image {image_id}", hint=hint):
            self._decoder.verified(message)
        return message

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["place"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"RemoteRegionTable({self.place!r}: {len(self)} images, {self.feature_size} feature values)"


def open_on_hub(place: str, download: bool) -> RegionTable:
    """Opens a table on the Hub as `RegionTable.open` does."""
    return RegionTable(local_folder(place)) if download else RemoteRegionTable(place)


OPENERS["hub"] = open_on_hub
