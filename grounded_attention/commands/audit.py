# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures how often each attention head of a model attends most to the right region.

For each phrase of a data set and each head, the audit checks whether the region with the most attention is a gold
region. The command writes to the folder --output: heads.json with its counts (`HeadTable.load` reads them), audit.md,
tables and figures. docs/audit.md explains the numbers.

The model is a model of this project, transformers' VisualBERT or LXMERT with a tokenizer, or a vision-language model
(LLaVA, Qwen-VL, SmolVLM, Gemma 3 ...) or an adapter of one, whose regions are image tokens. The best heads are chosen
on one split (--choose-on) and reported on another (--split); "--choose-on same_split" chooses as the paper does.
--against audits a second model and reports which heads changed from that model to --model. To use several processes:
torchrun --nproc_per_node N -m grounded_attention.commands.audit.

examples:
  grounded-attention audit --model runs/scenes_vgp/direct --data flickr30k_entities --data-dir data/scenes \\
      --split test

  # before and after fine-tuning, with the dependency relations of parsed captions
  grounded-attention audit --model runs/scenes_vgp/direct --against runs/scenes_vgp/none --data flickr30k_entities \\
      --data-dir data/scenes --split test --relations data/scenes/parses

  # a checkpoint on the Hub, as in the paper
  grounded-attention audit --model uclanlp/visualbert-nlvr2-coco-pre --tokenizer bert-base-uncased \\
      --data flickr30k_entities --data-dir data/flickr30k --regions data/flickr30k/regions --choose-on same_split

  # a vision-language model: what an adapter changed
  grounded-attention audit --model runs/my_lora/direct --against Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16 \\
      --data flickr30k_entities --data-dir data/flickr30k --images data/flickr30k/flickr30k-images --split test
"""

import argparse
import sys
from collections.abc import Sequence

from grounded_attention.utils.boxes import IOU_THRESHOLD

from .choices import (
    CORRECTIONS,
    DEFAULT_WORD,
    REGIONS,
    SAME_SPLIT,
    TEST,
    VALIDATION,
    WORDS,
)
from .command_line import make_parser, run
from .device_options import DTYPES
from .number_options import count, share
from .user_errors import explain_error
from .vlm_options import BACK_ENDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), _work, arguments, explain_error=explain_error)


def _work(options: argparse.Namespace) -> str | None:
    from .audit_work import work

    return work(options)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention audit", __doc__)
    add = parser.add_argument
    add("--model", required=True, metavar="DIR_OR_ID", help="checkpoint to audit, or a name on the Hub")
    add("--against", metavar="DIR_OR_ID", help="also audit this model and report the changes from it to --model")
    add("--tokenizer", metavar="DIR_OR_ID", help="tokenizer, for a checkpoint of transformers without one")
    add(
        "--data",
        required=True,
        metavar="NAME",
        help="data set with captions and phrases: flickr30k_entities or vgp; for a vision-language model also refcoco",
    )
    add("--data-dir", required=True, metavar="DIR", help="folder of the data set, see docs/data.md")
    add("--regions", metavar="TABLE", help=f"folder of the region table (default: {REGIONS} in --data-dir)")
    add("--images", metavar="DIR", help="folder of the images, for a model that reads them and for --explore")
    add("--instruction", metavar="TEXT", help="vision-language model: words of the user; captions are then answers")
    add("--attention", metavar="NAME", default="sdpa", help=f"vision-language model: {BACK_ENDS} (default: sdpa)")
    add("--dtype", choices=DTYPES, default="float32", help="vision-language model: floating type (default: float32)")
    add("--split", default=VALIDATION, metavar="NAME", help=f"split to report (default: {VALIDATION})")
    add(
        "--choose-on",
        metavar="SPLIT",
        help=f"split to choose heads on, or {SAME_SPLIT} (default: {VALIDATION}; {TEST} if {VALIDATION} is reported)",
    )
    add(
        "--word",
        default=DEFAULT_WORD,
        choices=WORDS,
        help=f"sub-word that gives the attention (default: {DEFAULT_WORD})",
    )
    add(
        "--iou",
        type=share,
        default=IOU_THRESHOLD,
        metavar="X",
        help="smallest overlap of a right region with a gold box (default: 0.5)",
    )
    add("--merged-box", action="store_true", help="merge the gold boxes of a phrase into one box")
    add(
        "--relations",
        metavar="spacy|FILE",
        help="audit dependency relations; parse with spaCy, or read a CoNLL-U file or folder",
    )
    add("--correction", default=CORRECTIONS[0], choices=CORRECTIONS, help="multiple-test correction (default: holm)")
    add("--explore", type=count, default=0, metavar="N", help="write audit.html and explorer.html with N images")
    add(
        "--card", metavar="DIR_OR_README", help="write the audit section into this model card; replaces an earlier one"
    )
    add("--limit", type=count, metavar="N", help="use the first N rows of each split")
    add(
        "--batch-size",
        type=count,
        metavar="N",
        help="captions per batch (default: 32, and 4 for a vision-language model)",
    )
    add("--output", metavar="DIR", help="output folder (default: a folder in runs/audit)")
    add("--cpu", action="store_true", help="run on the CPU even if there is a GPU")
    add("--json", action="store_true", help="print the best heads as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
