# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Chooses or measures heads and writes the files of `grounded-attention heads`."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers.utils import logging

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.heads.boxes import BoxScore
from grounded_attention.heads.example_attention import capture_patches
from grounded_attention.heads.examples import AuditExample, PromptSettings, grounded_examples
from grounded_attention.heads.ranking import (
    FILE,
    HEADS,
    TABLE,
    ChosenHeads,
    HeadRanking,
    boxes_table,
    evaluate_heads,
    name_heads,
    put_heads_in_card,
    rank_heads,
    score_texts,
    unranked,
)
from grounded_attention.metrics.intervals import to_json
from grounded_attention.reports.attention_explorer import explorer_page
from grounded_attention.utils.whole_files import write_text

from .builder_options import parse_options
from .choices import BESIDE_MODEL
from .image_options import check_pictures, folder_pictures
from .vlm_options import load_vlm


def load_examples(options: argparse.Namespace, splits: Sequence[str]) -> list[list[AuditExample]]:
    """
    Loads the texts and phrases of each split, and checks that their pictures exist.
    """
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
    return found


def work(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    PromptSettings(options.words, options.instruction)  # refuses a wrong combination before anything is loaded
    return rank(options) if options.evaluate is None else evaluate(options)


def rank(options: argparse.Namespace) -> str:
    """Chooses heads on one split, reports them on another, and writes the folder."""
    if options.card is not None:
        HEADS.find(options.card)
    chosen_on, reported_on = load_examples(options, [options.choose_on, options.split])
    model, processor = load_vlm(options)
    ranking = rank_heads(
        model,
        processor,
        chosen_on,
        folder_pictures(options.images),
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
    page = explore(model, processor, reported_on, options) if options.explore else None
    folder = ranking.save(output_folder(options))
    if page is not None:
        write_text(folder / "explorer.html", page)
    if options.card is not None:
        put_heads_in_card(ranking.to_dict(), options.card)
    if options.json:
        return to_json({"folder": str(folder), **{key: ranking.to_dict()[key] for key in ("chosen", "boxes")}})
    return f"{summary(ranking)}\n\n{folder / TABLE} has the table; ground with {folder / FILE}"


def explore(model: Any, processor: Any, examples: Sequence[AuditExample], options: argparse.Namespace) -> str:
    """The HTML page with the attention of all heads, for the first text of the first images."""
    first: dict[str, AuditExample] = {}
    for example in examples:
        if len(first) < options.explore:
            first.setdefault(example.image_id, example)
    pictures = folder_pictures(options.images)
    shown = capture_patches(model, processor, list(first.values()), pictures, options.instruction)
    return explorer_page({options.model: shown})


def evaluate(options: argparse.Namespace) -> str:
    """Measures the boxes of chosen heads on a split, and writes the folder."""
    given = options.evaluate
    if given != BESIDE_MODEL:
        heads = ChosenHeads.from_file(given)
    else:
        heads = ChosenHeads.of_model(options.model, options.revision)
    (examples,) = load_examples(options, [options.split])
    model, processor = load_vlm(options)
    heads.check(model)
    scores = evaluate_heads(
        model,
        processor,
        examples,
        folder_pictures(options.images),
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
        "data": f"{data}, split {options.split}",
        "limit": options.limit,
    }


def output_folder(options: argparse.Namespace) -> Path:
    """The folder of `--output`, or one in runs/heads with the name of the model."""
    return Path(options.output or Path("runs", "heads", Path(options.model).name))


def summary(ranking: HeadRanking) -> str:
    """The chosen heads and their boxes, for a terminal."""
    report = ranking.reported_on.counts
    low, high = report.intervals()
    lines = [f"{'head':10} pointing (95 %)            lift   share  entropy"]
    for pair in ranking.heads:
        texts = score_texts(report, pair, f"({low[pair]:.1%} to {high[pair]:.1%})")
        lines.append(f"{name_heads([pair]):10} {texts[0]:>6} {texts[1]:18} {texts[2]:>6} {texts[3]:>6} {texts[4]:>8}")
    lines += unranked(ranking.reported_on)
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
