# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes of region tables and pseudo-labels to a data set repository: their files unchanged, and a card."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.manifests import sha256
from grounded_attention.dataset_scripts.hub.push_commit import CARD, Repository, commit_files, fetch_repository
from grounded_attention.dataset_scripts.licences import (
    REGION_FEATURES,
    SCENES,
    Licence,
    apply_user_licence,
    check_redistribution,
)
from grounded_attention.dataset_scripts.pseudo_labels.files import MANIFEST as LABELS
from grounded_attention.dataset_scripts.regions.files import INDEX
from grounded_attention.dataset_scripts.regions.files import MANIFEST as REGIONS
from grounded_attention.dataset_scripts.regions.table import RegionTable


class PushChoices(TypedDict, total=False):
    """How a table is pushed."""

    revision: str | None
    private: bool
    permission: str | None
    licence: str | None


def push_regions(folder: str | os.PathLike[str], to: str, **choices: Unpack[PushChoices]) -> str:
    """Pushes the region table in `folder`; every row is compared with its checksum first."""
    from grounded_attention.dataset_scripts.regions.region_card import write_region_card

    table = RegionTable(folder)

    def write_card(terms: Licence, files: Sequence[str]) -> str:
        checksums = {name: sha256(table.path / name) for name in files}
        return write_region_card(to, table.info, terms, choices.get("permission"), checksums, next(iter(table)))

    terms = SCENES if table.provenance.get("source") == "scenes" else REGION_FEATURES
    name, message = f"the region table {folder}", f"Region table of {len(table)} images"
    return _push(table, to, choices, name, terms, [INDEX, REGIONS], write_card, message)


def push_labels(folder: str | os.PathLike[str], to: str, **choices: Unpack[PushChoices]) -> str:
    """Pushes the pseudo-labels in `folder`; every row is checked first. The licence is that of the captions."""
    from grounded_attention.dataset_scripts.pseudo_labels.label_card import write_label_card
    from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable

    table = PseudoLabelTable(folder)
    try:
        terms = Licence(**table.provenance["captions"]["licence"])
    except (KeyError, TypeError, ValueError) as error:
        hint = "label the captions again"
        problem = "the provenance does not have the licence of the captions"
        raise DataError(problem, file=table.path / LABELS, found=repr(error)[:200], hint=hint) from error

    def write_card(terms: Licence, files: Sequence[str]) -> str:
        return write_label_card(to, table.info, terms, choices.get("permission"), next(iter(table)))

    name, message = f"the pseudo-labels {folder}", f"Pseudo-labels of {len(table)} captions"
    return _push(table, to, choices, name, terms, [LABELS], write_card, message)


# The manifest of a folder -> how it is pushed. The last of the files of a push is its manifest.
TABLES: dict[str, Callable[..., str]] = {REGIONS: push_regions, LABELS: push_labels}


def _push(
    table: Any,
    to: str,
    choices: PushChoices,
    name: str,
    terms: Licence,
    files: Sequence[str],
    write_card: Callable[[Licence, Sequence[str]], str],
    message: str,
) -> str:
    """Pushes the shards of a table and its `files`, of which the last is the manifest, with a card."""
    terms = apply_user_licence(terms, choices.get("licence"))
    check_redistribution(terms, name, choices.get("permission"))
    private = choices.get("private", False)
    repository = fetch_repository(to, choices.get("revision"), private)
    _check_free(repository, files[-1])
    table.verify()
    names = [*(shard["file"] for shard in table.info["shards"]), *files]
    added: dict[str, Path | bytes] = {each: table.path / each for each in names}
    added[CARD] = write_card(terms, names).encode()
    old = [each for each in repository.user_files() if each not in added]
    return commit_files(repository, added, old, message=message, private=private)


def _check_free(repository: Repository, manifest: str) -> None:
    """Refuses a repository with other files than a table of this kind, which has this manifest."""
    if repository.user_files() and manifest not in repository.files:
        file, hint = repository.user_files()[0], "push to another repository"
        raise DataError("the repository contains other files", where=repository.name, found=file, hint=hint)
