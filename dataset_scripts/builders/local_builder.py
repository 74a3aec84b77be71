# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the builders of data sets that lie on the user's disk have in common."""

import hashlib
import json
import logging
import os
import posixpath
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import datasets
from datasets.exceptions import DatasetGenerationError

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.licences import UNDECLARED, Licence

logger = logging.getLogger(__name__)

VERSION = "1.0.0"
REPORT_FILE = "report.json"
# Our split names on disk and those of `datasets`.
SPLITS = {"train": datasets.Split.TRAIN, "val": datasets.Split.VALIDATION, "test": datasets.Split.TEST}


@dataclass
class LocalConfig(datasets.BuilderConfig):
    """Options of every builder that reads files of the user.

    Args:
        splits: Splits to build, of `"train"`, `"validation"` (or `"val"`) and `"test"`; all three by default.
    """

    # Names on disk and those of `datasets`, in order; a data set with other test splits has its own.
    SPLIT_NAMES: ClassVar[dict[str, Any]] = SPLITS
    # Options with few possible values, and these.
    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {}
    # What may be done with the rows; nothing is pushed that a builder does not say may be.
    LICENCE: ClassVar[Licence] = UNDECLARED
    # Part of the cache's key: raise it when the same files give other rows than before.
    version: datasets.Version | str | None = VERSION
    splits: str | Sequence[str] | None = None

    def sources(self) -> list[Path]:
        """Files and folders the data set is made from; a change in them makes a cached copy stale."""
        return [Path(self.data_dir)] if self.data_dir else []

    def existing(self) -> Sequence[str]:
        """The splits that the data set has, by their names on disk."""
        return tuple(self.SPLIT_NAMES)

    def where_to_get(self) -> str:
        """What to do about missing files, for messages."""
        return "see docs/real_data.md"

    def needed_files(self, split: str) -> list[Path]:
        """The files that the rows of a split are read from; all have to be there."""
        return []

    def check(self) -> None:
        """Checks the options before anything is read.

        Raises:
            DataError: No folder was given, or an option has an impossible value.
        """
        if self.data_dir is None:
            raise DataError("no data_dir was given", hint=f"pass the folder as data_dir; {self.where_to_get()}")
        for name, known in self.CHOICES.items():
            if getattr(self, name) not in known:
                raise DataError(f"unknown option {name}", found=getattr(self, name), expected=" or ".join(known))

    def licence(self) -> Licence:
        """The terms of the rows."""
        return self.LICENCE

    def create_config_id(self, config_kwargs: dict[str, Any], custom_features: datasets.Features | None = None) -> str:
        """The cache key of `datasets`, which knows the path of the data only, plus the state of the files."""
        kwargs = {**config_kwargs, "sources_state": fingerprint(self.sources())}
        return super().create_config_id(kwargs, custom_features)

    def wanted_splits(self, existing: Sequence[str] | None = None) -> list[str]:
        """The splits to build, by their names on disk (`train`, `val`, `test`, or those of the data set).

        Args:
            existing: The splits that the data set has; all of `SPLIT_NAMES` by default.

        Raises:
            DataError: A name is no split, or not one of this data set.
        """
        existing = tuple(self.SPLIT_NAMES) if existing is None else existing
        if self.splits is None:
            return list(existing)
        asked = [self.splits] if isinstance(self.splits, str) else list(self.splits)
        names = ["val" if name == "validation" else name for name in asked]
        for name in names:
            if name not in self.SPLIT_NAMES:
                known = [str(split) for split in self.SPLIT_NAMES.values()]
                expected = f"{', '.join(known[:-1])} or {known[-1]}"
                raise DataError("unknown split", found=name, expected=expected)
            if name not in existing:
                has = " or ".join(str(self.SPLIT_NAMES[each]) for each in existing)
                raise DataError("the data set has no such split", found=str(self.SPLIT_NAMES[name]), expected=has)
        return [name for name in self.SPLIT_NAMES if name in names]


class LocalBuilder(datasets.GeneratorBasedBuilder):
    """A builder whose errors reach the user as they are, and which keeps a report beside the data.

    `report` maps each split to counts of what was found, joined and dropped, with a few examples of each problem. It
    is there after `download_and_prepare` (also when the data came from the cache) and lies beside the data as
    `report.json`.
    """

    config: LocalConfig
    BUILDER_CONFIG_CLASS = LocalConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.report: dict[str, dict[str, Any]] = {}
        super().__init__(*args, **kwargs)

    def download_and_prepare(self, *args: Any, **kwargs: Any) -> None:
        super().download_and_prepare(*args, **kwargs)
        path = posixpath.join(self._output_dir, REPORT_FILE)
        if self._fs.exists(path):
            with self._fs.open(path, "r", encoding="utf-8") as file:
                self.report = json.load(file)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        config = self.config
        config.check()
        wanted = config.wanted_splits(config.existing())
        for path in (path for split in wanted for path in config.needed_files(split)):
            if not path.is_file():
                raise MissingFileError("the file is missing", file=path, hint=config.where_to_get())
        names = config.SPLIT_NAMES
        return [datasets.SplitGenerator(name=names[split], gen_kwargs={"split": split}) for split in wanted]

    def _download_and_prepare(self, dl_manager: Any, verification_mode: Any, **kwargs: Any) -> None:
        super()._download_and_prepare(dl_manager, verification_mode, **kwargs)
        if self.report:
            with self._fs.open(posixpath.join(self._output_dir, REPORT_FILE), "w", encoding="utf-8") as file:
                json.dump(self.report, file, indent=2, ensure_ascii=False)

    def _prepare_split_single(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        # `datasets` hides what went wrong in a generator behind a DatasetGenerationError. Unwrapping happens here and
        # not in `download_and_prepare`, because a worker process loses the cause on the way to its parent.
        try:
            yield from super()._prepare_split_single(*args, **kwargs)
        except DatasetGenerationError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None


class Report:
    """Counts by name, with the first few examples of each problem."""

    def __init__(self, examples: int = 5) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = defaultdict(list)
        self._limit = examples

    def add(self, name: str, example: str | None = None, count: int = 1) -> None:
        """Adds to a count, and keeps the example while there are few."""
        self.counts[name] += count
        if example is not None and len(self.examples[name]) < self._limit:
            self.examples[name].append(example)

    def as_dict(self) -> dict[str, Any]:
        """The counts, and under `"examples"` the examples."""
        return {**self.counts, "examples": dict(self.examples)}


def fingerprint(paths: Iterable[Path]) -> str:
    """A digest over names, sizes and times of change of files, and of all files below folders; missing ones count."""
    digest = hashlib.sha256()
    for path in paths:
        for file in [path, *sorted(_files_below(path))]:
            info = file.stat() if file.exists() else None
            # A folder's own time changes with files that are not read.
            state = (info.st_size, info.st_mtime_ns) if info and file.is_file() else bool(info)
            digest.update(f"{file}\0{state}\n".encode())
    return digest.hexdigest()[:16]


def _files_below(folder: Path) -> list[Path]:
    return [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
