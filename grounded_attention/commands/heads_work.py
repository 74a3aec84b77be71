# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures, chooses or evaluates heads and writes the files of `grounded-attention heads`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from grounded_attention.heads.card import HEADS, HEADS_FIGURE, boxes_table, put_heads_in_card
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
from grounded_attention.training.experiments.pretrained import EVERYWHERE, find_device
from grounded_attention.training.loop.data import check_regions
from grounded_attention.training.publish.adapter_card import complete_adapter_card
from grounded_attention.utils.plain_text import short_names
from grounded_attention.utils.whole_files import write_json, write_text

from .choices import HEADS_LIMIT, TEST, USUAL_SPLITS, VALIDATION
from .heads_models import find_regions, load
from .heads_options import Heads
from .image_options import check_pictures, folder_pictures
from .key_values import parse_options
from .models import ModelOptions
from .rows_options import open_rows

SPACY = "spacy"
PAGE = "heads.html"
SEED = 0  # of the halves of rows without splits
# A model is named by the run and the method, or by ORG/NAME.
NAME_PARTS = 2


# Input


@dataclass
class Examples:
    """The texts with phrases of each split, their pictures, and what the reported ones are."""

    of_splits: list[list[AuditExample]]
    pictures: Any
    split: str


def load_examples(
    options: Heads, splits: Sequence[str], builder_options: Sequence[str], regions: RegionTable | None
) -> Examples:
    """Loads the texts and phrases of each split, and checks that every image has regions, or a picture."""
    name = str(options.data)
    if name not in BUILDERS:
        return _examples_of_rows(options, splits)
    builder_class = BUILDERS[name]
    settings = parse_options(builder_class, builder_options)
    if options.config is not None:
        if options.config not in builder_class.builder_configs:
            known = ", ".join(builder_class.builder_configs)
            raise DataError(f"{name} has no such --config", found=options.config, expected=known)
        settings["config_name"] = options.config
    parts = rows_of_builder(name, str(options.data_dir), splits, options.limit, settings)
    examples = [list(grounded_examples(part)) for part in parts]
    if regions is not None:
        check_regions(parts, regions)
    else:
        for each in examples:
            check_pictures(str(options.images), (example.image_id for example in each))
    return Examples(examples, None if options.images is None else folder_pictures(options.images), options.split)


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


def _examples_of_rows(options: Heads, splits: Sequence[str]) -> Examples:
    """Those of rows as people have them; where one of two usual splits is missing, the images of the other are divided
    at random."""
    if options.config is not None:
        raise ValueError(f"--config is for builders; of rows on the Hub give --data {options.data}:{options.config}")
    rows = open_rows(str(options.data), options).decode(False)
    known = {split_name(name) for name in rows.splits}
    there = [name for name in splits if split_name(name) in known]
    for name in splits:
        if name not in (*there, *USUAL_SPLITS):
            rows.of_split(name)  # an error that names those that are there
    pictures: dict[str, Any] = {}
    limit = options.limit or None
    if there == list(splits) or len(splits) == 1:
        parts = [rows.of_split(name) for name in there] or [rows]
        return Examples([_collect(part.first(limit), pictures) for part in parts], pictures, options.split)
    part = rows.of_split(there[0]) if there else rows
    first: dict[str, str] = {}
    examples = _collect(part.first(limit and 2 * limit), pictures, first)
    groups = {_first_of(each.image_id, first) for each in examples}
    images = sorted(groups, key=lambda id: image_order(id, SEED))
    reported = {*images[: len(images) // 2]}
    sides: list[list[AuditExample]] = [[], []]
    for example in examples:
        sides[_first_of(example.image_id, first) in reported].append(example)
    divided = f"half of the images of {there[0] if there else 'all rows'}"
    return Examples([side[:limit] for side in sides], pictures, divided)


def _collect(rows: Any, pictures: dict[str, Any], first: dict[str, str] | None = None) -> list[AuditExample]:
    """The examples of rows; their pictures are kept as they are stored, once for each image. In `first`, the name of
    each leads to that of another one in a row with it, up to one that all pictures that share rows have."""
    kept: list[AuditExample] = []
    same: dict[str, str] = {}  # what a picture is -> its first name
    for number, row in enumerate(rows):
        if "images" in row:
            images = row["images"]
        else:
            images = [row["image"]] if "image" in row else []
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


def complete_options(options: Heads, tokens: bool) -> None:
    """Fills in the defaults that depend on the kind of model."""
    if options.choose_on is None and options.evaluate is None:
        if tokens:
            options.choose_on = "train"
        else:
            options.choose_on = VALIDATION if options.split != VALIDATION else TEST
    options.words = options.words or ("mean" if tokens else DEFAULT_WORD)
    if options.limit is not None:
        options.limit = options.limit
    else:
        options.limit = HEADS_LIMIT if tokens else 0
    if tokens:
        PromptSettings(options.words, options.instruction)  # refuses a wrong combination before anything is loaded


def work(options: Heads, loading: ModelOptions, builder_options: Sequence[str]) -> tuple[Any, str] | None:
    """Runs the command; `None` in every process but the main one."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    state = PartialState(cpu=loading.device == "cpu" or not torch.cuda.is_available())
    find_device(None if loading.device == EVERYWHERE else loading.device, state)
    regions = find_regions(options, loading)
    complete_options(options, regions is None)
    measured = (options, loading, builder_options, regions)
    if options.evaluate is None:
        return rank(*measured)
    return evaluate(*measured)


# The choice


def relate(relations: str | None) -> Relate | None:
    """What finds words that --relations relates to phrases."""
    if not relations:
        return None

    def parses(examples: Sequence[AuditExample]) -> Iterable[Parse]:
        if relations == SPACY:
            return spacy_parses(example.caption for example in examples)
        return read_conllu(str(relations))

    return lambda examples: relation_examples(examples, parses(examples))


def rank(
    options: Heads, loading: ModelOptions, builder_options: Sequence[str], regions: RegionTable | None
) -> tuple[Any, str] | None:
    """Chooses heads on one split, reports them on another, and writes the folder."""
    if options.card is not None:
        if PartialState().is_main_process:
            complete_adapter_card(Path(options.card))
        HEADS.find(options.card)
    model = str(options.model)
    paths = [model] if options.against is None else [model, options.against]
    names = short_names(paths, NAME_PARTS)
    same = options.choose_on == SAME_SPLIT
    splits = [options.split] if same else [options.split, str(options.choose_on)]
    found = load_examples(options, splits, builder_options, regions)
    reported_on, *others = found.of_splits
    models = {name: load(path, options, loading, regions) for path, name in zip(paths, names, strict=True)}
    _check_pixels(options, models)
    table = cast("Mapping[str, Any] | None", regions)
    relating = relate(options.relations)
    words = str(options.words)
    network, processor = models[names[0]]
    ranking = rank_heads(
        network,
        processor,
        others[0] if others else reported_on,
        found.pictures,
        report=None if same else reported_on,
        count=options.top_k,
        rank=options.rank,
        words=words,
        ablate=options.ablate,
        batch_size=options.batch_size,
        progress=True,
        about={**about(options, names[0], network, found, regions), "choose_on": options.choose_on},
        regions=table,
        instruction=options.instruction,
        relate=relating,
    )
    changes = None
    for name in names[1:]:
        rules, (other, processor) = Rules(words), models[name]
        read = (table, rules, options.instruction, options.batch_size)
        measurement = Measurement(other, processor, found.pictures, *read, for_choice=True)
        related = () if relating is None else relating(reported_on)
        maps = Maps(measurement.tokens)
        before = measurement.score(reported_on, "before", relations=related, progress=True, maps=maps)
        before.about.update(about(options, name, other, found, regions))
        changes = compare(before, ranking.reported_on, (name, names[0]))
    if not PartialState().is_main_process:
        return None
    shown = {}
    if options.explore:
        # The first text with phrases of each of the first images.
        explored: Any = (one_of_each_image(reported_on, options.explore), regions, found.pictures, options.instruction)
        shown = {name: capture_examples(*pair, *explored) for name, pair in models.items()}
    folder = write(ranking, changes, shown, output_folder(options))
    if options.card is not None:
        put_in_card(ranking, changes, options.card, folder)
    return _result(ranking, changes, folder)


def _check_pixels(options: Heads, models: Mapping[str, tuple[Any, Any]]) -> None:
    for name, (model, _) in models.items():
        if reads_pixels(model) and options.images is None and options.data in BUILDERS:
            raise ValueError(f"--model {name}: the model reads pixels; give the folder of the images with --images")


def about(options: Heads, name: str, model: Any, found: Examples, regions: RegionTable | None) -> dict[str, Any]:
    """What the files say about model and data."""
    return {
        "model": name,
        "revision": getattr(model.config, "_commit_hash", None),
        "model_type": model.config.model_type,
        "data": " ".join(filter(None, (options.data, options.config))),
        "split": found.split,
        "limit": options.limit,
        "regions": "image tokens" if regions is None else str(regions.path),
    }


# Output


def write(
    ranking: HeadRanking,
    changes: Changes | None,
    shown: Mapping[str, Sequence[ExampleAttention]],
    folder: Path,
) -> Path:
    """Writes all files to a folder and returns it."""
    write_files(ranking, changes, folder)
    if shown:
        tables = [ranking.reported_on] if changes is None else [ranking.reported_on, changes.before]
        models = dict(reversed(list(zip(shown, tables, strict=False))))  # the model before comes first
        extra = {"Heads that ground": ranking_section(ranking)}
        page = heads_page(models, "Heads that ground", examples=shown, extra=extra)
        write_text(folder / PAGE, page)
    return folder


def write_files(ranking: HeadRanking, changes: Changes | None, folder: Path) -> Path:
    """Writes the tables and figures of one model, and of its changes, and returns the folder."""
    folder = ranking.save(folder)
    table = ranking.reported_on
    write_text(folder / "heads.csv", table.to_pandas().to_csv(index=False))
    table.plot(folder)
    if changes is not None:
        changes.before.save(folder / "against")
        write_json(folder / "changes.json", changes.to_dict())
        changes.plot(folder)
        write_text(folder / TABLE, f"{ranking.to_markdown()}\n{changes.to_markdown()}")
    return folder


def output_folder(options: Heads) -> Path:
    """The folder of `--output`, or one in runs/heads with the name of the model."""
    return Path(options.output or Path("runs", "heads", Path(str(options.model)).name))


def put_in_card(ranking: HeadRanking, changes: Changes | None, card: str, pictures: Path) -> None:
    """Writes what was measured into the place that a card has for it, with a picture of `pictures`."""
    name = HEADS_FIGURE if changes is None else "changes_text_to_region.png"
    changed = "" if changes is None else changes.to_markdown("###")
    put_heads_in_card(ranking.to_dict(), card, pictures / name, changed)


def _result(ranking: HeadRanking, changes: Changes | None, folder: Path) -> tuple[Any, str]:
    content = ranking.to_dict()
    result = {
        "folder": str(folder),
        **{name: content[name] for name in ("about", "layers", "heads", "chosen", "boxes")},
    }
    result["best"] = [{**one, "heads_chosen_on": ranking.reported_on.choice.split} for one in content["best"]]
    parts = [ranking.to_markdown()]
    if changes is not None:
        result["changes"] = changes.to_dict()
        parts.append(changes.to_markdown())
    return result, "\n".join([*parts, f"{folder / TABLE} has the tables; ground with {folder / FILE}"])


# Heads that were chosen before


def evaluate(
    options: Heads, loading: ModelOptions, builder_options: Sequence[str], regions: RegionTable | None
) -> tuple[Any, str] | None:
    """Measures the boxes of chosen heads on a split, and writes the folder."""
    heads = ChosenHeads.named(str(options.evaluate))
    name = str(options.model)
    found = load_examples(options, [options.split], builder_options, regions)
    model, processor = load(name, options, loading, regions)
    _check_pixels(options, {name: (model, processor)})
    scores = evaluate_heads(
        model,
        processor,
        found.of_splits[0],
        found.pictures,
        heads,
        regions=regions,  # type: ignore[arg-type]
        batch_size=options.batch_size,
        progress=True,
    )
    if not PartialState().is_main_process:
        return None
    folder = output_folder(options)
    boxes = [asdict(score) for score in scores]
    measured = {"about": {**about(options, name, model, found, regions), "heads": heads.source}, "boxes": boxes}
    write_text(folder / "boxes.md", boxes_table(boxes) + "\n")
    write_text(folder / "boxes.json", to_json(measured, indent=1) + "\n")
    return {"folder": str(folder), **measured}, boxes_table(boxes)
