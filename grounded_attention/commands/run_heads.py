# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures the heads of all models of a run of train.py, one per supervision method, and writes one page.

The command trains nothing (`make audit`, `make vlm`). It measures where every attention head looks, before and after
supervision, chooses heads on the validation split and reports them on the test split, with the boxes that they give.
A run of data.source without a test split: chosen on train, reported on validation, the images that were held out.
If the data have CoNLL-U parses, words are also related to the regions of grammatically related words. Relevancy maps
are compared by removing regions. docs/audit.md and docs/vlm.md explain the numbers.

The models of the task grounded_generation on scenes also answer questions (VQA), and questions for objects that are or
are not there (object hallucination). Two rows of their table are baselines. `text_only` was trained without pictures;
it looks nowhere, so the centre of the image stands for each phrase. `chance` points at any image token, takes the box
of another phrase, and gives the answer that is most frequent in training, or guesses yes or no.

The folder --output gets heads.html (one file, needs no network) and for each method a folder with the files of
`grounded-attention heads` and `grounded-attention perturb`. What was measured is also put into each model card, and
heads.json beside each vision-language model, so that `grounded-attention ground` finds it.

examples:
  grounded-attention run-heads runs/scenes_vgp

  grounded-attention run-heads runs/scenes_visualbert_vgp --limit 50 --rows 0

  grounded-attention run-heads runs/vlm_scenes
"""

import argparse

from grounded_attention.heads import WORDS

from .command_line import make_main, make_parser
from .number_options import not_negative, positive
from .user_errors import explain_error


def _work(options: argparse.Namespace) -> str | None:
    from .run_heads_work import work

    return work(options)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention run-heads", __doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of a run of train.py with one model per method, such as runs/scenes_vgp")
    add(
        "--data-dir",
        metavar="DIR",
        help="folder of the data, with the region table in regions/ (default: as in training)",
    )
    add("--limit", type=positive, default=200, metavar="N", help="use the first N images of each split (default: 200)")
    add("--rows", type=not_negative, default=200, metavar="N", help="rows to compare maps on (default: 200)")
    add("--explore", type=not_negative, default=4, metavar="N", help="captions in the explorer (default: 4)")
    add("--top-k", type=positive, default=3, metavar="K", help="number of heads to choose (default: 3)")
    add("--words", choices=WORDS[:3], help="tokens that ask for a phrase, see heads --help (default: as there)")
    add("--ablate", type=not_negative, default=0, metavar="N", help="vision-language: captions of the ablation (0)")
    add("--questions", type=not_negative, default=400, metavar="N", help="vision-language: questions a kind (400)")
    add("--output", metavar="DIR", help="output folder (default: heads in RUN)")
    add("--cpu", action="store_true", help="run on the CPU even if there is a GPU")
    add("--json", action="store_true", help="print the numbers as JSON")
    return parser


main = make_main(build_parser, _work, explain_error=explain_error)
