# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes the rows of a builder to a repository on the Hub: Parquet files, the record of the build, a card."""

import dataclasses
import hashlib
import inspect
import json
import os
import platform
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pyarrow

from grounded_attention import __version__
from grounded_attention.dataset_scripts.builders.local_builder import LocalBuilder
from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.files.manifests import sha256
from grounded_attention.dataset_scripts.licences import (
    SCENES,
    Licence,
    apply_user_licence,
    check_redistribution,
    generated_scenes,
    read_scenes,
)
from grounded_attention.dataset_scripts.regions.shards import KIND, MANIFEST
from grounded_attention.utils import bounded_files
from grounded_attention.utils.named_types import Columns, Fields, Row

from .dataset_card import write_card
from .push_commit import CARD, Files, Repository, commit_files, fetch_repository

RECORD = "build.json"
FORMAT = "grounded-attention rows"
VERSION = 1
_REQUIRED_KEYS = {
    "builder",
    "builder_config",
    "options",
    "command",
    "versions",
    "scenes",
    "sources",
    "licence",
    "permission",
}
_REQUIRED_KEYS |= {"description", "columns", "homepage", "citation", "report", "empty_splits", "info"}
# The facts of `datasets` about a data set that its card repeats.
_INFO_KEYS = ("features", "splits", "dataset_size")


def make_record(
    builder: LocalBuilder,
    name: str,
    folder: Path,
    files: Iterable[Path],
    *,
    options: Columns,
    splits: Sequence[str] | None,
    licence: Licence,
    permission: str | None,
) -> Fields:
    """Collects the facts about one configuration, as written to its `build.json`; they can be written as JSON."""
    root = builder.config.root
    info = bounded_files.read_json(folder / "dataset_info.json")
    counts = info["splits"]
    # `datasets` cannot load a split without rows.
    info["splits"] = {split: facts for split, facts in counts.items() if facts["num_examples"]}
    shown = {key: without_folders(value) for key, value in options.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "builder": name,
        "builder_config": builder.config.name,
        "options": shown,
        "command": _command(name, builder.config.name, splits, shown),
        "versions": versions(),
        "scenes": read_scenes(root) if licence == SCENES else None,
        "sources": [_checksum(path, root) for path in dict.fromkeys(builder.config.sources()) if path.exists()],
        "licence": dataclasses.asdict(licence),
        "permission": permission,
        "description": builder.info.description,
        "columns": _columns(builder),
        "homepage": builder.info.homepage,
        "citation": builder.info.citation,
        "report": builder.report,
        "empty_splits": [split for split in counts if split not in info["splits"]],
        "info": {key: info.get(key) for key in _INFO_KEYS}
        | {"download_size": sum(path.stat().st_size for path in files)},
    }


def check_record(record: Row, where: str) -> None:
    """Checks that a record is complete and has the expected format."""
    found = (record.get("format"), record.get("version"))
    hint = "another program or version pushed it; push to another repository"
    if found != (FORMAT, VERSION):
        expected = repr((FORMAT, VERSION))
        raise DataError("not the record of a data set", file=where, found=found, expected=expected, hint=hint)
    missing = sorted(_REQUIRED_KEYS - set(record))
    if missing:
        raise DataError(f"the record lacks {', '.join(missing)}", file=where, hint=hint)


def versions() -> dict[str, str]:
    """Returns the versions of the programs that determine the rows."""
    return {
        "grounded-attention": __version__,
        "python": platform.python_version(),
        "datasets": datasets.__version__,
        "pyarrow": pyarrow.__version__,
        "huggingface_hub": huggingface_hub.__version__,
    }


def _checksum(path: Path, root: Path) -> Fields:
    """Name, files, bytes and SHA-256; of a folder that of the lines `<checksum>  <path below it>`, sorted by path."""
    inside = path.resolve().is_relative_to(root.resolve())
    if inside:
        name = path.resolve().relative_to(root.resolve()).as_posix()
    else:
        name = path.name
    if (path / MANIFEST).is_file():
        manifest = KIND.read(path / MANIFEST)
        size = sum(shard["bytes"] for shard in manifest["shards"])
        return {"file": path.name, "files": len(manifest["shards"]), "bytes": size, "table": manifest["checksum"]}
    if path.is_file():
        file = name if name != "." else path.name
        return {"file": file, "files": 1, "bytes": path.stat().st_size, "sha256": sha256(path)}
    files = sorted(Path(parent, each) for parent, _, names in os.walk(path) for each in names)
    lines = "".join(f"{sha256(file)}  {file.relative_to(path).as_posix()}\n" for file in files)
    size = sum(file.stat().st_size for file in files)
    whole = hashlib.sha256(lines.encode()).hexdigest()
    return {"file": f"{name}/", "files": len(files), "bytes": size, "sha256": whole}


def without_folders(value: Any) -> Any:
    """Removes the folders from a text that is a path, because they describe this machine and not the data."""
    if isinstance(value, str) and os.sep in value and not value.startswith("hub://"):
        return Path(value).name
    return value


def _command(name: str, config: str, splits: Sequence[str] | None, options: Columns) -> str:
    if name == "rows":
        columns = [f"{key}={_format_option(value)}" for key, value in options.get("columns", {}).items()]
        values = [(key, value) for key, value in options.items() if key != "columns"]
        words = [word for key, value in values for word in (f"--{key.replace('_', '-')}", _format_option(value))]
        words += ["--columns", *columns] if columns else []
        return shlex.join(["grounded-attention", "data", "push", "SOURCE", "ORG/NAME", *words])
    parts = ["grounded-attention", "data", "build", name]
    if config != "default":
        parts += ["--config", config]
    parts += ["--data-dir", "DIR", "--output", "OUT"]
    for split in splits or ():
        parts += ["--split", split]
    parts += [f"{key}={_format_option(value)}" for key, value in options.items()]
    return shlex.join(parts)


def _format_option(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _columns(builder: LocalBuilder) -> str:
    """Returns the part of the builder's docstring before its example."""
    text = next((part for part in (type(builder).__doc__ or "").split("Example:") if part.strip()), "")
    return inspect.cleandoc(text).replace("[`", "`").replace("`]", "`")


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
