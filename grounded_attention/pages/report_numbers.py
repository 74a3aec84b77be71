# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Prepares the numbers of a metric for readers: the meaning of each, and its baselines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEANINGS = {
    "identification_accuracy": "examples for which the model finds the caption (of two) that describes the image",
    "vgp_accuracy": "phrase pairs with the right relation",
    "words_accuracy": "masked words that are predicted right, with the image",
    "text_words_accuracy": "masked words that are predicted right, in text without an image",
    "regions_accuracy": "masked regions whose detected class is predicted right",
    "relationship_accuracy": "captions for which the model predicts right whether they belong to the image",
    "answers_accuracy": "questions among the texts of pre-training whose answer is predicted right",
    "vqa_accuracy": "official accuracy: an answer scores min(1, agreeing humans / 3), averaged over sets of nine",
    "vqa_soft_accuracy": "the same without normalisation of the human answers, as in training",
    "vqa_soft_upper_bound": "accuracy of the best possible answer of the model's list",
    "vqa_answers_outside_the_list": "human answers that are not in the model's list",
    "gqa_accuracy": "balanced questions with the right answer, the same text",
    "gqa_binary": "the same, of questions that are not open (structural type not query)",
    "gqa_open": "the same, of open questions (structural type query)",
    "gqa_consistency": "right answers to the questions that a right answer entails, mean over right answers",
    "gqa_validity": "answers that suit the question, such as a color for a question about one",
    "gqa_plausibility": "answers that are possible for the object of the question",
    "gqa_distribution": "distance of the answers' frequencies from the right ones (chi-square / 100); lower is better",
    "gqa_upper_bound": "balanced questions whose right answer is in the model's list",
    "gqa_majority": "accuracy of always the same answer, the most frequent one of training",
    "gqa_answers_outside_the_list": "right answers that are not in the model's list",
    "expressions_accuracy": "sentences whose highest-scored region overlaps the referred object enough",
    "expressions_upper_bound": "sentences for which any region overlaps the referred object enough",
    "expressions_without_detections": "sentences of images without regions; they count as misses",
    "vcr_accuracy": "questions for which the model chooses the right one of four texts",
    "text_to_region_all_heads": "grounded words whose most-attended region is right, mean over layers and heads",
    "text_to_region_best_layer": "the same, for the best layer on this same split",
    "text_to_region_best_head": "the same, for the best head on this same split",
    "text_to_region_tokens": "number of grounded words",
}
ENDINGS = {"count": "number of items"}
BASELINES = ("majority", "chance")


@dataclass(frozen=True)
class Number:
    """One number of a report."""

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


def to_numbers(numbers: Mapping[str, Any], baselines: Mapping[str, Mapping[str, float]]) -> list[Number]:
    """Takes all plain numbers; baselines and counts are attached to their accuracy."""
    folded = {key for name in numbers for key in _beside(name) if key in numbers}
    plain = {k: v for k, v in numbers.items() if isinstance(v, int | float) and k not in folded}
    return [Number(name, value, _meaning(name), *_context(name, numbers, baselines)) for name, value in plain.items()]


def to_grids(numbers: Mapping[str, Any]) -> list[Grid]:
    """Makes grids of the numbers with one number per layer and head."""
    return [
        Grid(name, tuple(tuple(row) for row in value))
        for name, value in numbers.items()
        if isinstance(value, list) and value and all(isinstance(row, list) for row in value)
    ]


def _beside(name: str) -> list[str]:
    """Names of the baselines and counts of a metric."""
    stem = name.removesuffix("_accuracy")
    if stem != name:
        return [f"{stem}_{kind}" for kind in (*BASELINES, "count")]
    return ["text_to_region_chance"] if name.startswith("text_to_region_") and not name.endswith("_chance") else []


def _context(
    name: str, numbers: Mapping[str, Any], baselines: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, float], int | None]:
    beside = {key.rpartition("_")[2]: numbers[key] for key in _beside(name) if key in numbers}
    count = beside.pop("count", None)
    if isinstance(numbers[name], int):
        return {}, None  # a count has no baseline
    return {**baselines.get(name.removesuffix("_accuracy"), {}), **beside}, count


def _meaning(name: str) -> str:
    return MEANINGS.get(name) or ENDINGS.get(name.rpartition("_")[2], "")
