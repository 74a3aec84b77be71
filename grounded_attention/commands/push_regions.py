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
from typing import Unpack

from grounded_attention.dataset_scripts.files.manifests import sha256
from grounded_attention.dataset_scripts.licences import REGION_FEATURES, SCENES, Licence
from grounded_attention.dataset_scripts.regions.files import INDEX, MANIFEST
from grounded_attention.dataset_scripts.regions.table import RegionTable

from .command_line import make_parser
from .push_options import PushChoices, add_push_options, push_choices, push_table, run_push


def push_regions(folder: str | os.PathLike[str], to: str, **choices: Unpack[PushChoices]) -> str:
    """Pushes the region table in `folder`.

    Args:
        folder (`str | os.PathLike[str]`): The table.
        to (`str`): The repository, `ORG/NAME`.
        **choices: `revision`, `private`, `permission` and `licence`, see [`PushChoices`].

    Returns:
        `str`: The address of the commit.

    Raises:
        HubError: if the push fails; the repository is not changed.
        DataError: if the table is damaged, the push is not permitted, or the repository contains other files.
    """
    from grounded_attention.dataset_scripts.regions.card import write_region_card

    table = RegionTable(folder)

    def write_card(terms: Licence, files: Sequence[str]) -> str:
        checksums = {name: sha256(table.path / name) for name in files}
        return write_region_card(to, table.info, terms, choices.get("permission"), checksums, next(iter(table)))

    return push_table(
        table,
        to,
        choices,
        name=f"the region table {folder}",
        terms=_terms(table),
        files=[INDEX, MANIFEST],
        write_card=write_card,
        message=f"Region table of {len(table)} images",
    )


def _terms(table: RegionTable) -> Licence:
    return SCENES if table.provenance.get("source") == "scenes" else REGION_FEATURES


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run_push(build_parser(), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    commit = push_regions(options.table, options.repository, **push_choices(options))
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
