# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds the pictures of rows: inside of the row, or files beside it."""

import base64
import binascii
import hashlib
import os
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from grounded_attention.dataset_scripts.files.image_files import SUFFIXES
from grounded_attention.utils.named_types import AnyPath, Size
from grounded_attention.utils.open_images import picture_size
from grounded_attention.utils.safe_paths import path_below

from .raw import RowError

_SIZES = 4096  # that are remembered, for pictures that several rows have
_UPLOAD = re.compile(r"^[0-9a-f]{8}-")  # Label Studio's before the name of a file
_ROOT = re.compile(r"^(?:[A-Za-z]:(?=[\\/]))?[\\/]*")  # of a path of Windows or Linux
_ADDED = ("._", ".DS_Store", "__MACOSX", ".ipynb_checkpoints")  # by systems, beside what people keep


class MissingPicture(RowError):
    """There is no file of a picture; `name` is what the row calls it."""

    reason = "the picture is missing"

    def __init__(self, name: str, folders: list[Path]) -> None:
        searched = ", ".join(map(str, folders)) or "no folder"
        super().__init__(
            f"the picture {name} is missing", expected=f"a file in {searched}", hint="give their folder: images="
        )
        self.name = name


class UnreadablePicture(RowError):
    """The file or the bytes of a picture are no picture, or a damaged one."""

    reason = "the picture cannot be read"


class Pictures:
    """The pictures of a source: in the folder of its rows, or in `images`, outside of which rows of the Hub
    (`is_foreign`) may not name files.
    """

    def __init__(self, folder: Path | None, images: AnyPath | None, is_foreign: bool) -> None:
        self.folders = [Path(each) for each in (images, folder) if each is not None]
        self.is_foreign = is_foreign
        self._by_name: dict[str, Path] | None = None
        self._sizes: OrderedDict[str, Size] = OrderedDict()

    def find(self, image: Any, file: Path | None = None) -> Any:
        """A picture as `open_image` takes it: bytes, a mapping with them, a PIL image, an array, or an existing path;
        `file` is the one that has the row.
        """
        if isinstance(image, Mapping):
            if image.get("bytes"):
                return image
            image = image.get("path") or image.get("url") or image.get("file_name")
        if isinstance(image, str) and not image.strip():
            raise MissingPicture("(empty)", self.folders)
        if isinstance(image, str | os.PathLike):
            return self._decoded(str(image)) or str(self._file(str(image), file))
        if image is None or (hasattr(image, "__len__") and not isinstance(image, bytes) and not len(image)):
            raise MissingPicture("(null)", self.folders)
        return image

    def size(self, picture: Any) -> Size:
        """Width and height of the upright picture; of a file or bytes only the header is read."""
        if not isinstance(picture, str):
            return picture_size(picture, "its picture")
        if picture not in self._sizes:
            self._sizes[picture] = picture_size(picture, "its picture")
            if len(self._sizes) > _SIZES:
                self._sizes.popitem(last=False)
        return self._sizes[picture]

    def _decoded(self, text: str) -> bytes | None:
        """A picture that is written as a text: a data URI, or base64 alone."""
        if text.startswith("data:"):
            text = text.partition(",")[2]
        elif len(text) < 200 or re.search(r"\.\w{2,5}$", text):
            return None
        try:
            return base64.b64decode(text, validate=False) or None
        except (binascii.Error, ValueError):
            return None

    def _file(self, name: str, file: Path | None) -> Path:
        """The file of a name: where it says, below a folder, or by its last part."""
        shown = name
        name = _local_name(name)
        if not self.is_foreign and os.path.isabs(name) and os.path.isfile(name):
            return Path(name)
        relative = _ROOT.sub("", name).replace("\\", "/")
        if file is None:
            beside = []
        else:
            beside = [file.parent, file.parent.parent]
        for folder in dict.fromkeys([*self.folders[:-1], *beside, *self.folders[-1:]]):
            for below in ("", "images", "image", "img"):
                if self.is_foreign:
                    path = path_below(folder / below, relative)
                else:
                    path = folder / below / relative
                if os.path.isfile(path):
                    return path
        base = relative.rsplit("/", 1)[-1]
        for candidate in (base, _UPLOAD.sub("", base), without_object(base), unquote(base)):
            indexed = self._index().get(_composed(candidate))
            if indexed:
                return indexed
        raise MissingPicture(shown, self.folders)

    def _index(self) -> dict[str, Path]:
        """The files of all folders by their names, and by their stems where a name has no suffix."""
        if self._by_name is None:
            self._by_name = {}
            twice = set()
            for folder in self.folders:
                for path in own_files(folder, SUFFIXES):
                    for key in map(_composed, {path.name, path.stem, _UPLOAD.sub("", path.name)}):
                        if self._by_name.setdefault(key, path) != path:
                            twice.add(key)
            for key in twice:  # two files of one name: which is meant is not guessed
                del self._by_name[key]
        return self._by_name


def own_files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of a folder and the folders in it that end so, sorted, without those that a Mac adds."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(_ADDED)]
        found += [Path(parent, name) for name in names if name.lower().endswith(suffixes)]
    return sorted(path for path in found if not path.name.startswith(_ADDED))


def _composed(name: str) -> str:
    """A Mac may write an accent as a character of its own."""
    return unicodedata.normalize("NFC", name)


def picture_digest(picture: Any) -> str | None:
    """A name for a picture that is inside of a row as bytes: one picture has it in every row."""
    content = picture.get("bytes") if isinstance(picture, Mapping) else picture
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()[:32]
    return None


def _local_name(name: str) -> str:
    """The path in an address, such as Label Studio's `/data/local-files/?d=images/1.png`, or a `file://`."""
    parts = urlsplit(name)
    if "/local-files" in parts.path and (named := parse_qs(parts.query).get("d")):
        return named[0]
    if parts.scheme in ("http", "https", "s3", "gs", "file", "hf") and parts.path:
        path = unquote(parts.path)
        if parts.scheme == "file":
            return path
        return path.lstrip("/")
    return name


def without_object(name: str) -> str:
    """`COCO_train2014_000000000301_1.jpg` names an object of the picture `COCO_train2014_000000000301.jpg`."""
    return re.sub(r"(COCO_\w+?_\d{12})_\d+(\.\w+)$", r"\1\2", name)
