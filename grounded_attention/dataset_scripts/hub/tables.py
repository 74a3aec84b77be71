# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tables and rows of builders on the Hub: their places, and downloads, which are verified once."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
from datasets.features.features import require_decoding
from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from grounded_attention.dataset_scripts.builders.local_builder import LocalBuilder, fingerprint
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError, placed, refuse_if
from grounded_attention.dataset_scripts.files.manifests import ManifestKind
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import AnyPath, Columns, Fields, Row
from grounded_attention.utils.whole_files import make_folder

from .push_commit import hub_errors
from .push_rows import RECORD, check_record, without_folders

PREFIX = "hub://"
RETRY_HINT = "run the command again; finished downloads are kept"


def is_on_hub(place: AnyPath) -> bool:
    """Returns whether a place is a repository, `hub://ORG/NAME` or `hub://ORG/NAME@REVISION`."""
    return str(place).startswith(PREFIX)


def parse_place(place: str) -> tuple[str, str | None]:
    """Splits `hub://ORG/NAME[@REVISION]` into repository and revision."""
    name, _, revision = place.removeprefix(PREFIX).rstrip("/").partition("@")
    refuse_if(
        not is_on_hub(place) or name.count("/") != 1 or not all(name.split("/")),
        "not a place on the Hub",
        found=place,
        expected="hub://ORG/NAME or hub://ORG/NAME@REVISION",
    )
    return name, revision or None


def table_folder(place: AnyPath, kind: ManifestKind, files: Sequence[str], verify: Callable[[Path], None]) -> Path:
    """Returns the local folder of a table; downloads a table of the Hub first."""
    if not is_on_hub(place):
        return Path(place)
    (name, revision), noun = parse_place(str(place)), kind.what.removeprefix("a ")
    with hub_errors(f"the download of the {noun}", name, RETRY_HINT):
        allowed = [kind.file, *files]
        folder = Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=allowed))
    if not (folder / kind.file).is_file():
        hint = "push it with `grounded-attention push`"
        raise MissingFileError(f"no {noun} in this repository", where=name, expected=kind.file, hint=hint)
    _verify_once(folder, name, kind.file, verify)
    return folder


def _verify_once(folder: Path, name: str, kind: str, verify: Callable[[Path], None]) -> None:
    """Verifies a download unless a mark in the cache of the Hub says that the same files were verified before."""
    state = fingerprint(sorted(path for path in folder.iterdir() if path.is_file()))
    mark = Path(constants.HF_HOME) / "grounded-attention" / "verified" / kind / state
    if mark.exists():
        return
    hint = f"delete {folder.parents[1]} and download again; if the error stays, the pushed table is damaged"
    with placed(where=name, hint=hint):
        verify(folder)
    make_folder(mark.parent)
    mark.touch()


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
