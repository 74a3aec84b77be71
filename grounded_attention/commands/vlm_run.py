# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures the vision-language models of a run on scenes, one per supervision method (`make vlm`). Trains nothing.

The table has, for each model: the pointing game of its best head and of its K best heads together, the boxes that
these K heads give (IoU of at least 0.5), accuracy of answers to questions (VQA), and accuracy of yes and no to
questions for objects that are or are not there (object hallucination). Heads are chosen on captions of the validation
split and reported on captions of the test split.

Two rows are baselines. `text_only` was trained without pictures; it looks nowhere, so the centre of the image stands
for each phrase. `chance` points at any image token, takes the box of another phrase, and gives the answer that is most
frequent in training, or guesses yes or no.

The command writes to the folder --output: vlm.md and vlm.json, for each model a folder with heads.json, heads.md and
heads.png, and pictures of what phrases look at. heads.json is also put beside each model, so that
`grounded-attention ground` finds it, and the chosen heads are put into the model's card.

examples:
  grounded-attention vlm-run runs/vlm_scenes
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


def _work(options: argparse.Namespace) -> str:
    from .vlm_run_work import work

    return work(options)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention vlm-run", __doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of a run of train.py with the task grounded_generation on scenes")
    add("--limit", type=count, default=200, metavar="N", help="captions of each split, each of another image (200)")
    add("--questions", type=count, default=400, metavar="N", help="questions of each kind (400)")
    add("--top-k", type=count, default=3, metavar="K", help="number of heads to choose (3)")
    add(
        "--words", choices=("mean", "last"), default="mean", help="tokens that ask for a phrase (default: %(default)s)"
    )
    add("--ablate", type=count, default=0, metavar="N", help="captions of the ablation of heads, 0 for none (0)")
    add("--pictures", type=count, default=4, metavar="N", help="pictures of what phrases look at (4)")
    add("--output", metavar="DIR", help="output folder (default: vlm in RUN)")
    add("--cpu", action="store_true", help="run on the CPU even if there is a GPU")
    add("--json", action="store_true", help="print the figures as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
