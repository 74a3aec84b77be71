# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Opens what people give as data: files, patterns, folders, data sets of `datasets`, and names on the Hub."""

import glob
import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.hub.push_commit import hub_errors
from grounded_attention.utils.named_types import Columns

from .folders import open_file, open_folder
from .sources import FILES, Parts, Source, class_names, dataset_records, in_words, open_files

_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?::([^@/:]+))?(?:@([\w./-]+))?")


def open_source(source: Any, split: str | None = None, **options: Any) -> Source:
    """Opens data; nothing but headers is read."""
    if isinstance(source, str | os.PathLike):
        text = os.fspath(source)
        with in_words("no data of a known form", file=text):
            if os.path.isdir(text):
                return _open_saved(text) or open_folder(Path(text))
            if os.path.isfile(text):
                return open_file(Path(text))
        paths = sorted(glob.glob(text, recursive=True))
        if paths:
            return open_files([Path(path) for path in paths], Path(os.path.commonpath(paths)), text)
        return _open_hub(text, split, options)
    if not isinstance(source, Iterable):
        raise DataError("not a source of rows", found=type(source).__name__, expected="a file, a Dataset, or a Hub id")
    if isinstance(source, Mapping):
        splits = source
    else:
        splits = {str(getattr(source, "split", None) or ""): source}
    parts: Parts = {str(name): [partial(dataset_records, each)] for name, each in splits.items()}
    first = next(iter(splits.values()), ())
    features = getattr(first, "features", None)
    # The repository of a data set of `datasets`, if it is known.
    kind = str(getattr(getattr(first, "info", None), "dataset_name", None) or "")
    classes = class_names(features.to_dict()) if features else {}
    return Source(kind or type(source).__name__, parts, classes=classes, kind=kind)


def _open_saved(folder: str) -> Source | None:
    """A folder that `save_to_disk` of `datasets` wrote; None for another one."""
    if not any(os.path.isfile(os.path.join(folder, name)) for name in ("dataset_dict.json", "state.json")):
        return None
    import datasets

    try:
        opened = open_source(datasets.load_from_disk(folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"no data set of save_to_disk ({error})", file=folder, hint="get it again") from None
    opened.name = folder
    opened.folder = Path(folder)
    return opened


def hub_name(name: str) -> tuple[str, str | None, str | None]:
    """Repository, configuration and revision of `ORG/NAME:CONFIG@REVISION`; refuses what is no file here either."""
    found = _HUB_NAME.fullmatch(name)
    if found is None or name.lower().endswith(FILES):
        expected = "data, or ORG/NAME on the Hub (ORG/NAME:CONFIG@REVISION)"
        raise MissingFileError("no such file or folder", file=name, expected=expected)
    return found[1], found[2], found[3]


def _open_hub(name: str, split: str | None, options: Columns) -> Source:
    repository, config, revision = hub_name(name)
    import datasets

    # Streamed splits are opened when they are read; others are downloaded at once.
    if options.get("streaming"):
        split = None
    with hub_errors("reading the data set", repository, "check the name, and log in for a gated one"):
        dataset = datasets.load_dataset(repository, split=split, **{"name": config, "revision": revision, **options})
    opened = open_source(dataset)
    opened.name = name
    opened.is_foreign = True
    opened.kind = repository
    if split is not None:
        opened.parts = {split: next(iter(opened.parts.values()))}
    return opened
