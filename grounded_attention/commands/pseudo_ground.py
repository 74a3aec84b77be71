# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds the noun phrases of captions, grounds them with any model, and stores boxes with scores: pseudo-labels.

The grounder is a zero-shot detector of transformers (Grounding DINO, MM Grounding DINO, OWL-ViT, OWLv2), Florence-2, a
checkpoint of this project (self-training: the regions to which a phrase attends), or "scenes": annotated boxes with a
known share of wrong ones. A recipe reads the folder as data.pseudo_labels. docs/pseudo_labels.md describes the format,
and what each option settles of the paper (Chou et al., section III-B).

Options of the builder are written as key=value. Run the same command again to continue after an interruption; the
number of processes may change, and the files are the same. A folder accepts only the same captions, phrases, grounder
and options. The command prints statistics and draws contact_sheet.png in the folder.

examples:
  # captions of Flickr30K Entities, phrases and threshold chosen
  grounded-attention data pseudo-ground --captions flickr30k_entities --data-dir data/flickr30k \\
      --images data/flickr30k/flickr30k-images --grounder IDEA-Research/grounding-dino-tiny \\
      --phrases spacy --threshold 0.25 --output data/flickr30k/pseudo_labels

  # Conceptual Captions in two processes; which share do the regions match?
  torchrun --nproc_per_node 2 -m grounded_attention.commands.pseudo_ground --captions conceptual_captions \\
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
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from accelerate import PartialState
from transformers.utils import logging

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.image_files import list_images
from grounded_attention.dataset_scripts.hub.push_rows import licence_of
from grounded_attention.dataset_scripts.pseudo_labels.statistics import count_matches, describe
from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable
from grounded_attention.dataset_scripts.regions.extraction_run import join_processes
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.labelling.captions import caption_rows, captions_digest
from grounded_attention.labelling.grounder import Selection
from grounded_attention.labelling.phrases import SOURCES, load_phrases
from grounded_attention.labelling.run import ImagePath, label_captions
from grounded_attention.modeling.caption_phrases import SPACY_MODEL
from grounded_attention.processing.open_images import open_image
from grounded_attention.reports.contact_sheet import Labelled, contact_sheet

from .builder_options import options_of, parse_options
from .command_line import make_parser, run
from .device_options import add_device_options, find_device
from .grounder_options import add_grounder_options, make_grounder

SHEET = "contact_sheet.png"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    resumable = "run the same command again to continue"
    return run(build_parser(), _work, arguments, intermixed=True, resumable=resumable)


def _work(options: argparse.Namespace) -> str | None:
    if options.quiet:
        logging.disable_progress_bar()
        datasets.disable_progress_bars()
    selection = Selection(options.boxes_per_phrase, options.threshold, options.nms)
    images = image_paths(options.images)
    phrases = load_phrases(options.phrases, options.spacy_model)
    state = join_processes(cpu=options.device == "cpu")
    rows, source = _read_captions(options, state)
    info = label_captions(
        rows,
        phrases,
        make_grounder(options, find_device(options.device, state)),
        options.output,
        images,
        source=source,
        selection=selection,
        batch_size=options.batch_size,
        on_error=options.on_error,
        progress=not options.quiet,
    )
    return None if info is None else _report(options, rows, info, images)


def image_paths(source: Path) -> ImagePath:
    """
    Returns the function from a row to the file of its image: in a folder the row's `file_name` or `<image_id>.jpg`, in
    a list the file with the image's id.

    Raises:
        MissingFileError: if there is no such folder or list.
        DataError: if the list cannot be read; the function raises it for an image that the list does not have.
    """
    if source.is_dir():
        return lambda row: source / (row.get("file_name") or f"{row['image_id']}.jpg")
    if not source.exists():
        raise MissingFileError("no such folder or list of images", file=source)
    files = {image.image_id: image.path for image in list_images(source)}

    def find(row: Mapping[str, Any]) -> Path:
        if row["image_id"] not in files:
            raise DataError("the list does not have the image", file=source, where=f"image {row['image_id']}")
        return files[row["image_id"]]

    return find


def _read_captions(options: argparse.Namespace, state: PartialState) -> tuple[datasets.Dataset, dict[str, Any]]:
    """The captions, and the facts about them for the provenance. The first process builds, the others read."""
    builder_class = BUILDERS[options.captions]
    given = parse_options(builder_class, options.options)
    builder: Any = builder_class(
        data_dir=str(options.data_dir), config_name=options.config, splits=options.split, **given
    )
    with state.main_process_first():
        builder.download_and_prepare(num_proc=options.num_proc)
        try:
            rows = caption_rows(builder.as_dataset(), options.limit)
        except ValueError as error:
            raise DataError(str(error), where=f"--captions {options.captions}") from error
    facts = {
        "builder": options.captions,
        "config": builder.config.name,
        "options": given,
        "splits": list(builder.info.splits),
        "limit": options.limit,
        "count": len(rows),
        "digest": captions_digest(rows),
        "images": options.images.name,
        "licence": dataclasses.asdict(licence_of(builder)),
    }
    return rows, facts


def _report(options: argparse.Namespace, rows: datasets.Dataset, info: Mapping[str, Any], images: ImagePath) -> str:
    table = PseudoLabelTable(options.output)
    if options.contact_sheet:
        draw_sheet(table, rows, images, options.output / SHEET, options.contact_sheet)
    regions = None if options.regions is None else RegionTable.open(options.regions)
    matches = None if regions is None else count_matches(table.rows(), regions, options.iou)
    if options.json:
        return json.dumps({"output": str(options.output), **info["statistics"], "matches": matches})
    return "\n".join([*describe(info["statistics"], matches), f"written to {options.output}"])


def draw_sheet(table: PseudoLabelTable, rows: datasets.Dataset, images: ImagePath, path: Path, count: int) -> None:
    """
    Draws captions of a table, evenly spread over its rows; without those whose picture cannot be read.

    Args:
        table (`PseudoLabelTable`): the labels.
        rows (`Dataset`): the captions, in the same order.
        images (`Callable`): row -> file of its image.
        path (`Path`): the picture.
        count (`int`): largest number of captions.
    """
    places = np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))
    items = []
    for place, labels in zip(places, table.chosen(places), strict=True):
        row = rows[int(place)]
        try:
            picture = open_image(images(row))
        except ValueError:
            continue
        items.append(Labelled(labels.caption_id, row["text"], picture, labels.phrases))
    if items:
        contact_sheet(items, path)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention data pseudo-ground", __doc__)
    known = "\n".join(f"  {name}: {', '.join(options_of(builder))}" for name, builder in BUILDERS.items())
    parser.epilog = f"options (key=value) of the builders:\n{known}\n\n{parser.epilog}"
    add = parser.add_argument
    add("options", nargs="*", metavar="key=value", help="options of the builder, see below")
    add("--captions", required=True, choices=list(BUILDERS), metavar="BUILDER", help="the data set with the captions")
    add("--data-dir", required=True, type=Path, help="folder of the data set")
    add("--config", help="configuration of the builder")
    add("--split", action="append", help="split to label; may be repeated; default: all")
    add("--limit", type=_positive, metavar="N", help="label only the first captions")
    add(
        "--images",
        required=True,
        type=Path,
        metavar="DIR_OR_LIST",
        help="folder of images, or a list file: a path, or id TAB path, per line",
    )
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
    selection = Selection()
    add(
        "--boxes-per-phrase",
        type=_positive,
        default=selection.boxes_per_phrase,
        metavar="N",
        help="most boxes of a phrase, best first: %(default)s",
    )
    add(
        "--threshold",
        type=float,
        default=selection.threshold,
        metavar="SCORE",
        help="lowest score of a box: %(default)s, so that every phrase gets a box, as in the paper",
    )
    add(
        "--nms",
        type=float,
        default=selection.nms,
        metavar="IOU",
        help="overlap above which the box with the lower score is dropped: %(default)s",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--regions", metavar="DIR", help="region table: counts the phrases that regions match; input of own models")
    add("--iou", type=float, default=0.5, metavar="IOU", help="overlap of a match in that count: %(default)s")
    add("--batch-size", type=_positive, default=8, metavar="N", help="captions grounded together: %(default)s")
    add("--num-proc", type=_positive, metavar="N", help="number of processes that read the captions")
    add(
        "--on-error",
        choices=("refuse", "skip"),
        default="refuse",
        help="what to do at an image or caption that cannot be used: %(default)s",
    )
    add(
        "--contact-sheet",
        type=int,
        default=12,
        metavar="N",
        help=f"captions to draw in {SHEET}; 0 draws none: %(default)s",
    )
    add_device_options(parser)
    parser.set_defaults(dtype=None)
    add("--json", action="store_true", help="print the statistics as JSON")
    add("--quiet", action="store_true", help="no progress bars")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return value


if __name__ == "__main__":
    sys.exit(main())
