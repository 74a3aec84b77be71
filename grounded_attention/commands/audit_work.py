# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Audits the heads of one model, or of two, and writes the files of `grounded-attention audit`."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers.utils import logging

from grounded_attention.analysis.dependencies import relation_examples
from grounded_attention.analysis.dependency_parses import Parse, read_conllu, spacy_parses
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.heads.card import AUDIT, put_in_card
from grounded_attention.heads.changes import Changes, compare
from grounded_attention.heads.example_attention import ExampleAttention, capture_examples, capture_patches
from grounded_attention.heads.examples import AuditExample, entity_examples, grounded_examples
from grounded_attention.heads.measure import audit
from grounded_attention.heads.page import audit_page
from grounded_attention.heads.reading import get_observer, reads_pixels
from grounded_attention.heads.statistics import CORRECTIONS, RELATIONS, SAME_SPLIT
from grounded_attention.heads.table import AuditResult
from grounded_attention.metrics.intervals import interval_text, to_json
from grounded_attention.reports.attention_explorer import explorer_page
from grounded_attention.training.loop.data import check_regions
from grounded_attention.utils.short_names import short_names
from grounded_attention.utils.whole_files import write_text

from .audit_models import Loaded, find_regions, load
from .choices import TEST, VALIDATION
from .image_options import check_pictures, folder_pictures

SPACY = "spacy"
# A model is named by the run and the method, or by ORG/NAME.
NAME_PARTS = 2


# Input


def load_rows(
    options: argparse.Namespace, splits: Sequence[str], regions: RegionTable | None
) -> dict[str, list[AuditExample]]:
    """
    Loads the captions and phrases of each split and checks that every image has regions, or a picture.
    """
    if options.data not in BUILDERS:
        raise ValueError(f"--data {options.data}: unknown data set, expected one of {', '.join(BUILDERS)}")
    with PartialState().main_process_first():
        builder_class = BUILDERS[options.data]
        for_audit = getattr(builder_class, "AUDIT_OPTIONS", {})
        builder = builder_class(data_dir=options.data_dir, splits=list(splits), **for_audit)
        try:
            builder.download_and_prepare()
        except (OSError, ValueError) as error:
            if options.chosen_by_default and f"'{options.choose_on}'" in str(error):
                hint = f"by default heads are chosen on this split; give another one with --choose-on, or {SAME_SPLIT}"
                raise ValueError(f"{error}; {hint}") from error
            raise
    rows = dict(builder.as_dataset())
    for name, found in rows.items():
        rows[name] = found if options.limit is None else found.select(range(min(options.limit, len(found))))
    if regions is not None:
        check_regions(list(rows.values()), regions)
        return {name: list(entity_examples(found)) for name, found in rows.items()}
    examples = {name: list(grounded_examples(found)) for name, found in rows.items()}
    check_pictures(options.images, (example.image_id for found in examples.values() for example in found))
    return examples


def parses_of(options: argparse.Namespace, examples: Sequence[AuditExample]) -> list[Parse]:
    """Reads the parses of --relations, or makes them with spaCy."""
    if options.relations == SPACY:
        return spacy_parses(example.caption for example in examples)
    return read_conllu(options.relations)


def check_options(options: argparse.Namespace) -> None:
    """
    Checks the options before anything is loaded, and fills in the default of --choose-on.
    """
    for name in ("model", "against"):
        if getattr(options, name) == "":
            raise ValueError(f"--{name} is empty: give the folder or the Hub name of a checkpoint")
    for name in ("limit", "batch_size", "explore"):
        value = getattr(options, name)
        if value is not None and value < (name != "explore"):
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected {int(name != 'explore')} or more")
    if options.card is not None:
        AUDIT.find(options.card)
    if options.images is not None and not Path(options.images).is_dir():
        raise ValueError(f"--images {options.images}: no such folder")
    if options.explore and options.images is None:
        raise ValueError(f"--explore {options.explore} shows images; give their folder with --images")
    options.chosen_by_default = options.choose_on is None
    if options.chosen_by_default:
        options.choose_on = VALIDATION if options.split != VALIDATION else TEST
    if options.choose_on == options.split:
        raise ValueError(
            f"--choose-on {options.choose_on} is also the reported split; to choose heads on the reported split, give "
            f"--choose-on {SAME_SPLIT}"
        )


# Measurement


def measure(
    loaded: Loaded,
    split: str,
    examples: Sequence[AuditExample],
    regions: Any,
    options: argparse.Namespace,
) -> AuditResult:
    """Audits a model on a split."""
    pixels = reads_pixels(loaded.model)
    if pixels and options.images is None:
        raise ValueError(f"--model {loaded.name}: the model reads pixels; give the folder of the images with --images")
    relations = relation_examples(examples, parses_of(options, examples)) if options.relations else []
    return audit(
        loaded.model,
        loaded.processor,
        examples,
        regions,
        relations=relations,
        word=options.word,
        batch_size=options.batch_size,
        iou_threshold=options.iou,
        merged_box=options.merged_box,
        images=folder_pictures(options.images) if pixels else None,
        instruction=options.instruction,
        about={
            "model": loaded.name,
            "data": options.data,
            "split": split,
            "regions": "image tokens" if regions is None else str(regions.path),
        },
    )


def first_of_images(examples: Iterable[AuditExample], count: int) -> list[AuditExample]:
    """The first caption that has phrases, for each of the first `count` images."""
    found: dict[str, AuditExample] = {}
    for example in examples:
        if len(found) == count:
            break
        if example.phrases:
            found.setdefault(example.image_id, example)
    return list(found.values())


def explore(
    models: Sequence[Loaded],
    examples: Sequence[AuditExample],
    regions: Any,
    options: argparse.Namespace,
) -> dict[str, list[ExampleAttention]]:
    """The attention of all heads of each model in a few captions."""
    first, pictures = first_of_images(examples, options.explore), folder_pictures(options.images)
    if regions is None:
        return {
            loaded.name: capture_patches(loaded.model, loaded.processor, first, pictures, options.instruction)
            for loaded in models
        }
    names = regions.class_names
    return {
        loaded.name: capture_examples(get_observer(loaded.model), loaded.processor, first, regions, pictures, names)
        for loaded in models
    }


def write(
    result: AuditResult,
    changes: Changes | None,
    shown: Mapping[str, Sequence[ExampleAttention]],
    options: argparse.Namespace,
) -> Path:
    """Writes all files to the folder --output and returns the folder."""
    (name,) = short_names([options.model], NAME_PARTS)
    folder = Path(options.output or Path("runs", "audit", f"{name.replace('/', '_')}_{options.split}"))
    result.save(folder)
    write_text(folder / "heads.csv", result.to_pandas().to_csv(index=False))
    text = result.to_card_section()
    if changes is not None:
        changes.before.save(folder / "against")
        write_text(folder / "changes.json", json.dumps(changes.to_dict(), indent=1) + "\n")
        text += "\n" + changes.to_markdown()
        changes.plot(folder)
    write_text(folder / "audit.md", text)
    result.plot(folder)
    if shown:
        write_text(folder / "explorer.html", explorer_page(shown))
        audits = [result] if changes is None else [result, changes.before]
        models = dict(reversed(list(zip(shown, audits, strict=False))))  # the model before comes first
        correction = (options.correction, CORRECTIONS[options.correction])
        page = audit_page(models, examples=shown, correction=correction)
        write_text(folder / "audit.html", page)
    return folder


def work(options: argparse.Namespace) -> str | None:
    """Runs the command; returns the text to print, or `None` in every process but the main one."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options.split, options.choose_on = _split(options.split), _split(options.choose_on)
    check_options(options)
    state = PartialState(cpu=options.cpu or not torch.cuda.is_available())
    regions = find_regions(options)
    paths = list(filter(None, (options.model, options.against)))
    names = short_names(paths, NAME_PARTS)
    models = [load(path, name, options, regions) for path, name in zip(paths, names, strict=True)]
    splits = [options.split, *([options.choose_on] if options.choose_on != SAME_SPLIT else [])]
    rows = load_rows(options, splits, regions)
    results = [measure(loaded, options.split, rows[options.split], regions, options) for loaded in models]
    for split in splits[1:]:
        results[0] = results[0].choose_on(measure(models[0], split, rows[split], regions, options))
    changes = None
    if options.against is not None:
        changes = compare(results[1], results[0], (names[1], names[0]), options.correction)
    if not state.is_main_process:
        return None
    shown = explore(models, rows[options.split], regions, options) if options.explore else {}
    folder = write(results[0], changes, shown, options)
    if options.card is not None:
        put_in_card(results[0], options.card, "" if changes is None else changes.to_markdown("###"))
    return _json(results[0], changes) if options.json else _summary(results[0], changes, folder)


def _split(name: str | None) -> str | None:
    return VALIDATION if name == "val" else name


def _json(result: AuditResult, changes: Changes | None) -> str:
    heads = [
        {**asdict(best), "layer": result.layers[best.layer], "heads_chosen_on": result.choice.split}
        for best in result.best_heads()
    ]
    found: dict[str, Any] = {
        "about": result.about,
        "layers": list(result.layers),
        "heads": result.heads,
        "best": heads,
    }
    return to_json(found | ({} if changes is None else {"changes": changes.to_dict()}))


def _summary(result: AuditResult, changes: Changes | None, folder: Path) -> str:
    lines = [f"heads chosen on {result.choice.split.replace('_', ' ')}, reported on {result.about['split']}:"]
    for best in result.best_heads():
        kind = "relation" if best.kind == RELATIONS else best.kind.replace("_", " ")
        lines.append(
            f"{kind}, {best.group}: head {result.name(best.layer, best.head)} {best.accuracy:.1%} "
            f"({interval_text(best.interval)}), {'active' if best.active else 'not active'}; "
            f"rule {best.baseline:.1%}, chance {best.chance:.1%}; {best.items} items in {best.images} images"
        )
    for direction in {} if changes is None else changes.comparisons:
        changed = changes.significant(direction)  # type: ignore[union-attr]
        lines.append(f"{direction.replace('_', ' ')}: {changed.sum()} of {changed.size} heads changed")
    return "\n".join([*lines, f"written: {folder}/audit.md"])
