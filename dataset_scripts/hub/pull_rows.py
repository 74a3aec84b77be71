# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows that were pushed to the Hub by `grounded-attention data build ... --push`, in place of building them here."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from grounded_attention.dataset_scripts.builders.local_builder import LocalBuilder
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.hub import parse_place

from .hub_errors import hub_errors
from .push_record import RECORD, check_record, without_folders

_AGAIN = "run it again; what is downloaded already is kept"


@dataclasses.dataclass(frozen=True)
class Pulled:
    """Rows on the Hub: the repository, its commit, the configuration, and the record of how they were built."""

    repository: str
    commit: str
    config: str
    record: Mapping[str, Any]


def find_rows(place: str, builder_name: str, builder: type[LocalBuilder], options: Mapping[str, Any]) -> Pulled:
    """A pushed data set, by the record of how it was built. Without a connection, what was read before is used.

    Args:
        place: `hub://ORG/NAME` or `hub://ORG/NAME@REVISION`.
        builder_name: The builder that the rows have to come from.
        builder: Its class.
        options: What the builder would be given. `config_name` chooses the configuration; everything else has to be
            what the rows were built with.

    Raises:
        HubError: The Hub does not give it.
        DataError: Rows of another builder, or built with other options.
    """
    name, revision = parse_place(place)
    config = options.get("config_name") or builder.DEFAULT_CONFIG_NAME or "default"
    record, commit = _read_record(name, config, revision)
    if record["builder"] != builder_name:
        raise DataError("rows of another data set", where=place, found=record["builder"], expected=builder_name)
    _check_options(place, record, builder, options)
    return Pulled(name, commit, config, record)


def pull_rows(found: Pulled) -> dict[str, datasets.Dataset]:
    """The splits of a pushed data set. Without a connection, what was downloaded before is used.

    Raises:
        HubError: The Hub does not give them.
    """
    with hub_errors("the download of the rows", found.repository, _AGAIN):
        splits = dict(datasets.load_dataset(found.repository, found.config, revision=found.commit))
    features = next(iter(splits.values())).features
    empty: dict[str, list[Any]] = {column: [] for column in features}
    return splits | {split: datasets.Dataset.from_dict(empty, features) for split in found.record["empty_splits"]}


def _read_record(name: str, config: str, revision: str | None) -> tuple[dict[str, Any], str]:
    """The record of a configuration, and the commit it is from."""
    with hub_errors("reading how the rows were built", name, _AGAIN):
        try:
            path = Path(hf_hub_download(name, f"{config}/{RECORD}", repo_type="dataset", revision=revision))
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError as error:
            files = HfApi().list_repo_files(name, repo_type="dataset", revision=revision)
            known = [file.split("/")[0] for file in files if file.endswith(f"/{RECORD}") and file.count("/") == 1]
            expected = " or ".join(known) or f"rows pushed by grounded_attention.commands.build_data, with {RECORD}"
            raise DataError("no such configuration", where=name, found=config, expected=expected) from error
    record = json.loads(path.read_text(encoding="utf-8"))
    check_record(record, f"{name}/{config}/{RECORD}")
    return record, path.parents[1].name  # the cache keeps a folder a commit


def _check_options(
    place: str, record: Mapping[str, Any], builder: type[LocalBuilder], options: Mapping[str, Any]
) -> None:
    defaults = {
        each.name: None if each.default is dataclasses.MISSING else each.default
        for each in dataclasses.fields(builder.BUILDER_CONFIG_CLASS)
    }
    for option, wanted in options.items():
        built = record["options"].get(option, defaults.get(option))
        if option != "config_name" and without_folders(wanted) != built:
            hint = "push rows that were built with it, or name a folder as data_dir"
            raise DataError(f"the rows were built with {option}={built}", where=place, found=wanted, hint=hint)
