# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounds the phrases of captions for `grounded-attention data pseudo-ground`."""

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
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
from grounded_attention.labelling.phrases import load_phrases
from grounded_attention.labelling.run import ImagePath, label_captions
from grounded_attention.pages.rows_page import row_card, rows_page
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.whole_files import write_text

from .builder_options import parse_options
from .choices import SHEET
from .device_options import find_device
from .grounder_options import make_grounder
from .rows_options import rows_builder

FORM = "flickr30k_entities"  # of rows of --data: captions, with their phrases and boxes


def work(options: argparse.Namespace) -> str | None:
    if options.quiet:
        logging.disable_progress_bar()
        datasets.disable_progress_bars()
    selection = Selection(options.boxes_per_phrase, options.threshold, options.nms)
    images = image_paths(Path(os.sep) if options.data is not None else options.images)
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
    """The function from a row to its image: `file_name` or `<image_id>.jpg` of a folder, or the file of a list."""
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
    builder: Any
    builder_options: dict[str, Any] = {}
    if options.data is not None:
        builder = rows_builder(options, FORM, state)
    else:
        builder_class = BUILDERS[options.captions]
        builder_options = parse_options(builder_class, options.options)
        builder = builder_class(
            data_dir=str(options.data_dir), config_name=options.config, splits=options.split, **builder_options
        )
    with state.main_process_first():
        builder.download_and_prepare(num_proc=options.num_proc)
        try:
            rows = caption_rows(builder.as_dataset(), options.max_rows)
        except ValueError as error:
            raise DataError(str(error), where=f"--captions {options.captions or FORM}") from error
    facts = {
        "builder": options.captions or f"{FORM} of {Path(options.data).name}",
        "config": builder.config.name,
        "options": builder_options,
        "splits": list(builder.info.splits),
        "limit": options.max_rows,
        "count": len(rows),
        "digest": captions_digest(rows),
        "images": Path(options.images or options.data).name,
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
    """Draws captions of a table, evenly spread over its rows; without those whose picture cannot be read."""
    places = np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))
    cards = []
    for place, labels in zip(places, table.chosen(places), strict=True):
        row = rows[int(place)]
        try:
            picture = open_image(images(row))
        except ValueError:
            continue
        phrases = [{**phrase, "sentence": 0, "image": 0} for phrase in labels.phrases]
        shown = {"image_id": labels.caption_id, "image": picture, "text": row["text"], "phrases": phrases}
        cards.append(row_card(shown))
    if cards:
        write_text(path, rows_page(table.path.name, [], {"Captions with their labels": cards}))
