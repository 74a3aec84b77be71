# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes the rows of a builder to a repository on the Hub: Parquet files, the build record, a card."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grounded_attention.dataset_scripts.builders.local_builder import LocalBuilder
from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.licences import (
    SCENES,
    Licence,
    apply_user_licence,
    check_redistribution,
    generated_scenes,
)
from grounded_attention.utils.named_types import Columns, Fields

from .dataset_card import write_card
from .push_commit import CARD, Files, Repository, commit_files, fetch_repository
from .push_record import RECORD, check_record, make_record

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")


@dataclass
class RowsPush:
    """A push that passed all checks before the rows are built, so that a refusal costs no work."""

    repository: Repository
    name: str
    builder_name: str
    licence: Licence
    permission: str | None = None
    private: bool = False
    others: dict[str, Fields] = field(default_factory=dict)

    def run(self, builder: LocalBuilder, folder: Path, options: Columns, splits: Sequence[str] | None) -> str:
        """Pushes the rows that `builder` wrote into `folder`."""
        rows = parquet_files(folder, builder, self.name)
        record = make_record(
            builder,
            self.builder_name,
            folder,
            rows.values(),
            options=options,
            splits=splits,
            licence=self.licence,
            permission=self.permission,
        )
        files: Files = dict(rows)
        files[f"{self.name}/{RECORD}"] = json.dumps(record, indent=2, ensure_ascii=False).encode()
        records = dict(sorted({**self.others, self.name: record}.items()))
        files[CARD] = write_card(self.repository.name, records).encode()
        old = []
        for path in self.repository.files:
            if path.startswith(f"{self.name}/") and path not in files:
                old.append(path)
        message = f"{self.builder_name}: configuration {self.name}"
        return commit_files(self.repository, files, old, message=message, private=self.private)


def plan_push(
    builder: LocalBuilder,
    builder_name: str,
    to: str,
    *,
    name: str | None = None,
    revision: str | None = None,
    private: bool = False,
    permission: str | None = None,
    licence: str | None = None,
) -> RowsPush:
    """Checks everything that can be checked before the rows are built."""
    name = name or builder.config.name
    if not _NAME.fullmatch(name):
        expected = "a letter or digit, then letters, digits and + . _ -"
        raise DataError("not a valid name of a configuration", found=name, expected=expected)
    terms = apply_user_licence(licence_of(builder), licence)
    check_redistribution(terms, builder_name, permission)
    repository = fetch_repository(to, revision, private)
    others = _other_records(repository, builder_name, name)
    return RowsPush(repository, name, builder_name, terms, permission, private, others)


def licence_of(builder: LocalBuilder) -> Licence:
    """Returns the terms of the data that a builder reads; generated scenes always have the scenes' licence."""
    config = builder.config
    if config.data_dir and generated_scenes(Path(config.data_dir), config.sources()):
        return SCENES
    return config.licence()


def parquet_files(folder: Path, builder: LocalBuilder, name: str) -> dict[str, Path]:
    """Lists the Parquet files of a builder."""
    files = {}
    for split, facts in (builder.info.splits or {}).items():
        if not facts.num_examples:
            continue
        stem = re.escape(f"{builder.dataset_name}-{split}")
        shards = sorted(
            path for path in folder.iterdir() if re.fullmatch(rf"{stem}(-\d+-of-\d+)?\.parquet", path.name)
        )
        for number, path in enumerate(shards):
            files[f"{name}/{split}-{number:05d}-of-{len(shards):05d}.parquet"] = path
    refuse_if(not files, "no split has a row, so there is nothing to push", file=folder)
    return files


def _other_records(repository: Repository, builder_name: str, name: str) -> dict[str, Fields]:
    """Reads the records of the other configurations of the repository."""
    paths = [path for path in repository.files if path.endswith(f"/{RECORD}") and path.count("/") == 1]
    if repository.user_files() and not paths:
        hint = "push to a new repository"
        raise DataError(
            "the repository holds files that are not a pushed data set",
            found=repository.user_files()[0],
            where=repository.name,
            hint=hint,
        )
    records = {}
    for path in paths:
        record = repository.read_json(path)
        where = f"{repository.name}/{path}"
        replaced = path.split("/")[0] == name
        if not replaced:
            check_record(record, where)
        if record.get("builder") != builder_name:
            hint = "push to another repository"
            raise DataError(
                "the repository holds another data set", file=where, found=record.get("builder"), hint=hint
            )
        if not replaced:
            records[path.split("/")[0]] = record
    return records
