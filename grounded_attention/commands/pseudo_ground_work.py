# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounds the phrases of captions for `grounded-attention data pseudo-ground`."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate import PartialState
from transformers import AutoConfig

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.image_files import list_images
from grounded_attention.dataset_scripts.hub.push_rows import licence_of
from grounded_attention.dataset_scripts.regions.extraction_run import join_processes
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.families import find_family
from grounded_attention.labelling import FLORENCE, PROMPTS
from grounded_attention.labelling.grounder import AttentionGrounder, Grounder, Selection, SimulatedGrounder
from grounded_attention.labelling.labels import PseudoLabels, count_labels, count_matches, describe
from grounded_attention.labelling.phrases import load_phrases
from grounded_attention.labelling.run import BATCH, ImagePath, caption_rows, captions_digest, label_captions
from grounded_attention.labelling.zero_shot import load_florence, load_zero_shot
from grounded_attention.pages.rows_page import row_card, rows_page
from grounded_attention.training.experiments.pretrained import find_device, load_pipeline, split_revision
from grounded_attention.utils.named_types import Fields, Row
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.plain_text import explained
from grounded_attention.utils.whole_files import write_text

from .command_line import Result
from .options import Captions, Grounding
from .rows_options import RowSource, parse_options, rows_builder, yaml_pairs

FORM = "flickr30k_entities"  # of rows of --data: captions, with their phrases and boxes
SHEET = "contact_sheet.html"
DRAWN = 12
SCENES = "scenes"
ZERO_SHOT = "zero-shot detector"
OWN = "model of this project"
# Option -> the kinds of grounders that read it.
READ_BY = {
    "wrong": (SCENES,),
    "prompt": (ZERO_SHOT,),
    "processor": (ZERO_SHOT, FLORENCE),
    "dtype": (ZERO_SHOT, FLORENCE),
}


def work(
    words: Captions,
    options: Sequence[str],
    grounding: Grounding,
    output: Path,
    phrases: str,
    kept: tuple[int, float, float],
    on_error: str,
) -> Result | None:
    """Labels the captions, draws the contact sheet, and describes what was found."""
    images = image_paths(Path(os.sep) if words.data is not None else Path(str(words.images)))
    source_of_phrases = load_phrases(phrases)
    state = join_processes(cpu=grounding.device == "cpu")
    rows, source = _read_captions(words, options, state)
    labels = label_captions(
        rows,
        source_of_phrases,
        load_grounder(grounding, find_device(grounding.device, state)),
        output,
        images,
        source=source,
        selection=Selection(*kept),
        on_error=on_error,
        progress=True,
    )
    if labels is None:
        return None
    draw_sheet(labels, rows, images, output / SHEET, DRAWN)
    matches = None
    if grounding.regions is not None:
        matches = count_matches(labels.rows, RegionTable.open(grounding.regions))
    statistics = count_labels(labels.rows)
    text = "\n".join([*describe(statistics, matches), f"written to {output}"])
    return {"output": str(output), **statistics, "matches": matches}, text


def load_grounder(options: Grounding, device: torch.device) -> Grounder:
    """The grounder of a name: a zero-shot detector, Florence-2, a checkpoint of this project, or `scenes`."""
    kind = _kind(options.grounder)
    for name, kinds in READ_BY.items():
        if getattr(options, name) is not None and kind not in kinds:
            wanted = " or ".join(kinds)
            raise ValueError(f"--{name} is for another grounder: {wanted}; found {kind}")
    if kind == SCENES:
        return SimulatedGrounder(options.wrong or 0.0)
    name, revision = split_revision(options.grounder)
    if kind == OWN:
        if options.regions is None:
            raise ValueError(f"--grounder {name}: a checkpoint of this project needs --regions")
        return AttentionGrounder(load_pipeline(name, device=device), name, RegionTable.open(options.regions))
    loading: Fields = {
        "revision": revision,
        "device": device,
        "dtype": getattr(torch, options.dtype or "float32"),
        "processor_options": yaml_pairs(options.processor, "--processor"),
    }
    if kind == FLORENCE:
        return load_florence(name, batch_size=BATCH, **loading)
    return load_zero_shot(name, prompt=options.prompt or PROMPTS[0], **loading)


def _kind(grounder: str) -> str:
    if grounder == SCENES:
        return SCENES
    name, revision = split_revision(grounder)
    with explained(f"--grounder {grounder}: cannot be used", OSError, ValueError):
        model_type = AutoConfig.from_pretrained(name, revision=revision).model_type
    if model_type == FLORENCE:
        return FLORENCE
    if find_family(model_type) is None:
        return ZERO_SHOT
    return OWN


def image_paths(source: Path) -> ImagePath:
    """The function from a row to its image: `file_name` or `<image_id>.jpg` of a folder, or the file of a list."""
    if source.is_dir():
        return lambda row: source / (row.get("file_name") or f"{row['image_id']}.jpg")
    if not source.exists():
        raise MissingFileError("no such folder or list of images", file=source)
    files = {image.image_id: image.path for image in list_images(source)}

    def find(row: Row) -> Path:
        if row["image_id"] not in files:
            raise DataError("the list does not have the image", file=source, where=f"image {row['image_id']}")
        return files[row["image_id"]]

    return find


def _read_captions(words: Captions, given: Sequence[str], state: PartialState) -> tuple[datasets.Dataset, Fields]:
    """The captions, and the facts about them for the provenance. The first process builds, the others read."""
    builder: Any
    options: Fields = {}
    if words.data is not None:
        images = words.images and str(words.images)
        source = RowSource(words.data, words.split, images, words.columns, words.boxes, words.limit)  # type: ignore[arg-type]
        builder = rows_builder(source, FORM, state)
    else:
        builder_class = BUILDERS[str(words.captions)]
        options = parse_options(builder_class, given)
        builder = builder_class(data_dir=str(words.data_dir), splits=words.split, **options)
    with state.main_process_first():
        builder.download_and_prepare()
        try:
            rows = caption_rows(builder.as_dataset(), words.limit)
        except ValueError as error:
            raise DataError(str(error), where=f"--captions {words.captions or FORM}") from error
    facts = {
        "builder": words.captions or f"{FORM} of {Path(str(words.data)).name}",
        "config": builder.config.name,
        "options": options,
        "splits": list(builder.info.splits),
        "limit": words.limit,
        "count": len(rows),
        "digest": captions_digest(rows),
        "images": Path(str(words.images or words.data)).name,
        "licence": dataclasses.asdict(licence_of(builder)),
    }
    return rows, facts


def draw_sheet(labels: PseudoLabels, rows: datasets.Dataset, images: ImagePath, path: Path, count: int) -> None:
    """Draws captions, evenly spread over the labels; without those whose picture cannot be read."""
    cards = []
    for place in np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int)).tolist():
        try:
            picture = open_image(images(rows[place]))
        except ValueError:
            continue
        row = labels.rows[place]
        phrases = [{**phrase, "sentence": 0, "image": 0} for phrase in row["phrases"]]
        cards.append(row_card({**row, "image_id": row["caption_id"], "image": picture, "phrases": phrases}))
    if cards:
        write_text(path, rows_page(labels.path.name, [], {"Captions with their labels": cards}))
