# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds the attention heads of a vision-language model that ground phrases: LLaVA, Qwen-VL, SmolVLM, Gemma 3 ...

Every head of every layer is scored on phrases with boxes: whether the image token with the most attention is on the
object, how much attention the object gets, how much the image gets, and spatial entropy. The best heads are chosen on
one split (--choose-on) and reported on another (--split), with the boxes they give without training, and with what the
model loses without them (--ablate). Attention is read on SDPA or FlashAttention; no maps are made.

The folder --output gets heads.json, heads.md and heads.png, and with --explore a page to click through. Put heads.json
beside the model, or give it to `grounded-attention ground --heads`, to ground phrases with these heads. --card puts
the chosen heads into the card of a model that train.py made. docs/vlm.md explains the numbers.

--evaluate measures heads that were chosen before, on any data, and writes boxes.json and boxes.md.

examples:
  grounded-attention heads --model Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16 --data refcoco --config refcoco \\
      --data-dir data/refer --images data/coco/train2014 image_id_format=file_stem

  # pictures of coloured shapes
  grounded-attention heads --model runs/my_vlm --data flickr30k_entities --data-dir data/scenes \\
      --images data/scenes/flickr30k-images --split test --top-k 5

  # the same heads on other data
  grounded-attention heads --model runs/my_vlm --evaluate runs/heads/my_vlm/heads.json --data refcoco \\
      --data-dir data/scenes --images data/scenes/flickr30k-images --split testA
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from grounded_attention.dataset_scripts.builders import BUILDERS

from .choices import BESIDE_MODEL, HEAD_RANKS, HEADS_ABLATED, HEADS_FILE, WORDS
from .command_line import make_parser, run
from .number_options import count, seed_number
from .user_errors import explain_error
from .vlm_options import add_vlm_options

# Localization Heads chooses on this many examples.
LIMIT = 1000
# Options without a meaning for heads that were chosen before.
OF_A_CHOICE = ("choose_on", "top_k", "rank", "words", "instruction", "ablate", "explore", "seed", "card")


def check_options(options: argparse.Namespace) -> None:
    """
    Checks the options before anything is loaded.
    """
    for name, least in (("top_k", 1), ("limit", 0), ("ablate", 0), ("explore", 0), ("batch_size", 1)):
        if getattr(options, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(options, name)}: expected {least} or more")
    if not Path(options.images).is_dir():
        raise ValueError(f"--images {options.images}: no such folder")
    if options.evaluate is not None:
        parser = build_parser()
        given = [
            f"--{name.replace('_', '-')}" for name in OF_A_CHOICE if getattr(options, name) != parser.get_default(name)
        ]
        if given:
            raise ValueError(f"{', '.join(given)}: not with --evaluate, whose file says how the heads were chosen")
    elif options.choose_on == options.split:
        raise ValueError(f"--choose-on {options.choose_on} is also the reported split; give another one")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), _work, arguments, explain_error=explain_error, intermixed=True)


def _work(options: argparse.Namespace) -> str:
    check_options(options)
    from .heads_work import work

    return work(options)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention heads", __doc__)
    add = parser.add_argument
    add("options", nargs="*", metavar="key=value", help="options of the data builder, see data build --help")
    add("--model", required=True, metavar="NAME_OR_DIR", help="a vision-language model with its processor")
    add_vlm_options(parser)
    add("--data", required=True, choices=list(BUILDERS), help="data set with phrases and boxes")
    add("--config", metavar="NAME", help="configuration of the data set, for example refcoco+")
    add("--data-dir", required=True, metavar="DIR", help="folder of the data set, see docs/data.md")
    add("--images", required=True, metavar="DIR", help="folder of the images")
    add("--choose-on", default="train", metavar="SPLIT", help="split to choose heads on (default: train)")
    add("--split", default="validation", metavar="SPLIT", help="split to report (default: validation)")
    add("--limit", type=count, default=LIMIT, metavar="N", help=f"first N rows of each split, 0 for all ({LIMIT})")
    add("--top-k", type=count, default=3, metavar="K", help="number of heads to choose (default: 3)")
    add("--rank", choices=HEAD_RANKS, default=HEAD_RANKS[0], help="how heads are ranked (default: %(default)s)")
    add(
        "--words",
        choices=WORDS,
        default=WORDS[0],
        help="tokens that ask for a phrase (default: %(default)s)",
    )
    add("--instruction", metavar="TEXT", help="words of the user; the texts of the data are then answers")
    add(
        "--ablate",
        type=count,
        default=HEADS_ABLATED,
        metavar="N",
        help=f"examples of the ablation, 0 for none ({HEADS_ABLATED})",
    )
    add(
        "--evaluate",
        nargs="?",
        const=BESIDE_MODEL,
        metavar="FILE",
        help=f"measure the heads of this file, or of {HEADS_FILE} beside the model, instead of choosing",
    )
    add("--batch-size", type=count, default=4, metavar="N", help="texts in a batch (default: 4)")
    add(
        "--seed",
        type=seed_number,
        default=0,
        metavar="N",
        help="seed of random heads in the ablation (default: 0)",
    )
    add("--explore", type=count, default=0, metavar="N", help="write explorer.html, a page to click, with N images")
    add("--card", metavar="FILE_OR_DIR", help="put the chosen heads into this model card, or the card of this folder")
    add("--output", metavar="DIR", help="output folder (default: a folder in runs/heads)")
    add("--json", action="store_true", help="print the result as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
