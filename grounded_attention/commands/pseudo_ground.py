# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds the noun phrases of captions, grounds them with any model, and stores boxes with scores: pseudo-labels.

The grounder is a zero-shot detector of transformers (Grounding DINO, MM Grounding DINO, OWL-ViT, OWLv2), Florence-2, a
checkpoint of this project (self-training: the regions to which a phrase attends), or "scenes": annotated boxes with a
known share of wrong ones. A recipe reads the folder as data.pseudo_labels. docs/pseudo_labels.md describes the format,
and what each option settles of the paper (Chou et al., section III-B).

Options of the builder are written as key=value. Run the same command again to continue after an interruption; the
number of processes may change, and the files are the same. A folder accepts only the same captions, phrases, grounder
and options. The command prints statistics and draws contact_sheet.html in the folder.

examples:
  # captions of Flickr30K Entities, phrases and threshold chosen
  grounded-attention data pseudo-ground --captions flickr30k_entities --data-dir data/flickr30k \\
      --images data/flickr30k/flickr30k-images --grounder IDEA-Research/grounding-dino-tiny \\
      --phrases spacy --threshold 0.25 --output data/flickr30k/pseudo_labels

  # rows as people have them; a recipe with the same data.source reads the folder as data.pseudo_labels
  grounded-attention data pseudo-ground --data captions.jsonl --grounder IDEA-Research/grounding-dino-tiny \\
      --output data/pseudo_labels

  # Conceptual Captions in two processes; which share do the regions match?
  torchrun --nproc_per_node 2 -m grounded_attention data pseudo-ground --captions conceptual_captions \\
      --data-dir data/conceptual_captions --images data/conceptual_captions/images.txt --split train \\
      --grounder google/owlv2-base-patch16-ensemble --regions data/conceptual_captions/regions \\
      --on-error skip --output data/conceptual_captions/pseudo_labels

  # self-training: our own model on a region table
  grounded-attention data pseudo-ground --captions flickr30k_entities --data-dir data/scenes \\
      --images data/scenes/flickr30k-images --grounder runs/scenes_vgp/direct --regions data/scenes/regions \\
      --phrases given --output data/scenes/self_labels

  # label noise: one phrase of five has the box of another object
  grounded-attention data pseudo-ground --captions flickr30k_entities --data-dir data/scenes \\
      --images data/scenes/flickr30k-images --grounder scenes --wrong 0.2 --phrases given \\
      --boxes-per-phrase 9 --output data/scenes/wrong_20
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from grounded_attention.analysis.dependency_parses import SPACY_MODEL
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.labelling import BOXES_PER_PHRASE, NMS, SOURCES, THRESHOLD
from grounded_attention.utils.boxes import IOU_THRESHOLD

from .builder_options import builder_options_help
from .choices import SHEET
from .command_line import make_parser, run
from .device_options import add_device_options
from .grounder_options import add_grounder_options
from .number_options import not_negative, positive, processes, share
from .rows_options import add_source_options, refuse_row_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    resumable = "run the same command again to continue"
    words = sys.argv[1:] if arguments is None else arguments
    return run(build_parser(words), _work, arguments, intermixed=True, resumable=resumable)


def _work(options: argparse.Namespace) -> str | None:
    if options.data is not None:
        if other := options.captions or options.data_dir or options.config or (options.options or [None])[0]:
            raise ValueError(f"{other}: captions are the texts of --data; remove it")
    else:
        refuse_row_options(options, "columns", "boxes")
        if None in (options.captions, options.data_dir, options.images):
            raise ValueError("give --captions, --data-dir and --images, or --data")
    from .pseudo_ground_work import work

    return work(options)


def build_parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention data pseudo-ground", __doc__)
    parser.epilog = f"{builder_options_help(arguments)}\n\n{parser.epilog}"
    add = parser.add_argument
    add("options", nargs="*", metavar="key=value", help="options of the builder, see below")
    add("--captions", choices=list(BUILDERS), metavar="BUILDER", help="the data set with the captions")
    add("--data-dir", type=Path, help="folder of the data set")
    add("--config", help="configuration of the builder")
    add("--split", action="append", help="split to label; may be repeated; default: all")
    limit_help = "label only the first captions; of --data so many rows are read"
    add("--limit", dest="max_rows", type=positive, metavar="N", help=limit_help)
    add(
        "--images",
        type=Path,
        metavar="DIR_OR_LIST",
        help="folder of images, or a list file: a path, or id TAB path, per line",
    )
    add_source_options(parser, "pictures and texts, in place of --captions, --data-dir and --images")
    add("--output", required=True, type=Path, metavar="DIR", help="folder of the pseudo-labels")
    _add_phrase_options(parser)
    add_grounder_options(parser)
    _add_run_options(parser)
    return parser


def _add_phrase_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--phrases",
        choices=SOURCES,
        default=SOURCES[0],
        help="noun phrases of TextBlob (as in the paper) or spaCy, content words, or the annotated phrases of the "
        "builder: %(default)s",
    )
    add("--spacy-model", default=SPACY_MODEL, metavar="NAME", help="pipeline of --phrases spacy: %(default)s")
    add(
        "--boxes-per-phrase",
        type=positive,
        default=BOXES_PER_PHRASE,
        metavar="N",
        help="most boxes of a phrase, best first: %(default)s",
    )
    add(
        "--threshold",
        type=share,
        default=THRESHOLD,
        metavar="SCORE",
        help="lowest score of a box: %(default)s, so that every phrase gets a box, as in the paper",
    )
    add(
        "--nms",
        type=share,
        default=NMS,
        metavar="IOU",
        help="overlap above which the box with the lower score is dropped: %(default)s",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--regions", metavar="DIR", help="region table: counts the phrases that regions match; input of own models")
    add(
        "--iou", type=share, default=IOU_THRESHOLD, metavar="IOU", help="overlap of a match in that count: %(default)s"
    )
    add("--batch-size", type=positive, default=8, metavar="N", help="captions grounded together: %(default)s")
    add("--num-proc", type=processes, metavar="N", help="number of processes that read the captions")
    add(
        "--on-error",
        choices=("refuse", "skip"),
        default="refuse",
        help="what to do at an image or caption that cannot be used: %(default)s",
    )
    add(
        "--contact-sheet",
        type=not_negative,
        default=12,
        metavar="N",
        help=f"captions to draw in {SHEET}; 0 draws none: %(default)s",
    )
    add_device_options(parser)
    parser.set_defaults(dtype=None)
    add("--json", action="store_true", help="print the statistics as JSON")
