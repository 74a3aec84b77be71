# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures a trained model on every split and track, and saves the scores of single examples."""

from collections.abc import Mapping
from pathlib import Path

from grounded_attention.heads.attention_grounding import summarise
from grounded_attention.metrics.item_scores import ID_COLUMNS
from grounded_attention.pages.figures import HEADS
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.utils.named_types import Columns, Fields, Head
from grounded_attention.utils.whole_files import write_json

from .prepared_data import PreparedData

TRAIN = "train"
TEXT_ONLY = "text_only"
BEFORE = "before training"  # in tables
BEFORE_FILE = "before.json"
# The split to report if there is room for only one, in order of preference.
REPORTED = ("test", "validation")


def measured_splits(splits: Columns) -> list[str]:
    """The splits to measure, in order: all except the training split."""
    return [name for name in splits if name != TRAIN]


def measure_all(trainer: GroundingTrainer, data: PreparedData, directory: Path) -> dict[str, Fields]:
    """Measures every split except the training split."""
    return {name: _measure_split(trainer, data, name, directory) for name in measured_splits(data.splits)}


def _measure_split(trainer: GroundingTrainer, data: PreparedData, split: str, directory: Path) -> Fields:
    numbers: Fields = {}
    items: dict[str, list] = {}
    tracks: Fields = {**data.tracks} or {"": None}
    for track, regions in tracks.items():
        title = f"evaluate {split}" + (f", {track}" if track else "")
        measured, kept = trainer.measure_items(data.splits[split], title, regions)
        numbers |= {on_track(track, name): value for name, value in measured.items()}
        items |= {name if name in ID_COLUMNS else on_track(track, name): values for name, values in kept.items()}
        if kept and trainer.is_world_process_zero():
            trainer.task.export(kept, directory / "_".join(filter(None, ("predictions", split, track))))
    if items and trainer.is_world_process_zero():
        write_json(directory / f"items_{split}.json", items)
    return numbers


def on_track(track: str | None, name: str) -> str:
    """The name of a metric on a track."""
    if track:
        return f"{track}_{name}"
    return name


def reported_split(numbers: Mapping[str, Fields]) -> str:
    """The split whose numbers are reported: test if it is scored, else validation, else any; "" if none is."""
    order = [*REPORTED, *(name for name in numbers if name not in REPORTED)]
    return next((name for name in order if name in numbers and _is_scored(numbers[name])), "")


def reported(numbers: Mapping[str, Fields]) -> Fields:
    """The numbers of the reported split."""
    return numbers.get(reported_split(numbers), {})


def chosen_heads(methods: Mapping[str, Mapping[str, Fields]]) -> dict[str, list[Head]]:
    """Method -> the head that is best on validation, as tables name it; `methods` has numbers by split."""
    validated = {}
    for name, splits in methods.items():
        if HEADS in splits.get("validation", {}):
            validated[name] = splits["validation"]
    return {name: [tuple(summarise(numbers, numbers)["head"])] for name, numbers in validated.items()}


def _is_scored(numbers: Columns) -> bool:
    return any(name.endswith(("_accuracy", "_by_head")) for name in numbers)


def scored_splits(numbers: Mapping[str, Fields]) -> dict[str, Fields]:
    """The numbers to show: all scored splits if the data set has special test splits, otherwise one split."""
    own = []
    for name in numbers:
        if name not in REPORTED and _is_scored(numbers[name]):
            own.append(name)
    if own:
        return {name: split for name, split in numbers.items() if _is_scored(split)}
    return {"": reported(numbers)}
