# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Records of files with rows, and of data sets of `datasets`."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.streaming import json_elements, text_lines
from grounded_attention.utils.bounded_files import FileError, read_json

from .raw import RowError, plain
from .readings import Readings

LONGEST_ROW = 2**25  # characters of CSV; a field may hold a picture
FILES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv")
_SPLIT = re.compile(r"(?:^|[/_.-])(train|training|validation|valid|val|dev|test\w*)(?=[/_.-]|\d|$)", re.IGNORECASE)
SAME_SPLIT = {"valid": "validation", "val": "validation", "dev": "validation", "training": "train"}
ROWS = 64  # of a Parquet file that are decoded together
Record = tuple[Path | None, str, dict[str, Any]]  # its file, its place there, its columns


@dataclass
class Source:
    """Records to read, again and again."""

    name: str  # For errors and reports
    # Split or "" -> functions that each iterate over the records of a file
    parts: dict[str, list[Callable[[], Iterator[Record]]]]
    folder: Path | None = None  # Where the names of pictures start
    is_foreign: bool = False  # Whether it comes from the Hub
    kind: str = ""  # The format, if it says more than its columns: "coco", "yolo", "voc", "label studio"
    readings: Readings = ()  # How the format writes boxes
    # Column, or column and key -> number -> name of a class
    classes: dict[str, dict[Any, str]] = field(default_factory=dict)
    size: int | None = None  # The number of records, if it is known at once

    def records(self, split: str | None) -> Iterator[tuple[str, Record]]:
        """The split of each record, and the record, of all parts or of those of a split."""
        for name, part in self.parts.items():
            if split is None or name == split:
                for read in part:
                    for each in read():
                        yield name, each


def open_files(paths: Sequence[Path], folder: Path, name: str) -> Source:
    """Opens files with rows, each for the split of its name."""
    folder = folder if folder.is_dir() else folder.parent
    readers = {".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _json, ".parquet": _parquet, ".csv": _csv, ".tsv": _csv}
    parts: dict[str, list[Any]] = {}
    classes: dict[str, dict[Any, str]] = {}
    size: int | None = 0
    for path in paths:
        reader = readers.get(path.suffix.lower())
        if reader is None:
            raise DataError("a kind of file that is not read", file=path, expected=", ".join(FILES))
        if path.exists() and not path.is_file():  # a pipe without a writer would block for ever
            raise DataError("not a regular file", file=path, expected="a file with rows")
        if reader is _parquet:
            file = _open_parquet(path)
            classes |= class_names(_stored_features(file.schema_arrow))
            size = None if size is None else size + file.metadata.num_rows
        else:
            size = None
        parts.setdefault(split_of(path, folder), []).append(partial(reader, path))
    return Source(name, parts, folder, classes=classes, size=size)


def split_of(path: Path, folder: Path) -> str:
    """The split that the name of a file or folder says, such as `data/val-00000-of-00001.parquet`; or ""."""
    named = _SPLIT.findall(path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name)
    return SAME_SPLIT.get(named[-1].lower(), named[-1]) if named else ""


def _jsonl(path: Path) -> Iterator[Record]:
    for number, line in text_lines(path, "expected one JSON object a line"):
        if line.strip():
            yield path, f"line {number}", _object(_parsed(line, path, number), path, f"line {number}")


def _parsed(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"no JSON ({error})", file=path, where=f"line {number}", found=line, expected="one JSON object a line"
        ) from None


def _object(value: Any, path: Path | None, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise DataError("not a row", file=path, where=where, found=value, expected="an object with columns")
    return dict(value)


def _json(path: Path) -> Iterator[Record]:
    """The elements of a list, of the only list of an object, or the members of an object of objects."""
    if starts_with(path, b"["):
        for _, index, element in json_elements(path, "expected a list of rows"):
            yield path, f"element {index}", _object(element, path, f"element {index}")
        return
    whole = read_json(path)
    if not isinstance(whole, Mapping):
        raise DataError("no rows", file=path, found=whole, expected="a list of objects")
    lists = {key: value for key, value in whole.items() if isinstance(value, list) and value}
    lists = {key: value for key, value in lists.items() if all(isinstance(each, Mapping) for each in value)}
    columns = ("conversations", "messages", "phrases", "objects", "annotations", "regions", "elements", "points")
    is_row = {*lists} & {*columns} or {"image", "file_name", "imagePath", "text", "caption"} & whole.keys()
    if len(lists) == 1 and not is_row:
        for index, element in enumerate(next(iter(lists.values()))):
            yield path, f"element {index}", dict(element)
    elif whole and all(isinstance(value, Mapping) for value in whole.values()):
        for key, value in whole.items():
            yield path, f"member {key!r}", {"id": key, **value}
    else:
        yield path, "the object", dict(whole)


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


def _next_line(reader: Any) -> list[str] | None:
    """The next line. The limit of a field is the process's, so it is raised for the line."""
    before = csv.field_size_limit(LONGEST_ROW)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


def _csv(path: Path) -> Iterator[Record]:
    number, length = 1, 0

    def lines(file: IO[str]) -> Iterator[str]:
        nonlocal length
        while line := file.readline(LONGEST_ROW + 1):
            length += len(line)
            if length > LONGEST_ROW:
                raise DataError(
                    "a row is too long",
                    file=path,
                    where=f"after line {number}",
                    expected=f"at most {LONGEST_ROW} characters",
                    hint="is a quotation mark not closed? Large pictures are better given as files, or in Parquet",
                )
            if "\0" in line:
                raise csv.Error("a NUL byte")
            yield line

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            start = file.read(4096).partition("\n")[0]
            file.seek(0)
            comma = "\t" if "\t" in start else ";" if start.count(";") > start.count(",") else ","
            reader = csv.reader(lines(file), delimiter=comma)
            names = _next_line(reader) or []
            _check_names(path, names)
            while (cells := _next_line(reader)) is not None:
                number, length = reader.line_num, 0
                if len(cells) != len(names) and cells:
                    expected = f"{len(names)}, as in the first line"
                    raise DataError(
                        "a row of another length",
                        file=path,
                        where=f"line {number}",
                        found=len(cells),
                        expected=expected,
                    )
                if cells:
                    yield path, f"line {number}", dict(zip(names, (cell or None for cell in cells), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"no CSV in UTF-8 ({error})", file=path, where=f"after line {number}") from None


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Of two columns of one name, which a table may have, rows would have the last one."""
    if twice := next((name for name, count in Counter(names).items() if name and count > 1), None):
        raise DataError("a column is there twice", file=path, found=twice, hint="rename one of them")


def _open_parquet(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"no Parquet file ({error})", file=path, hint="it is damaged or cut: get it again") from None
    _check_names(path, file.schema_arrow.names)
    return file


def _parquet(path: Path) -> Iterator[Record]:
    file, row = _open_parquet(path), 0
    batches = file.iter_batches(batch_size=ROWS)
    while True:
        try:
            batch = next(batches, None)
            records = [] if batch is None else batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"damaged ({error})", file=path, where=f"after row {row}", hint="get it again") from None
        if batch is None:
            return
        for record in records:
            yield path, f"row {row}", record
            row += 1


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


def dataset_records(source: Any) -> Iterator[Record]:
    """The rows of a `Dataset` or `IterableDataset`, pictures not decoded; or of a list of mappings."""
    for number, record in enumerate(_undecoded(source)):
        yield (
            None,
            f"row {number}",
            {key: plain(value) for key, value in _object(record, None, f"row {number}").items()},
        )


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


def dataset_name(source: Any) -> str:
    """The repository of a data set of `datasets`, if it is known."""
    return str(getattr(getattr(source, "info", None), "dataset_name", None) or "")
