# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Audits all models of a run of train.py, one per supervision method, and writes one page (`make audit`).

The command trains nothing. It measures where every attention head looks, before and after supervision: from phrases to
regions and back, and from words to the regions of grammatically related words (if the data have CoNLL-U parses). Heads
are chosen on the validation split and reported on the test split. Relevancy maps are compared by removing regions.
docs/audit.md explains the numbers.

The command writes to the folder --output: audit.html (one file, needs no network) and for each method a folder with
the files of `grounded-attention audit` and `grounded-attention perturb`. It also adds a section to each model card.

examples:
  grounded-attention audit-run runs/scenes_vgp

  grounded-attention audit-run runs/scenes_visualbert_vgp --limit 50 --rows 0
"""

import argparse
import sys
from collections.abc import Sequence

from .command_line import make_parser, run
from .number_options import count
from .user_errors import explain_error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), _work, arguments, explain_error=explain_error)


def _work(options: argparse.Namespace) -> str | None:
    from .audit_run_work import work

    return work(options)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention audit-run", __doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of a run of train.py with one model per method, such as runs/scenes_vgp")
    add(
        "--data-dir",
        metavar="DIR",
        help="folder of the data, with the region table in regions/ (default: as in training)",
    )
    add("--limit", type=count, default=200, metavar="N", help="use the first N images of each split (default: 200)")
    add("--rows", type=count, default=200, metavar="N", help="rows to compare maps on, 0 for none (default: 200)")
    add("--explore", type=count, default=4, metavar="N", help="captions in the explorer, 0 for none (default: 4)")
    add("--output", metavar="DIR", help="output folder (default: audit in RUN)")
    add("--cpu", action="store_true", help="run on the CPU even if there is a GPU")
    add("--json", action="store_true", help="print the figures as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
