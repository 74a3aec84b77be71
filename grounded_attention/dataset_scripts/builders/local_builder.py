# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Common base of the builders that read files on the user's disk."""

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import typing
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import datasets
import pyarrow as pa
from datasets.exceptions import DatasetGenerationError
from pydantic import TypeAdapter, ValidationError

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if, require_file
from grounded_attention.dataset_scripts.files.image_files import ImageLists, list_files
from grounded_attention.dataset_scripts.files.records import Record, json_elements
from grounded_attention.dataset_scripts.licences import UNDECLARED, Licence
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.boxes import clip_box, in_shares, look_normalised
from grounded_attention.utils.named_types import Fields, Row, Size
from grounded_attention.utils.processes import require_locks
from grounded_attention.utils.whole_files import write_text

logger = logging.getLogger(__name__)

ROWS = 1000  # that are converted together
# Of a value that does not have the type of its column, or of a text that is not UTF-8.
PA_ERRORS = (pa.ArrowException, OverflowError, UnicodeEncodeError)

VERSION = "1.2.0"  # of the rows; cached ones of another version are built again
REPORT_FILE = "report.json"


def named_splits(*names: str) -> dict[str, datasets.NamedSplit]:
    """Split names on disk -> split names of `datasets`, where `val` is validation."""
    return {name: datasets.NamedSplit("validation" if name == "val" else name) for name in names}


def texts(*names: str) -> dict[str, datasets.Value]:
    """Columns of texts."""
    return {name: datasets.Value("string") for name in names}


TEXTS = datasets.List(datasets.Value("string"))  # a column of lists of texts
BOXES = datasets.List(datasets.List(datasets.Value("float32"), length=4))  # a column of lists of boxes


def caption_columns() -> dict[str, datasets.List]:
    """Columns of the texts of an image, their ids, and whether each describes it."""
    return {"captions": TEXTS, "caption_ids": TEXTS, "related": datasets.List(datasets.Value("bool"))}


SIZE = dict.fromkeys(("width", "height"), datasets.Value("int32"))  # columns of an image's size in pixels


def read_size(record: Record) -> Size:
    """Width and height of an image."""
    return record.integer("width", minimum=1), record.integer("height", minimum=1)


def member_records(path: Path, hint: str, *names: str) -> Iterator[tuple[str, Record]]:
    """The elements of these lists of a JSON object, each with the name of its list."""
    for member, index, element in json_elements(path, hint):
        if member in names:
            yield str(member), Record(element, path, f"{member}, element {index + 1}", hint)


def normalised_corners(bbox: list[float], width: int, height: int) -> tuple[list[float], bool]:
    """Converts a box in pixels to corners divided by the image's size and clipped to [0, 1]."""
    x, y, box_width, box_height = bbox
    box = in_shares((x, y, x + box_width, y + box_height), width, height)
    clipped = clip_box(box)
    return clipped, clipped != box


def clipped_corners(record: Record, bbox: list[float], width: int, height: int) -> tuple[list[float] | None, bool]:
    """Corners of a box of a record in pixels, and whether it was clipped; None if no part of it is in the image."""
    x, y, box_width, box_height = bbox
    normalised = look_normalised([[x, y, x + box_width, y + box_height]], width, height)
    record.refuse_if(normalised, "the box looks normalised", bbox, "x, y, width and height in pixels")
    box, clipped = normalised_corners(bbox, width, height)
    has_area = box[0] < box[2] and box[1] < box[3]
    return box if has_area else None, clipped


def phrase_column(**more: Any) -> datasets.List:
    """The column of phrases, with `more` keys of [`Phrase`]."""
    places = dict.fromkeys(("start", "end", "sentence"), datasets.Value("int32"))
    return datasets.List({**texts("text"), **places, "boxes": BOXES, **more})


def whole_text(text: str, box: Sequence[float], sentence: int = 0) -> Fields:
    """The phrase that is all of a text, with its box."""
    return {"text": text, "start": 0, "end": len(text), "sentence": sentence, "boxes": [box]}


SPLITS = named_splits("train", "val", "test")


@dataclass
class LocalConfig(datasets.BuilderConfig):
    """Options of every builder that reads the user's files."""

    # Split names on disk -> split names of `datasets`, in order; overridden by data sets with other test splits.
    SPLIT_NAMES: ClassVar[Fields] = SPLITS
    REQUIRED: ClassVar[Sequence[str] | None] = None  # the splits whose files must exist; None: all
    FILES: ClassVar[Mapping[str, Sequence[Sequence[str]]]] = {}  # split on disk -> possible names of each of its files
    FOLDERS: ClassVar[Sequence[str]] = ("",)  # of the data that may have these files
    # The terms of the rows; rows are pushed only if the terms allow it.
    LICENCE: ClassVar[Licence] = UNDECLARED
    WHERE: ClassVar[str] = "see docs/data.md"  # to get missing files
    LISTS: ClassVar[str | None] = None  # the option with lists of images, of which some must be in the training rows
    # Part of the cache key: increase it when the same files give other rows than before.
    version: datasets.Version | str | None = VERSION
    splits: str | Sequence[str] | None = None

    def sources(self) -> list[Path]:
        """Returns the files and folders that the rows are made from; a change in them makes a cached copy stale."""
        if not self.data_dir:
            return []
        files = [path for split in self.SPLIT_NAMES for path in self.needed_files(split)] or [self.root]
        if self.LISTS:
            lists = list_files(getattr(self, self.LISTS))
        else:
            lists = []
        return list(dict.fromkeys([*files, *lists]))

    @property
    def root(self) -> Path:
        """The folder of the data."""
        return Path(self.data_dir or ".")

    def find(self, *names: str, folders: Sequence[str] = ("",)) -> Path:
        """Returns the first of these files, in these folders of the data, that exists; else the first place."""
        places = []
        for folder in folders:
            for name in names:
                places.append(self.root / folder / name)
        return next((place for place in places if place.is_file()), places[0])

    def available_splits(self) -> Sequence[str]:
        """Returns the splits of the data set, by their names on disk: the required ones, and those with files."""
        required = self.SPLIT_NAMES if self.REQUIRED is None else self.REQUIRED
        return tuple(
            split
            for split in self.SPLIT_NAMES
            if split in required or all(path.is_file() for path in self.needed_files(split))
        )

    def where_to_get(self) -> str:
        """Returns where to get missing files, for messages."""
        return self.WHERE

    def needed_files(self, split: str) -> list[Path]:
        """Returns the files that the rows of a split are read from; all of them must exist."""
        return [self.find(*names, folders=self.FOLDERS) for names in self.FILES.get(split, ())]

    def check(self) -> None:
        """Checks the options before anything is read."""
        refuse_if(
            self.data_dir is None, "data_dir is missing", hint=f"pass the folder as data_dir; {self.where_to_get()}"
        )

    def licence(self) -> Licence:
        """Returns the terms of the rows."""
        return self.LICENCE

    def create_config_id(self, config_kwargs: Fields, custom_features: datasets.Features | None = None) -> str:
        """Extends the cache key of `datasets`, which contains the path of the data, by the state of the files."""
        kwargs = {**config_kwargs, "sources_state": fingerprint(self.sources())}
        return super().create_config_id(kwargs, custom_features)

    def requested_splits(self) -> list[str]:
        """Returns the splits to build, by their names on disk."""
        available = self.available_splits()
        if self.splits is None:
            return list(available)
        if isinstance(self.splits, str):
            asked = [self.splits]
        else:
            asked = list(self.splits)
        names = ["val" if name == "validation" else name for name in asked]
        for name in names:
            if name not in available:
                has = " or ".join(str(self.SPLIT_NAMES[each]) for each in available)
                raise DataError("the data set has no such split", found=name, expected=has)
        return [name for name in self.SPLIT_NAMES if name in names]


class LocalBuilder(datasets.ArrowBasedBuilder):
    """A builder that passes errors to the user unchanged and stores a report with the data.

    `report` maps each split to counts of rows found, joined and dropped, with a few examples of each problem. It
    exists after `download_and_prepare` (also when the data come from the cache) and is stored with the data as
    `report.json`.

    A subclass has `_generate_rows`, with the arguments of `_generate_examples` of `datasets` and the report of the
    split, a [`BuildReport`]. It yields rows without keys; the first column of a row is its id.

    Example:

    ```python
    builder = VGP(data_dir="data", negatives="random", seed=1)
    builder.download_and_prepare()
    print(builder.report["train"], builder.as_dataset("train")[0])
    ```
    """

    config: LocalConfig
    BUILDER_CONFIG_CLASS = LocalConfig
    _generate_rows: Callable[..., Iterable[Fields]]
    INFO: ClassVar[tuple[str, Any, str, str]]  # description, columns (or of a configuration), home page, citation
    image_lists: ImageLists | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.report: dict[str, Fields] = {}
        require_locks(kwargs.get("cache_dir") or datasets.config.HF_DATASETS_CACHE)
        super().__init__(*args, **kwargs)

    def _info(self) -> datasets.DatasetInfo:
        description, features, homepage, citation = self.INFO
        features = datasets.Features(features(self.config.name) if callable(features) else features)
        return datasets.DatasetInfo(description, features=features, homepage=homepage, citation=citation)

    def download_and_prepare(self, *args: Any, **kwargs: Any) -> None:
        """Builds the rows, or finds them in the cache, and reads the report; arguments as in `datasets`."""
        # Options that are not those of every builder of `datasets` are checked by their annotations.
        general = {field.name for field in dataclasses.fields(datasets.BuilderConfig)}
        kinds = typing.get_type_hints(type(self.config), include_extras=True)
        for field in dataclasses.fields(self.config):
            value = getattr(self.config, field.name)
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            if field.name not in general:
                try:
                    TypeAdapter(kinds[field.name]).validate_python(value, strict=True)
                except ValidationError as error:
                    wanted = error.errors()[0]["msg"].removeprefix("Input should be ")
                    raise DataError(f"bad option {field.name}", found=value, expected=wanted) from None
        super().download_and_prepare(*args, **kwargs)
        path = Path(self._output_dir, REPORT_FILE)
        if path.exists():
            self.report = read_json(path)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        config = self.config
        config.check()
        requested = config.requested_splits()
        for path in (path for split in requested for path in config.needed_files(split)):
            require_file(path, "the file is missing", hint=config.where_to_get())
        if config.LISTS is not None and getattr(config, config.LISTS):
            self.image_lists = ImageLists(getattr(config, config.LISTS))
        names = config.SPLIT_NAMES
        return [datasets.SplitGenerator(name=names[split], gen_kwargs={"split": split}) for split in requested]

    def _download_and_prepare(self, dl_manager: Any, verification_mode: Any, **kwargs: Any) -> None:
        super()._download_and_prepare(dl_manager, verification_mode, **kwargs)
        lists = self.image_lists
        if lists and ("train" in self.config.requested_splits() or getattr(self.config, "image_list", None)):
            lists.check_found()
        if self.report:
            report = json.dumps(self.report, indent=2, ensure_ascii=False)
            write_text(Path(self._output_dir, REPORT_FILE), report)

    def _generate_tables(self, **kwargs: Any) -> Iterator[tuple[int, pa.Table]]:
        # Many rows at a time: a GeneratorBasedBuilder spends half of the time on encoding each value by itself.
        report = BuildReport()
        rows = iter(self._generate_rows(report=report, **kwargs))
        number = 0
        while some := list(itertools.islice(rows, ROWS)):
            yield number, rows_to_table(some, self.info.features)
            number += 1
        if report.counts:
            split = kwargs["split"]
            self.report[str(self.config.SPLIT_NAMES.get(split, split))] = report.as_dict()

    def _prepare_split_single(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        # `datasets` hides the error of a generator behind a DatasetGenerationError.
        try:
            yield from super()._prepare_split_single(*args, **kwargs)
        except DatasetGenerationError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None


def rows_to_table(rows: Sequence[Row], features: datasets.Features) -> pa.Table:
    """Converts rows to a table."""
    types = features.arrow_schema
    columns = {}
    for name, feature in features.items():
        values = [row[name] for row in rows]
        if isinstance(feature, datasets.ClassLabel):
            values = [feature.encode_example(value) for value in values]
        try:
            columns[name] = pa.array(values, types.field(name).type)
        except PA_ERRORS:
            _refuse_value(rows, name, values, types.field(name).type)
            raise
    return pa.table(columns, schema=types)


def _refuse_value(rows: Sequence[Row], name: str, values: Sequence[Any], kind: pa.DataType) -> None:
    """Raises an error that names the first row whose value does not have the type of its column."""
    for row, value in zip(rows, values, strict=True):
        try:
            pa.array([value], kind)
        except PA_ERRORS as error:
            where = f"row {next(iter(row.values()))!r:.200}"
            raise DataError(f"column {name}: {error}", where=where, found=value, expected=str(kind)) from error


class BuildReport:
    """Counts by name, with the first few examples of each problem."""

    def __init__(self, examples: int = 100) -> None:
        self.counts: Counter[str] = Counter()
        self.about: Fields = {}  # what stands beside the counts
        self.examples: dict[str, list[str]] = defaultdict(list)
        self._limit = examples

    def add(self, name: str, example: str | None = None, count: int = 1) -> None:
        """Adds to a count, and keeps the example while there are few."""
        self.counts[name] += count
        if example is not None and len(self.examples[name]) < self._limit:
            self.examples[name].append(example)

    def as_dict(self) -> Fields:
        """Returns the counts, with the examples under `"examples"`."""
        return {**self.about, **self.counts, "examples": dict(self.examples)}


def fingerprint(paths: Iterable[Path]) -> str:
    """Computes a digest of names, sizes and change times of files, and of all files in folders, recursively."""
    digest = hashlib.sha256()
    for path in paths:
        for file in [path, *sorted([Path(parent, name) for parent, _, names in os.walk(path) for name in names])]:
            info = file.stat() if file.exists() else None
            # The time of a folder also changes with files that are not read.
            state = (info.st_size, info.st_mtime_ns) if info and file.is_file() else bool(info)
            digest.update(f"{file}\0{state}\n".encode())
    return digest.hexdigest()[:16]
