# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Loads rows that `grounded-attention data build ... --push` pushed to the Hub, instead of building them here."""

import dataclasses
from pathlib import Path
from typing import Any

import datasets
from datasets.features.features import require_decoding
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from grounded_attention.dataset_scripts.builders.local_builder import LocalBuilder
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Columns, Fields, Row

from .hub_errors import hub_errors
from .push_record import RECORD, check_record, without_folders
from .tables import RETRY_HINT, parse_place


@dataclasses.dataclass(frozen=True)
class RemoteRows:
    """Rows on the Hub."""

    repository: str
    commit: str
    config: str
    record: Columns


def find_rows(place: str, builder_name: str, builder: type[LocalBuilder], options: Columns) -> RemoteRows:
    """Finds a pushed data set by its build record. Without a connection, the cached record is used."""
    name, revision = parse_place(place)
    config = options.get("config_name") or builder.DEFAULT_CONFIG_NAME or "default"
    record, commit = _read_record(name, config, revision)
    if record["builder"] != builder_name:
        raise DataError(
            "the rows belong to another data set", where=place, found=record["builder"], expected=builder_name
        )
    _check_options(place, record, builder, options)
    return RemoteRows(name, commit, config, record)


def pull_rows(remote: RemoteRows) -> dict[str, datasets.Dataset]:
    """Downloads the splits of a pushed data set. Without a connection, the cached files are used."""
    with hub_errors("the download of the rows", remote.repository, RETRY_HINT):
        splits = dict(datasets.load_dataset(remote.repository, remote.config, revision=remote.commit))
    features = next(iter(splits.values())).features
    media = [column for column, feature in features.items() if require_decoding(feature)]
    if media:
        # `datasets` opens such files itself, also those that a row names on this machine.
        expected = "texts, numbers and boxes, as `grounded-attention data build` writes"
        raise DataError(
            "columns with pictures or other media", where=remote.repository, found=media, expected=expected
        )
    empty: dict[str, list[Any]] = {column: [] for column in features}
    return splits | {split: datasets.Dataset.from_dict(empty, features) for split in remote.record["empty_splits"]}


def _read_record(name: str, config: str, revision: str | None) -> tuple[Fields, str]:
    """Reads the record of a configuration; returns it with its commit."""
    with hub_errors("reading how the rows were built", name, RETRY_HINT):
        try:
            path = Path(hf_hub_download(name, f"{config}/{RECORD}", repo_type="dataset", revision=revision))
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError as error:
            files = HfApi().list_repo_files(name, repo_type="dataset", revision=revision)
            known = []
            for file in files:
                if file.endswith(f"/{RECORD}") and file.count("/") == 1:
                    known.append(file.split("/")[0])
            expected = " or ".join(known) or f"rows pushed by `grounded-attention data build --push`, with {RECORD}"
            raise DataError("no such configuration", where=name, found=config, expected=expected) from error
    record = read_json(path)
    check_record(record, f"{name}/{config}/{RECORD}")
    return record, path.parents[1].name  # the cache has one folder for each commit


def _check_options(place: str, record: Row, builder: type[LocalBuilder], options: Columns) -> None:
    """Raises `DataError` if the rows were built with other options."""
    defaults = {}
    for each in dataclasses.fields(builder.BUILDER_CONFIG_CLASS):
        defaults[each.name] = None if each.default is dataclasses.MISSING else each.default
    for option, wanted in options.items():
        built = record["options"].get(option, defaults.get(option))
        if option != "config_name" and without_folders(wanted) != built:
            hint = "push rows that were built with this value, or give a local folder as data_dir"
            raise DataError(f"the rows were built with {option}={built}", where=place, found=wanted, hint=hint)
