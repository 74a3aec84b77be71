# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes of region tables and pseudo-labels to a data set repository: their files unchanged, and a card."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

from grounded_attention.dataset_scripts.files.errors import DataError, damaged
from grounded_attention.dataset_scripts.files.manifests import sha256
from grounded_attention.dataset_scripts.hub.push_commit import CARD, Files, Repository, commit_files, fetch_repository
from grounded_attention.dataset_scripts.licences import (
    REGION_FEATURES,
    SCENES,
    Licence,
    apply_user_licence,
    check_redistribution,
)
from grounded_attention.dataset_scripts.regions.shards import INDEX, SHARDS
from grounded_attention.dataset_scripts.regions.shards import MANIFEST as REGIONS
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.labelling import MANIFEST as LABELS
from grounded_attention.utils.named_types import AnyPath
from grounded_attention.utils.plain_text import markdown_text


class PushChoices(TypedDict, total=False):
    """How a table is pushed."""

    revision: str | None
    private: bool
    permission: str | None
    licence: str | None


def push_regions(folder: AnyPath, to: str, **choices: Unpack[PushChoices]) -> str:
    """Pushes the region table in `folder`; every row is compared with its checksum first."""
    table = RegionTable(folder)
    terms = SCENES if table.provenance.get("source") == "scenes" else REGION_FEATURES
    name = f"the region table {folder}"
    message = f"Region table of {len(table)} images"

    def write_card(terms: Licence) -> str:
        return region_card(to, table, terms, choices.get("permission"))

    return _push(table, to, choices, name, terms, [INDEX, REGIONS], write_card, message)


def region_card(to: str, table: RegionTable, terms: Licence, permission: str | None) -> str:
    """The card of a region table."""
    from grounded_attention.dataset_scripts.hub.dataset_card import table_card

    detector = table.provenance.get("detector")
    if isinstance(detector, str):
        named = detector
    else:
        named = json.dumps(detector, ensure_ascii=False)
    files = []
    for shard in table.info["shards"]:
        files.append((f"`{shard['file']}`", f"{shard['bytes']:,}", f"`{sha256(table.path / shard['file'])}`"))
    return table_card(
        "regions",
        to,
        table.info,
        terms,
        permission,
        shards=SHARDS,
        tags=["region-features"],
        detector=markdown_text(named) if detector else "not named",
        example=json.dumps(next(iter(table))),  # the id of an image may contain quotes and line ends
        files_of_table=files,
    )


def push_labels(folder: AnyPath, to: str, **choices: Unpack[PushChoices]) -> str:
    """Pushes the pseudo-labels in `folder`; every row is checked first. The licence is that of the captions."""
    from grounded_attention.dataset_scripts.hub.dataset_card import table_card
    from grounded_attention.labelling.labels import FILE, PseudoLabels, count_labels, describe

    labels = PseudoLabels(folder)
    problem = "the provenance does not have the licence of the captions"
    place = {"file": labels.path / LABELS, "hint": "label the captions again"}
    with damaged(problem, KeyError, TypeError, ValueError, **place):
        terms = Licence(**labels.info["provenance"]["captions"]["licence"])

    def write_card(terms: Licence) -> str:
        return table_card(
            "pseudo_labels",
            to,
            labels.info,
            terms,
            choices.get("permission"),
            shards=FILE,
            tags=["pseudo-labels", "visual-grounding"],
            statistics="\n".join(describe(count_labels(labels.rows))),
        )

    name = f"the pseudo-labels {folder}"
    message = f"Pseudo-labels of {len(labels.rows)} captions"
    return _push(labels, to, choices, name, terms, [LABELS], write_card, message)


# The manifest of a folder -> how it is pushed. The last of the files of a push is its manifest.
TABLES: dict[str, Callable[..., str]] = {REGIONS: push_regions, LABELS: push_labels}


def _push(
    table: Any,
    to: str,
    choices: PushChoices,
    name: str,
    terms: Licence,
    files: Sequence[str],
    write_card: Callable[[Licence], str],
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
    added: Files = {each: table.path / each for each in names}
    added[CARD] = write_card(terms).encode()
    old = [each for each in repository.user_files() if each not in added]
    return commit_files(repository, added, old, message=message, private=private)


def _check_free(repository: Repository, manifest: str) -> None:
    """Refuses a repository with other files than a table of this kind, which has this manifest."""
    if repository.user_files() and manifest not in repository.files:
        file = repository.user_files()[0]
        hint = "push to another repository"
        raise DataError("the repository contains other files", where=repository.name, found=file, hint=hint)
