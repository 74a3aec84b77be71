# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Chooses or measures heads and writes the files of `grounded-attention heads`."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers.utils import logging

from grounded_attention.analysis.audit.examples import AuditExample
from grounded_attention.analysis.heads.boxes import BoxScore
from grounded_attention.analysis.heads.card import HEADS, put_heads_in_card
from grounded_attention.analysis.heads.chosen import FILE, ChosenHeads
from grounded_attention.analysis.heads.examples import Images, PromptSettings, grounded_examples, picture_name
from grounded_attention.analysis.heads.explorer import capture_patches
from grounded_attention.analysis.heads.result import TABLE, HeadRanking, boxes_table, name_heads, unranked
from grounded_attention.analysis.heads.run import evaluate_heads, rank_heads
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.rows.sources import SAME_SPLIT
from grounded_attention.dataset_scripts.rows.splitting import is_held_out
from grounded_attention.metrics.intervals import to_json
from grounded_attention.reports.attention_explorer import explorer_page
from grounded_attention.utils.whole_files import write_text

from .builder_options import parse_options
from .choices import BESIDE_MODEL, USUAL_SPLITS
from .image_options import check_pictures, folder_pictures
from .rows_options import open_rows
from .vlm_options import load_vlm

Examples = list[AuditExample]


def load_examples(options: argparse.Namespace, splits: Sequence[str]) -> tuple[list[Examples], Images]:
    """
    Loads the texts and phrases of each split, and their pictures, which exist.

    Raises:
        ValueError: if the data or a split is unknown, its rows have no phrases with boxes, or a picture is missing.
    """
    if options.data not in BUILDERS:
        return _examples_of_rows(options, splits)
    builder_class = BUILDERS[options.data]
    given = {**getattr(builder_class, "AUDIT_OPTIONS", {}), **parse_options(builder_class, options.options)}
    if options.config is not None:
        if options.config not in builder_class.builder_configs:
            known = ", ".join(builder_class.builder_configs)
            raise DataError(f"{options.data} has no such --config", found=options.config, expected=known)
        given["config_name"] = options.config
    builder = builder_class(data_dir=options.data_dir, splits=list(dict.fromkeys(splits)), **given)
    builder.download_and_prepare()
    rows = builder.as_dataset()
    found = []
    for split in splits:
        name = str(builder.config.SPLIT_NAMES.get(split, split))
        part = rows[name]
        limited = part.select(range(min(options.limit or len(part), len(part))))
        found.append(list(grounded_examples(limited)))
        check_pictures(options.images, (example.image_id for example in found[-1]))
    return found, folder_pictures(options.images)


def _examples_of_rows(options: argparse.Namespace, splits: Sequence[str]) -> tuple[list[Examples], Images]:
    """Those of rows as people have them; without both splits, the images of one are divided by the seed."""
    rows = open_rows(options.data, options).decode(False)
    names = [name if _has(rows, name) else None for name in splits]
    asked = [name for name, usual in zip(splits, USUAL_SPLITS[-len(splits) :], strict=True) if name != usual]
    for name in asked:
        rows.of_split(name)  # an error if it is not there
    pictures: dict[str, Any] = {}
    if None not in names or len(names) == 1:
        parts = [rows.of_split(name) if name else rows for name in names]
        return [_collect(part.first(options.limit or None), pictures) for part in parts], pictures
    only = next((name for name in reversed(names) if name), None)
    part = rows.of_split(only) if only else rows
    found = _collect(part.first(2 * options.limit or None), pictures)
    sides: list[Examples] = [[], []]
    for example in found:
        sides[is_held_out(example.image_id, 0.5, options.seed)].append(example)
    options.divided = f"half of the images of {only or 'all rows'} by seed {options.seed}"
    return [side[: options.limit or None] for side in sides], pictures


def _has(rows: Any, name: str) -> bool:
    return SAME_SPLIT.get(name, name) in {SAME_SPLIT.get(each, each) for each in rows.splits}


def _collect(rows: Any, pictures: dict[str, Any]) -> Examples:
    """The examples of rows; their pictures are kept as they are stored, once for each image."""
    kept: Examples = []
    for number, row in enumerate(rows):
        images = row["images"] if "images" in row else [row["image"]] if "image" in row else []
        if images and pictures.get(row["image_id"], images[0]) != images[0]:  # one id, another picture
            row["image_id"] = f"{row['image_id']} of row {number}"
        for place, image in enumerate(images):
            pictures.setdefault(picture_name(row["image_id"], place), image)
        kept += grounded_examples([{**row, "image": None, "images": None}])
    return kept


def work(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print.

    Raises:
        ValueError: for a user error; the message is one sentence.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    PromptSettings(options.words, options.instruction)  # refuses a wrong combination before anything is loaded
    return rank(options) if options.evaluate is None else evaluate(options)


def rank(options: argparse.Namespace) -> str:
    """Chooses heads on one split, reports them on another, and writes the folder."""
    if options.card is not None:
        HEADS.find(options.card)
    (chosen_on, reported_on), pictures = load_examples(options, [options.choose_on, options.split])
    model, processor = load_vlm(options)
    ranking = rank_heads(
        model,
        processor,
        chosen_on,
        pictures,
        report=reported_on,
        count=options.top_k,
        rank=options.rank,
        words=options.words,
        instruction=options.instruction,
        ablate=options.ablate,
        batch_size=options.batch_size,
        seed=options.seed,
        progress=not options.quiet,
        about={**about(options, model), "choose_on": options.choose_on},
    )
    page = explore(model, processor, reported_on, pictures, options) if options.explore else None
    folder = ranking.save(output_folder(options))
    if page is not None:
        write_text(folder / "explorer.html", page)
    if options.card is not None:
        put_heads_in_card(ranking.to_dict(), options.card)
    if options.json:
        return to_json({"folder": str(folder), **{key: ranking.to_dict()[key] for key in ("chosen", "boxes")}})
    return f"{summary(ranking)}\n\n{folder / TABLE} has the table; ground with {folder / FILE}"


def explore(model: Any, processor: Any, examples: Examples, pictures: Images, options: argparse.Namespace) -> str:
    """The HTML page with the attention of all heads, for the first text of the first images."""
    first: dict[str, AuditExample] = {}
    for example in examples:
        if len(first) < options.explore:
            first.setdefault(example.image_id, example)
    shown = capture_patches(model, processor, list(first.values()), pictures, options.instruction)
    return explorer_page({options.model: shown})


def evaluate(options: argparse.Namespace) -> str:
    """Measures the boxes of chosen heads on a split, and writes the folder."""
    given = options.evaluate
    if given != BESIDE_MODEL:
        heads = ChosenHeads.from_file(given)
    else:
        heads = ChosenHeads.of_model(options.model, options.revision)
    (examples,), pictures = load_examples(options, [options.split])
    model, processor = load_vlm(options)
    heads.check(model)
    scores = evaluate_heads(
        model,
        processor,
        examples,
        pictures,
        heads.heads,
        centre_size=heads.centre_size,
        words=heads.settings.words,
        instruction=heads.settings.instruction,
        batch_size=options.batch_size,
        progress=not options.quiet,
    )
    folder = output_folder(options)
    folder.mkdir(parents=True, exist_ok=True)
    found = {"about": {**about(options, model), "heads": heads.source}, "boxes": [asdict(score) for score in scores]}
    write_text(folder / "boxes.md", boxes_table(scores) + "\n")
    write_text(folder / "boxes.json", to_json(found, indent=1) + "\n")
    return to_json({"folder": str(folder), **found}) if options.json else text_table(scores)


def about(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    """What the files say about model and data."""
    data = " ".join(filter(None, (options.data, options.config)))
    return {
        "model": options.model,
        "revision": getattr(model.config, "_commit_hash", None) or options.revision,
        "model_type": model.config.model_type,
        "data": f"{data}, {getattr(options, 'divided', f'split {options.split}')}",
        "limit": options.limit,
    }


def output_folder(options: argparse.Namespace) -> Path:
    """The folder of `--output`, or one in runs/heads with the name of the model."""
    return Path(options.output or Path("runs", "heads", Path(options.model).name))


def summary(ranking: HeadRanking) -> str:
    """The chosen heads and their boxes, for a terminal."""
    report = ranking.reported_on
    low, high = report.intervals("pointing")
    lines = [f"{'head':10} pointing (95 %)            lift   share  entropy"]
    for pair in ranking.heads:
        ends = f"({low[pair]:.1%} to {high[pair]:.1%})"
        lines.append(
            f"{name_heads([pair]):10} {report.mean('pointing')[pair]:6.1%} {ends:18} {report.mean('lift')[pair]:6.2f} "
            f"{report.mean('share')[pair]:6.1%} {report.mean('entropy')[pair]:8.2f}"
        )
    lines += unranked(report)
    if ranking.ablation is not None:
        effect = ranking.ablation.together
        random = "" if effect.random is None else f"; without random heads of these layers {effect.random:+.3f}"
        lines.append(f"log-likelihood of grounded words without the chosen heads {effect.change:+.3f}{random}")
    return "\n".join(lines) + "\n\n" + text_table(ranking.boxes)


def text_table(scores: Sequence[BoxScore]) -> str:
    """Pointing game and box accuracy, for a terminal."""
    width = max(len(score.name) for score in scores)
    lines = [f"{'attention of':{width}}  pointing  box, IoU >= 0.5"]
    return "\n".join(
        [*lines, *(f"{score.name:{width}}  {score.pointing:8.1%}  {score.accuracy:15.1%}" for score in scores)]
    )
