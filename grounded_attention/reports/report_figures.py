# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A metric's figures for people: what each means, and beside it what needs no model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEANINGS = {
    "identification_accuracy": "examples for which it is told which of two captions describe the image",
    "vgp_accuracy": "phrase pairs whose relation is told",
    "words_accuracy": "masked words that are guessed, beside the image",
    "text_words_accuracy": "masked words that are guessed in texts without image",
    "regions_accuracy": "masked regions whose detected class is guessed",
    "relationship_accuracy": "captions of which it is told whether they belong to the image",
    "vqa_accuracy": "official accuracy: an answer scores min(1, agreeing humans / 3), averaged over sets of nine",
    "vqa_soft_accuracy": "the same with human answers as they are written, as in training",
    "vqa_soft_upper_bound": "what the best answer of the model's list would reach",
    "vqa_answers_outside_the_list": "human answers that the model's list does not have",
    "expressions_accuracy": "sentences whose highest-scored region overlaps the meant object enough",
    "expressions_upper_bound": "sentences for which any region overlaps the meant object enough",
    "expressions_without_detections": "sentences of images without regions: misses",
    "vcr_accuracy": "questions for which the right one of four texts is chosen",
    "text_to_region_all_heads": "grounded words whose most-attended region is right, mean over layers and heads",
    "text_to_region_best_layer": "the same, of the layer in which it is most often so on this very split",
    "text_to_region_best_head": "the same, of the best head on this very split",
    "text_to_region_tokens": "grounded words that were counted",
}
ENDINGS = {"count": "how many were counted"}
BASELINES = ("majority", "chance")


@dataclass(frozen=True)
class Figure:
    """One number of a report.

    Args:
        name (`str`): as in metrics.json.
        value (`float | int`): the number; a share in [0, 1] where it is a float.
        meaning (`str`): what it says, empty where the report does not know.
        baselines (`Mapping[str, float]`): `majority` and `chance`, as far as they are known.
        count (`int`, *optional*): over how many.
    """

    name: str
    value: float | int
    meaning: str
    baselines: Mapping[str, float]
    count: int | None = None


@dataclass(frozen=True)
class Grid:
    """Shares in [0, 1] by layer (rows) and head (columns)."""

    name: str
    values: tuple[tuple[float, ...], ...]


def to_figures(figures: Mapping[str, Any], baselines: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    """The plain numbers; those that belong to an accuracy stand beside it.

    Args:
        figures (`Mapping[str, Any]`): of one split, as metrics return them.
        baselines (`Mapping[str, Mapping[str, float]]`): group -> its baselines, for accuracies whose metric reports
            none.
    """
    folded = {key for name in figures for key in _beside(name) if key in figures}
    plain = {k: v for k, v in figures.items() if isinstance(v, int | float) and k not in folded}
    return [Figure(name, value, _meaning(name), *_context(name, figures, baselines)) for name, value in plain.items()]


def to_grids(figures: Mapping[str, Any]) -> list[Grid]:
    """The figures that have a number for each layer and head."""
    return [
        Grid(name, tuple(tuple(row) for row in value))
        for name, value in figures.items()
        if isinstance(value, list) and value and all(isinstance(row, list) for row in value)
    ]


def _beside(name: str) -> list[str]:
    """The figures that a reader wants to see beside `name`."""
    stem = name.removesuffix("_accuracy")
    if stem != name:
        return [f"{stem}_{kind}" for kind in (*BASELINES, "count")]
    return ["text_to_region_chance"] if name.startswith("text_to_region_") and not name.endswith("_chance") else []


def _context(
    name: str, figures: Mapping[str, Any], baselines: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, float], int | None]:
    beside = {key.rpartition("_")[2]: figures[key] for key in _beside(name) if key in figures}
    count = beside.pop("count", None)
    if isinstance(figures[name], int):
        return {}, None  # a count has no baseline
    return {**baselines.get(name.removesuffix("_accuracy"), {}), **beside}, count


def _meaning(name: str) -> str:
    return MEANINGS.get(name) or ENDINGS.get(name.rpartition("_")[2], "")
