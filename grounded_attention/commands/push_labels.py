# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes pseudo-labels to a data set repository on the Hub, in one commit with a card.

The Parquet files and the manifest are pushed unchanged; every row is checked first. Phrases are parts of captions, so
the licence of the captions decides: where it does not clearly allow a push, --permission is required.

examples:
  grounded-attention data push-labels data/scenes/wrong_20 me/scenes-wrong-20

  # labels of other people's captions
  grounded-attention data push-labels data/flickr30k/pseudo_labels me/flickr30k-pseudo-labels --private \\
      --permission "for members of our group, who have the captions"

  # in a recipe, on another machine
  grounded-attention train RECIPE data.pseudo_labels=hub://me/scenes-wrong-20
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from grounded_attention.dataset_scripts.hub.push_commit import CARD, commit_files, fetch_repository
from grounded_attention.dataset_scripts.licences import Licence, apply_user_licence, check_redistribution
from grounded_attention.dataset_scripts.pseudo_labels.files import MANIFEST

from .command_line import make_parser, run
from .push_options import add_push_options, check_free


def push_labels(
    folder: str | os.PathLike[str],
    to: str,
    *,
    revision: str | None = None,
    private: bool = False,
    permission: str | None = None,
    licence: str | None = None,
) -> str:
    """Pushes the pseudo-labels in `folder`.

    Args:
        folder (`str | os.PathLike[str]`): The pseudo-labels.
        to (`str`): The repository, `ORG/NAME`.
        revision (`str`, *optional*): A branch of the repository, `main` by default.
        private (`bool`, *optional*, defaults to `False`): Make a new repository private; one that is public already is
            refused.
        permission (`str`, *optional*): The reason why the phrases may be pushed, if the captions are of others.
        licence (`str`, *optional*): Licence of the phrases, as the Hub names it, if the captions are the user's own.

    Returns:
        `str`: The address of the commit.

    Raises:
        HubError: if the push fails; the repository is not changed.
        DataError: if the labels are damaged, the push is not permitted, or the repository contains other files.
    """
    from grounded_attention.dataset_scripts.pseudo_labels.card import write_label_card
    from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable

    table = PseudoLabelTable(folder)
    terms = apply_user_licence(Licence(**table.provenance["captions"]["licence"]), licence)
    check_redistribution(terms, f"the pseudo-labels {folder}", permission)
    repository = fetch_repository(to, revision, private)
    check_free(repository, MANIFEST)
    table.verify()
    names = [*(shard["file"] for shard in table.info["shards"]), MANIFEST]
    files: dict[str, Path | bytes] = {name: table.path / name for name in names}
    files[CARD] = write_label_card(to, table.info, terms, permission, next(iter(table))).encode()
    old = [name for name in repository.user_files() if name not in files]
    return commit_files(repository, files, old, message=f"Pseudo-labels of {len(table)} captions", private=private)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(
        build_parser(), _work, arguments, resumable="run the same command again to continue; nothing is published yet"
    )


def _work(options: argparse.Namespace) -> str:
    from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable

    commit = push_labels(
        options.table,
        options.repository,
        revision=options.revision,
        private=options.private,
        permission=options.permission,
        licence=options.licence,
    )
    counts = PseudoLabelTable(options.table).info["statistics"]
    shown = {name: counts[name] for name in ("captions", "phrases", "boxes")}
    if options.json:
        return json.dumps({"repository": options.repository, "commit": commit, **shown})
    return f"pushed {shown['captions']:,} captions with {shown['phrases']:,} phrases to {options.repository}: {commit}"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention data push-labels", __doc__)
    captions = ("your own captions", "other people's captions")
    add_push_options(parser, "folder of the pseudo-labels", *captions)
    return parser


if __name__ == "__main__":
    sys.exit(main())
