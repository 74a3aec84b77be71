# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures, chooses or evaluates heads and writes the files of `grounded-attention heads`."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from transformers.utils import logging

from grounded_attention.analysis.dependencies import relation_examples
from grounded_attention.analysis.dependency_parses import Parse, read_conllu, spacy_parses
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.rows.pictures import picture_digest
from grounded_attention.dataset_scripts.rows.sources import split_name
from grounded_attention.dataset_scripts.rows.splitting import image_order
from grounded_attention.heads import SAME_SPLIT
from grounded_attention.heads.atlas import find_revision, publish_heads
from grounded_attention.heads.card import HEADS, HEADS_FIGURE, best_table, boxes_table, put_heads_in_card
from grounded_attention.heads.changes import Changes, compare
from grounded_attention.heads.example_attention import ExampleAttention, capture_examples
from grounded_attention.heads.examples import (
    AuditExample,
    PromptSettings,
    grounded_examples,
    picture_name,
)
from grounded_attention.heads.heads_file import FILE, ChosenHeads
from grounded_attention.heads.items import DEFAULT_WORD, Rules
from grounded_attention.heads.measure import Maps, Measurement
from grounded_attention.heads.page import heads_page, ranking_section
from grounded_attention.heads.ranking import (
    TABLE,
    HeadRanking,
    Relate,
    evaluate_heads,
    rank_heads,
)
from grounded_attention.heads.reading import reads_pixels
from grounded_attention.metrics.intervals import to_json
from grounded_attention.training.experiments.pretrained import EVERYWHERE, find_device, split_revision
from grounded_attention.training.loop.data import check_regions
from grounded_attention.training.publish.adapter_card import complete_adapter_card
from grounded_attention.utils.plain_text import short_names
from grounded_attention.utils.whole_files import write_json, write_text

from .choices import BESIDE_MODEL, HEADS_LIMIT, TEST, USUAL_SPLITS, VALIDATION
from .heads_models import Loaded, find_regions, load
from .image_options import check_pictures, folder_pictures
from .key_values import parse_options
from .rows_options import open_rows

SPACY = "spacy"
PAGE = "heads.html"
# A model is named by the run and the method, or by ORG/NAME.
NAME_PARTS = 2


# Input


def load_examples(
    options: argparse.Namespace, splits: Sequence[str], regions: RegionTable | None
) -> list[list[AuditExample]]:
    """Loads the texts and phrases of each split, and checks that every image has regions, or a picture."""
    if options.data not in BUILDERS:
        return _examples_of_rows(options, splits)
    builder_class = BUILDERS[options.data]
    builder_options = parse_options(builder_class, options.options)
    if options.config is not None:
        if options.config not in builder_class.builder_configs:
            known = ", ".join(builder_class.builder_configs)
            raise DataError(f"{options.data} has no such --config", found=options.config, expected=known)
        builder_options["config_name"] = options.config
    try:
        parts = rows_of_builder(options.data, options.data_dir, splits, options.limit, builder_options)
    except (OSError, ValueError) as error:
        if options.chosen_by_default and f"'{options.choose_on}'" in str(error):
            hint = f"by default heads are chosen on this split; give another one with --choose-on, or {SAME_SPLIT}"
            raise ValueError(f"{error}; {hint}") from error
        raise
    examples_of_splits = [list(grounded_examples(part)) for part in parts]
    if regions is not None:
        check_regions(parts, regions)
        return examples_of_splits
    for examples in examples_of_splits:
        check_pictures(options.images, (example.image_id for example in examples))
    return examples_of_splits


def rows_of_builder(
    name: str, data_dir: str, splits: Sequence[str], limit: int | None, builder_options: Mapping[str, Any]
) -> list[Any]:
    """The first rows of each split of a data set of `data build`, all without a limit."""
    builder_class = BUILDERS[name]
    builder_options = {**getattr(builder_class, "AUDIT_OPTIONS", {}), **builder_options}
    with PartialState().main_process_first():
        builder = builder_class(data_dir=data_dir, splits=list(dict.fromkeys(splits)), **builder_options)
        builder.download_and_prepare()
    rows = builder.as_dataset()
    parts = [rows[str(builder.config.SPLIT_NAMES.get(split, split))] for split in splits]
    return [part.select(range(min(limit or len(part), len(part)))) for part in parts]


def one_of_each_image(
    examples: Iterable[AuditExample], count: int | None = None, least: int = 1
) -> list[AuditExample]:
    """The first example with enough phrases, of each of the first images."""
    of_image: dict[str, AuditExample] = {}
    for example in examples:
        if len(example.phrases) >= least and (count is None or len(of_image) < count):
            of_image.setdefault(example.image_id, example)
    return list(of_image.values())


def _examples_of_rows(options: argparse.Namespace, splits: Sequence[str]) -> list[list[AuditExample]]:
    """Those of rows as people have them; where one of two usual splits is missing, the images of the other are divided
    by the seed. Their pictures are in `options.pictures`."""
    if options.config is not None:
        raise ValueError(f"--config is for builders; of rows on the Hub give --data {options.data}:{options.config}")
    rows = open_rows(options.data, options).decode(False)
    there = [name for name in splits if _has(rows, name)]
    for name in splits:
        if name not in (*there, *USUAL_SPLITS):
            rows.of_split(name)  # an error that names those that are there
    options.pictures, limit = {}, options.limit or None
    if there == list(splits) or len(splits) == 1:
        parts = [rows.of_split(name) for name in there] or [rows]
        return [_collect(part.first(limit), options.pictures) for part in parts]
    part = rows.of_split(there[0]) if there else rows
    sides: list[list[AuditExample]] = [[], []]
    first: dict[str, str] = {}
    examples = _collect(part.first(limit and 2 * limit), options.pictures, first)
    images = sorted(
        {_first_of(each.image_id, first) for each in examples}, key=lambda id: image_order(id, options.seed)
    )
    reported = {*images[: len(images) // 2]}
    for example in examples:
        sides[_first_of(example.image_id, first) in reported].append(example)
    options.divided = f"half of the images of {there[0] if there else 'all rows'} by seed {options.seed}"
    return [side[:limit] for side in sides]


def _has(rows: Any, name: str) -> bool:
    return split_name(name) in map(split_name, rows.splits)


def _collect(rows: Any, pictures: dict[str, Any], first: dict[str, str] | None = None) -> list[AuditExample]:
    """The examples of rows; their pictures are kept as they are stored, once for each image. In `first`, the name of
    each leads to that of another one in a row with it, up to one that all pictures that share rows have."""
    kept: list[AuditExample] = []
    same: dict[str, str] = {}  # what a picture is -> its first name
    for number, row in enumerate(rows):
        images = row["images"] if "images" in row else [row["image"]] if "image" in row else []
        names = [picture_name(row["image_id"], place) for place in range(len(images))]
        if any(pictures.get(*each) != each[1] for each in zip(names, images, strict=True)):  # one id, another picture
            row["image_id"] = f"{row['image_id']} of row {number}"
            names = [picture_name(row["image_id"], place) for place in range(len(images))]
        for name, image in zip(names, images, strict=True):
            pictures.setdefault(name, image)
            if first is not None:
                known = same.setdefault(picture_digest(image) or str(image), name)
                first[_first_of(name, first)] = first[_first_of(known, first)] = _first_of(names[0], first)
        kept += grounded_examples([{**row, "image": None, "images": None}])
    return kept


def _first_of(name: str, first: Mapping[str, str]) -> str:
    while first.get(name, name) != name:
        name = first[name]
    return name


def complete_options(options: argparse.Namespace, tokens: bool) -> None:
    """Fills in the defaults that depend on the kind of model."""
    options.chosen_by_default = options.choose_on is None and options.evaluate is None
    if options.chosen_by_default:
        options.choose_on = "train" if tokens else VALIDATION if options.split != VALIDATION else TEST
    options.words = options.words or ("mean" if tokens else DEFAULT_WORD)
    options.limit = options.limit if options.limit is not None else (HEADS_LIMIT if tokens else 0)
    if tokens:
        PromptSettings(options.words, options.instruction)  # refuses a wrong combination before anything is loaded


def work(options: argparse.Namespace) -> str | None:
    """Runs the command; returns the text to print, or `None` in every process but the main one."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    state = PartialState(cpu=options.device == "cpu" or not torch.cuda.is_available())
    find_device(None if options.device == EVERYWHERE else options.device, state)
    regions = find_regions(options)
    complete_options(options, regions is None)
    return rank(options, regions) if options.evaluate is None else evaluate(options, regions)


# The choice


def relate(options: argparse.Namespace) -> Relate | None:
    """What finds words that --relations relates to phrases."""
    if not options.relations:
        return None

    def parses(examples: Sequence[AuditExample]) -> Iterable[Parse]:
        if options.relations == SPACY:
            return spacy_parses(example.caption for example in examples)
        return read_conllu(options.relations)

    return lambda examples: relation_examples(examples, parses(examples))


def rank(options: argparse.Namespace, regions: RegionTable | None) -> str | None:
    """Chooses heads on one split, reports them on another, and writes the folder."""
    if options.card is not None:
        if PartialState().is_main_process:
            complete_adapter_card(Path(options.card))
        HEADS.find(options.card)
    revision = None
    if options.publish is not None and (revision := find_revision(*split_revision(options.model))) is None:
        raise ValueError(f"--publish: {options.model} is no model of the Hub, so the atlas cannot name its revision")
    paths = list(filter(None, (options.model, options.against)))
    names = short_names(paths, NAME_PARTS)
    rules = Rules(options.words, merged=options.merged_box)
    same = options.choose_on == SAME_SPLIT
    splits = [options.split] if same else [options.split, options.choose_on]
    reported_on, *others = load_examples(options, splits, regions)
    models = [load(path, name, options, regions) for path, name in zip(paths, names, strict=True)]
    images = images_of(models, options)
    relating, table = relate(options), cast("Mapping[str, Any] | None", regions)
    ranking = rank_heads(
        models[0].model,
        models[0].processor,
        others[0] if others else reported_on,
        images,
        report=None if same else reported_on,
        count=options.top_k,
        rank=options.rank,
        words=options.words,
        ablate=options.ablate,
        batch_size=options.batch_size,
        seed=options.seed,
        merged_box=options.merged_box,
        progress=not options.quiet,
        about={**about(options, models[0], regions), "choose_on": options.choose_on},
        regions=table,
        instruction=options.instruction,
        relate=relating,
    )
    changes = None
    if options.against is not None:
        other, read = models[1], (table, rules, options.instruction, options.batch_size)
        measurement = Measurement(other.model, other.processor, images, *read, for_choice=True)
        related = () if relating is None else relating(reported_on)
        passed: dict[str, Any] = {"relations": related, "progress": not options.quiet}
        before = measurement.score(reported_on, "before", maps=Maps(measurement.tokens), **passed)
        before.about.update(about(options, other, regions))
        changes = compare(before, ranking.reported_on, (names[1], names[0]))
    if not PartialState().is_main_process:
        return None
    shown = explore(models, reported_on, regions, options) if options.explore else {}
    folder = write(ranking, changes, shown, options)
    if options.card is not None:
        put_in_card(ranking, changes, options.card, folder)
    if options.publish is not None:
        address = publish_heads(folder, options.model, revision or "", options.publish)
        print(f"pull request: {address}", file=sys.stderr)
    return _json(ranking, changes, folder) if options.json else _summary(ranking, changes, folder)


def images_of(models: Sequence[Loaded], options: argparse.Namespace) -> Any:
    """The pictures by image id; an empty mapping for models that need none."""
    if options.data not in BUILDERS:
        return options.pictures
    if options.images is not None:
        return folder_pictures(options.images)
    for loaded in models:
        if reads_pixels(loaded.model):
            raise ValueError(
                f"--model {loaded.name}: the model reads pixels; give the folder of the images with --images"
            )
    return {}


def about(options: argparse.Namespace, loaded: Loaded, regions: RegionTable | None) -> dict[str, Any]:
    """What the files say about model and data."""
    return {
        "model": loaded.name,
        "revision": getattr(loaded.model.config, "_commit_hash", None),
        "model_type": loaded.model.config.model_type,
        "data": " ".join(filter(None, (options.data, options.config))),
        "split": getattr(options, "divided", options.split),
        "limit": options.limit,
        "regions": "image tokens" if regions is None else str(regions.path),
    }


def explore(
    models: Sequence[Loaded], examples: Sequence[AuditExample], regions: Any, options: argparse.Namespace
) -> dict[str, list[ExampleAttention]]:
    """The attention of all heads of each model in a few texts: the first with phrases, of each of the first images."""
    first, pictures = one_of_each_image(examples, options.explore), images_of(models, options)
    read = (first, regions, pictures, options.instruction)
    return {loaded.name: capture_examples(loaded.model, loaded.processor, *read) for loaded in models}


# Output


def write(
    ranking: HeadRanking,
    changes: Changes | None,
    shown: Mapping[str, Sequence[ExampleAttention]],
    options: argparse.Namespace,
) -> Path:
    """Writes all files to the folder --output and returns the folder."""
    folder = write_files(ranking, changes, output_folder(options))
    if shown:
        tables = [ranking.reported_on] if changes is None else [ranking.reported_on, changes.before]
        models = dict(reversed(list(zip(shown, tables, strict=False))))  # the model before comes first
        extra = {"Heads that ground": ranking_section(ranking)}
        page = heads_page(models, "Heads that ground", examples=shown, extra=extra)
        write_text(folder / PAGE, page)
    return folder


def write_files(ranking: HeadRanking, changes: Changes | None, folder: Path) -> Path:
    """Writes the tables and figures of one model, and of its changes, and returns the folder."""
    folder, table = ranking.save(folder), ranking.reported_on
    write_text(folder / "heads.csv", table.to_pandas().to_csv(index=False))
    table.plot(folder)
    if changes is not None:
        changes.before.save(folder / "against")
        write_json(folder / "changes.json", changes.to_dict())
        changes.plot(folder)
    parts = [ranking.to_markdown(), table.to_card_section(), "" if changes is None else changes.to_markdown()]
    write_text(folder / TABLE, "\n".join(filter(None, parts)))
    return folder


def output_folder(options: argparse.Namespace) -> Path:
    """The folder of `--output`, or one in runs/heads with the name of the model."""
    return Path(options.output or Path("runs", "heads", Path(options.model).name))


def put_in_card(ranking: HeadRanking, changes: Changes | None, card: str, pictures: Path) -> None:
    """Writes what was measured into the place that a card has for it, with a picture of `pictures`."""
    name = HEADS_FIGURE if changes is None else "changes_text_to_region.png"
    changed = "" if changes is None else changes.to_markdown("###")
    put_heads_in_card(ranking.to_dict(), card, pictures / name, changed)


def _json(ranking: HeadRanking, changes: Changes | None, folder: Path) -> str:
    content = ranking.to_dict()
    parts = {name: content[name] for name in ("about", "layers", "heads", "chosen", "boxes")}
    best = [{**one, "heads_chosen_on": ranking.reported_on.choice.split} for one in content["best"]]
    changed = {} if changes is None else {"changes": changes.to_dict()}
    return to_json({"folder": str(folder), **parts, "best": best, **changed})


def _summary(ranking: HeadRanking, changes: Changes | None, folder: Path) -> str:
    parts = [ranking.to_markdown(), best_table(ranking.to_dict()["best"])]
    if changes is not None:
        parts.append(changes.to_markdown())
    parts.append(f"{folder / TABLE} has the tables; ground with {folder / FILE}")
    return "\n".join(parts)


# Heads that were chosen before


def evaluate(options: argparse.Namespace, regions: RegionTable | None) -> str | None:
    """Measures the boxes of chosen heads on a split, and writes the folder."""
    file = options.evaluate
    if file != BESIDE_MODEL:
        heads = ChosenHeads.from_file(file)
    else:
        heads = ChosenHeads.of_model(*split_revision(options.model))
    (examples,) = load_examples(options, [options.split], regions)
    loaded = load(options.model, options.model, options, regions)
    heads.check(loaded.model)
    scores = evaluate_heads(
        loaded.model,
        loaded.processor,
        examples,
        images_of([loaded], options),
        heads,
        regions=regions,  # type: ignore[arg-type]
        batch_size=options.batch_size,
        merged_box=options.merged_box,
        progress=not options.quiet,
    )
    if not PartialState().is_main_process:
        return None
    folder = output_folder(options)
    measured = {
        "about": {**about(options, loaded, regions), "heads": heads.source},
        "boxes": [asdict(score) for score in scores],
    }
    table = boxes_table([asdict(score) for score in scores])
    write_text(folder / "boxes.md", table + "\n")
    write_text(folder / "boxes.json", to_json(measured, indent=1) + "\n")
    return to_json({"folder": str(folder), **measured}) if options.json else table
