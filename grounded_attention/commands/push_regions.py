# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes a region table to a data set repository on the Hub, in one commit with a card.

The files of the table are pushed unchanged: shards, index and manifest. Every row is compared with its checksum first.
Features reveal something about the images, so --licence (your own data) or --permission is required, except for
scenes.

examples:
  grounded-attention regions push data/scenes/regions me/scenes-regions

  # features of your own photographs
  grounded-attention regions push data/photos/regions me/photo-regions --licence cc-by-4.0

  # features of other people's images
  grounded-attention regions push data/flickr30k/regions me/flickr30k-regions --private \\
      --permission "for members of our group, who have the images"

  # in Python, on another machine
  from grounded_attention.dataset_scripts.regions.table import RegionTable
  RegionTable.open("hub://me/scenes-regions")
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from grounded_attention.dataset_scripts.files.manifests import sha256
from grounded_attention.dataset_scripts.hub.push_commit import CARD, commit_files, fetch_repository
from grounded_attention.dataset_scripts.licences import (
    REGION_FEATURES,
    SCENES,
    Licence,
    apply_user_licence,
    check_redistribution,
)
from grounded_attention.dataset_scripts.regions.files import INDEX, MANIFEST
from grounded_attention.dataset_scripts.regions.table import RegionTable

from .command_line import make_parser, run
from .push_options import add_push_options, check_free


def push_regions(
    folder: str | os.PathLike[str],
    to: str,
    *,
    revision: str | None = None,
    private: bool = False,
    permission: str | None = None,
    licence: str | None = None,
) -> str:
    """Pushes the region table in `folder`.

    Args:
        folder (`str | os.PathLike[str]`): The table.
        to (`str`): The repository, `ORG/NAME`.
        revision (`str`, *optional*): A branch of the repository, `main` by default.
        private (`bool`, *optional*, defaults to `False`): Make a new repository private; one that is public already is
            refused.
        permission (`str`, *optional*): The reason why the features may be pushed, if the images are of others.
        licence (`str`, *optional*): Licence of the features, as the Hub names it, if the images are the user's own.

    Returns:
        `str`: The address of the commit.

    Raises:
        HubError: if the push fails; the repository is not changed.
        DataError: if the table is damaged, the push is not permitted, or the repository contains other files.
    """
    from grounded_attention.dataset_scripts.regions.card import write_region_card

    table = RegionTable(folder)
    terms = apply_user_licence(_terms(table), licence)
    check_redistribution(terms, f"the region table {folder}", permission)
    repository = fetch_repository(to, revision, private)
    check_free(repository, MANIFEST)
    table.verify()
    names = [*(shard["file"] for shard in table.info["shards"]), INDEX, MANIFEST]
    files: dict[str, Path | bytes] = {name: table.path / name for name in names}
    checksums = {name: sha256(table.path / name) for name in names}
    card = write_region_card(to, table.info, terms, permission, checksums, next(iter(table)))
    old = [name for name in repository.user_files() if name not in (*names, CARD)]
    message = f"Region table of {len(table)} images"
    return commit_files(repository, {**files, CARD: card.encode()}, old, message=message, private=private)


def _terms(table: RegionTable) -> Licence:
    return SCENES if table.provenance.get("source") == "scenes" else REGION_FEATURES


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(
        build_parser(), _work, arguments, resumable="run the same command again to continue; nothing is published yet"
    )


def _work(options: argparse.Namespace) -> str:
    commit = push_regions(
        options.table,
        options.repository,
        revision=options.revision,
        private=options.private,
        permission=options.permission,
        licence=options.licence,
    )
    info = RegionTable(options.table).info
    if options.json:
        shown = {name: info[name] for name in ("images", "regions", "checksum")}
        return json.dumps({"repository": options.repository, "commit": commit, **shown})
    return f"pushed {info['images']:,} images with {info['regions']:,} regions to {options.repository}: {commit}"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention regions push", __doc__)
    images = ("your own images", "other people's images")
    add_push_options(parser, "folder of the region table", *images)
    return parser


if __name__ == "__main__":
    sys.exit(main())
