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
from typing import TYPE_CHECKING, Unpack

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.licences import Licence
from grounded_attention.dataset_scripts.pseudo_labels.files import MANIFEST

from .command_line import make_parser
from .push_options import PushChoices, add_push_options, push_choices, push_table, run_push

if TYPE_CHECKING:
    from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable


def push_labels(folder: str | os.PathLike[str], to: str, **choices: Unpack[PushChoices]) -> str:
    """Pushes the pseudo-labels in `folder`.

    Args:
        folder (`str | os.PathLike[str]`): The pseudo-labels.
        to (`str`): The repository, `ORG/NAME`.
        **choices: `revision`, `private`, `permission` and `licence`, see [`PushChoices`].

    Returns:
        `str`: The address of the commit.

    Raises:
        HubError: if the push fails; the repository is not changed.
        DataError: if the labels are damaged, the push is not permitted, or the repository contains other files.
    """
    from grounded_attention.dataset_scripts.pseudo_labels.card import write_label_card
    from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable

    table = PseudoLabelTable(folder)
    return push_table(
        table,
        to,
        choices,
        name=f"the pseudo-labels {folder}",
        terms=_terms(table),
        files=[MANIFEST],
        write_card=lambda terms, _: write_label_card(
            to, table.info, terms, choices.get("permission"), next(iter(table))
        ),
        message=f"Pseudo-labels of {len(table)} captions",
    )


def _terms(table: "PseudoLabelTable") -> Licence:
    """The terms of the captions."""
    try:
        return Licence(**table.provenance["captions"]["licence"])
    except (KeyError, TypeError, ValueError) as error:
        hint = "label the captions again"
        problem = "the provenance does not have the licence of the captions"
        raise DataError(problem, file=table.path / MANIFEST, found=repr(error)[:200], hint=hint) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run_push(build_parser(), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable

    commit = push_labels(options.table, options.repository, **push_choices(options))
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
