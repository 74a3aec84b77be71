# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Records of files with rows, and of data sets of `datasets`."""

import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.files.records import json_elements, json_lines, text_lines
from grounded_attention.utils.bounded_files import FileError, read_json
from grounded_attention.utils.named_types import Columns

from .raw import RowError
from .readings import Readings

# The part of the images that is held out where rows are trained on.
HELD_OUT = 0.1


def image_order(image_id: str, seed: int = 0) -> int:
    """A number below 2**64 that looks random, by which images are shuffled."""
    digest = hashlib.sha256(f"{seed}\0{image_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


LONGEST_ROW = 2**25  # characters of CSV; a field may hold a picture
_SPLIT = re.compile(r"(?:^|[/_.-])(train|training|validation|valid|val|dev|test\w*)(?=[/_.-]|\d|$)", re.IGNORECASE)
_SAME_SPLIT = {"valid": "validation", "val": "validation", "dev": "validation", "training": "train"}
ROWS = 64  # of a Parquet file that are decoded together
Record = tuple[Path | None, str, Columns]  # its file, its place there, its columns
Records = Iterator[Record]
Parts = dict[str, list[Callable[[], Records]]]  # Split or "" -> functions that each iterate over the records of a file


@dataclass
class Source:
    """Records to read, again and again."""

    name: str  # For errors and reports
    parts: Parts
    folder: Path | None = None  # Where the names of pictures start
    is_foreign: bool = False  # Whether it comes from the Hub
    kind: str = ""  # The format, if it says more than its columns: "coco", "yolo", "voc", "label studio"
    readings: Readings = ()  # How the format writes boxes
    # Column, or column and key -> number -> name of a class
    classes: dict[str, dict[Any, str]] = field(default_factory=dict)

    def records(self, split: str | None) -> Iterator[tuple[str, Record]]:
        """The split of each record, and the record, of all parts or of those of a split."""
        for name, part in self.parts.items():
            if split is None or name == split:
                for read in part:
                    for each in read():
                        yield name, each


def open_files(paths: Sequence[Path], folder: Path, name: str) -> Source:
    """Opens files with rows, each for the split of its name."""
    if not folder.is_dir():
        folder = folder.parent
    parts: Parts = {}
    classes: dict[str, dict[Any, str]] = {}
    for path in paths:
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise DataError("a kind of file that is not read", file=path, expected=", ".join(FILES))
        if path.exists() and not path.is_file():  # a pipe without a writer would block for ever
            raise DataError("not a regular file", file=path, expected="a file with rows")
        if reader is _parquet:
            classes |= class_names(_stored_features(_open_parquet(path).schema_arrow))
        parts.setdefault(split_of(path, folder), []).append(partial(reader, path))
    return Source(name, parts, folder, classes=classes)


def split_of(path: Path, folder: Path) -> str:
    """The split that the name of a file or folder says, such as `data/val-00000-of-00001.parquet`; or ""."""
    named = _SPLIT.findall(path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name)
    if named:
        return split_name(named[-1])
    return ""


def split_name(name: str) -> str:
    """The one name of a split that has several, such as `val` and `dev`."""
    return _SAME_SPLIT.get(name.lower(), name)


def _jsonl(path: Path) -> Records:
    for record in json_lines(path, "expected one JSON object a line"):
        yield path, record.where, _object(record.values, path, record.where)


def _object(value: Any, path: Path | None, where: str) -> Columns:
    if not isinstance(value, Mapping):
        raise DataError("not a row", file=path, where=where, found=value, expected="an object with columns")
    return dict(value)


def _json(path: Path) -> Records:
    """The elements of a list, of the only list of an object, or the members of an object of objects."""
    if starts_with(path, b"["):
        for _, index, element in json_elements(path, "expected a list of rows"):
            yield path, f"element {index}", _object(element, path, f"element {index}")
        return
    whole = read_json(path)
    if not isinstance(whole, Mapping):
        raise DataError("no rows", file=path, found=whole, expected="a list of objects")
    lists = {key: value for key, value in whole.items() if value and isinstance(value, list) and _are_objects(value)}
    columns = ("conversations", "messages", "phrases", "objects", "annotations", "regions", "elements", "points")
    is_row = {*lists} & {*columns} or {"image", "file_name", "imagePath", "text", "caption"} & whole.keys()
    if len(lists) == 1 and not is_row:
        for index, element in enumerate(next(iter(lists.values()))):
            yield path, f"element {index}", dict(element)
    elif whole and _are_objects(whole.values()):
        for key, value in whole.items():
            yield path, f"member {key!r}", {"id": key, **value}
    else:
        yield path, "the object", dict(whole)


def _are_objects(values: Iterable[Any]) -> bool:
    return all(isinstance(each, Mapping) for each in values)


def starts_with(path: Path, mark: bytes) -> bool:
    """Whether a JSON file begins with this bracket."""
    with path.open("rb") as file:
        return file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(mark)


@contextmanager
def in_words(problem: str, **place: Any) -> Iterator[None]:
    """Adds a place to errors of data, and makes one of what a value of an unexpected type ends with."""
    try:
        yield
    except RowError as error:
        raise DataError(str(error), **place) from None
    except (DataError, FileError):
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{problem} ({type(error).__name__}: {error})", **place) from error


def _filled_rows(reader: Any) -> Iterator[list[str]]:
    """The rows that are not empty. The limit of a field is the process's, so it is raised for the row."""
    while True:
        before = csv.field_size_limit(LONGEST_ROW)
        try:
            cells = next(reader, None)
        finally:
            csv.field_size_limit(before)
        if cells is None:
            return
        if cells:
            yield cells


def _csv(path: Path) -> Records:
    source = text_lines(path, "expected a table in UTF-8")
    _, first = next(source, (1, ""))
    length = 0  # of the row, which goes on where a quotation mark is not closed

    def lines() -> Iterator[str]:
        nonlocal length
        for line in chain([first], (line for _, line in source)):
            length += len(line)
            if length > LONGEST_ROW:
                hint = "is a quotation mark not closed? Large pictures are better given as files, or in Parquet"
                raise DataError("a row is too long", file=path, where=f"after line {reader.line_num}", hint=hint)
            yield f"{line}\n"

    if "\t" in first:
        comma = "\t"
    else:
        comma = ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader(lines(), delimiter=comma)
    rows = _filled_rows(reader)
    try:
        names = next(rows, [])
        _check_names(path, names)
        for cells in rows:
            length = 0
            where = f"line {reader.line_num}"
            if len(cells) != len(names):
                expected = f"{len(names)}, as in the first line"
                raise DataError("a row of another length", file=path, where=where, found=len(cells), expected=expected)
            yield path, where, dict(zip(names, (cell or None for cell in cells), strict=True))
    except csv.Error as error:
        raise DataError(f"no CSV ({error})", file=path, where=f"after line {reader.line_num}") from None


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Of two columns of one name, which a table may have, rows would have the last one."""
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    refuse_if(twice, "a column is there twice", file=path, found=twice, hint="rename one of them")


def _open_parquet(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"no Parquet file ({error})", file=path, hint="it is damaged or cut: get it again") from None
    _check_names(path, file.schema_arrow.names)
    return file


def _parquet(path: Path) -> Records:
    row = 0
    try:
        for batch in _open_parquet(path).iter_batches(batch_size=ROWS):
            for record in batch.to_pylist():
                yield path, f"row {row}", record
                row += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"damaged ({error})", file=path, where=f"after row {row}", hint="get it again") from None


_READERS = {".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _json, ".parquet": _parquet, ".csv": _csv, ".tsv": _csv}
FILES = tuple(_READERS)


def class_names(features: Any) -> dict[str, dict[Any, str]]:
    """Column, or column and key -> number -> name of a class, from features of `datasets` as a dictionary."""
    names: dict[str, dict[Any, str]] = {}

    def visit(feature: Any, place: str) -> None:
        if isinstance(feature, list):
            feature = {"feature": feature[0]} if feature else {}
        if not isinstance(feature, Mapping):
            return
        if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), Iterable):
            names[place] = dict(enumerate(feature["names"]))
        elif "feature" in feature:
            visit(feature["feature"], place)
        else:
            for key, each in feature.items():
                visit(each, f"{place}.{key}" if place else key)

    visit(features, "")
    return names


def _stored_features(schema: pa.Schema) -> Any:
    """The features that `datasets` has written into a Parquet file; `datasets` itself takes seconds to import."""
    try:
        return json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}


def dataset_records(source: Any) -> Records:
    """The rows of a `Dataset` or `IterableDataset`, pictures not decoded; or of a list of mappings."""
    for number, record in enumerate(_undecoded(source)):
        yield None, f"row {number}", _object(record, None, f"row {number}")


def _undecoded(source: Any) -> Any:
    import datasets

    if not isinstance(source, datasets.Dataset | datasets.IterableDataset):
        return source
    source = source.with_format(None)
    for name, feature in (source.features or {}).items():
        if isinstance(feature, datasets.Image):
            source = source.cast_column(name, datasets.Image(decode=False))
        elif isinstance(getattr(feature, "feature", None), datasets.Image):
            source = source.cast_column(name, datasets.List(datasets.Image(decode=False)))
    return source
