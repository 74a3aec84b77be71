# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region tables on the Hub: the same files as on a disk, in a data set repository.

`RegionTable.open("hub://ORG/NAME")` downloads them once, checks every byte, and maps them;
`RegionTable.open("hub://ORG/NAME", download=False)` reads rows one by one, each by a request for its bytes.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from huggingface_hub import HfApi, HfFileSystem, constants, hf_hub_download, snapshot_download

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.hub.hub_errors import hub_errors

from .files import INDEX, MANIFEST, SHARDS
from .table import OPENERS, RegionTable

PREFIX = "hub://"
_AGAIN = "run it again; what is downloaded already is kept"


def is_on_hub(place: str | os.PathLike[str]) -> bool:
    """Whether a place is a repository, `hub://ORG/NAME` or `hub://ORG/NAME@REVISION`."""
    return str(place).startswith(PREFIX)


def parse_place(place: str) -> tuple[str, str | None]:
    """Repository and revision of `hub://ORG/NAME[@REVISION]`.

    Raises:
        DataError: It is none.
    """
    name, _, revision = place.removeprefix(PREFIX).rstrip("/").partition("@")
    if not is_on_hub(place) or name.count("/") != 1 or not all(name.split("/")):
        raise DataError("no place on the Hub", found=place, expected="hub://ORG/NAME or hub://ORG/NAME@REVISION")
    return name, revision or None


def local_folder(place: str | os.PathLike[str]) -> Path:
    """The folder of a region table: `place`, or where a table of the Hub was downloaded to; its name has the commit.

    A download is compared with the checksums once. Without a connection, what was downloaded before is used.

    Raises:
        HubError: It cannot be downloaded.
        MissingFileError: The repository holds no region table.
        DataError: What was downloaded is damaged.
    """
    if not is_on_hub(place):
        return Path(place)
    name, revision = parse_place(str(place))
    with hub_errors("the download of the region table", name, _AGAIN):
        folder = Path(
            snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=[MANIFEST, INDEX, SHARDS])
        )
    if not (folder / MANIFEST).is_file():
        hint = "push one with `grounded-attention regions push`"
        raise MissingFileError("no region table in this repository", where=name, expected=MANIFEST, hint=hint)
    _verify_once(folder, name)
    return folder


def _verify_once(folder: Path, name: str) -> None:
    """Reads all of a table when its files are not those that were read before."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    state = "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)
    key = hashlib.sha256(state.encode()).hexdigest()
    mark = Path(constants.HF_HOME) / "grounded-attention" / "verified-regions" / key
    if mark.exists():
        return
    try:
        RegionTable(folder).verify()
    except DataError as error:
        hint = f"delete {folder.parents[1]} and download again; if that is no help, the pushed table is damaged"
        raise DataError(str(error), where=name, hint=hint) from error
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


class RemoteRegionTable(RegionTable):
    """A region table on the Hub whose rows are requested one by one; manifest and index alone are downloaded.

    Each row is compared with its checksum. Good for a look, or for few images; to train, download the table.
    """

    def __init__(self, place: str) -> None:
        name, revision = parse_place(place)
        with hub_errors("opening the region table", name, _AGAIN):
            # One commit for all requests, whatever is pushed meanwhile.
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
                # Exactly the bytes that are asked for: rows lie apart, so what follows one is of no use.
                self._files[shard] = HfFileSystem().open(path, "rb", cache_type="none")
            self._files[shard].seek(offset)
            message = pa.py_buffer(self._files[shard].read(length))
        try:
            self._decoder.verified(message)
        except DataError as error:
            hint = "the pushed table is damaged; its owner has to push it again"
            raise DataError(str(error), file=self.place, where=f"image {image_id}", hint=hint) from error
        return message

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["place"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"RemoteRegionTable({self.place!r}: {len(self)} images, {self.feature_size} feature values)"


def open_on_hub(place: str, download: bool) -> RegionTable:
    """Opens a table on the Hub, see `RegionTable.open`."""
    return RegionTable(local_folder(place)) if download else RemoteRegionTable(place)


OPENERS["hub"] = open_on_hub
