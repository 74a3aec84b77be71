# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Compares the heads of two checkpoints with a paired test over images, corrected for the number of heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.plain_text import markdown_table, markdown_text

from .statistics import PERMUTATIONS, Comparison, exchange_test, holm
from .table import HeadCounts, HeadTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.05
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Changes:
    """The differences between the heads of two audits, over all phrases of each direction."""

    names: tuple[str, str]
    before: HeadTable
    after: HeadTable
    comparisons: dict[str, Comparison]
    corrected: dict[str, np.ndarray]

    def significant(self, direction: str) -> np.ndarray:
        """Mask of the heads that changed, (L, H) bool: corrected p of at most 0.05."""
        return self.corrected[direction] <= LEVEL

    def better_and_worse(self, direction: str) -> tuple[int, int]:
        """How many heads changed for the better, and how many for the worse."""
        changed = self.comparisons[direction].difference[self.significant(direction)]
        return int((changed > 0).sum()), int((changed < 0).sum())

    @property
    def tested(self) -> int:
        """The number of heads of the models."""
        return int((self.before.real | self.after.real).sum())

    def to_dict(self) -> Fields:
        """The content as JSON types."""
        content = {}
        for direction, comparison in self.comparisons.items():
            content[direction] = {
                "difference": comparison.difference.tolist(),
                "p": comparison.p.tolist(),
                "p_corrected": self.corrected[direction].tolist(),
            }
        return {
            "before": self.names[0],
            "after": self.names[1],
            "correction": "holm",
            "layers": list(self.after.layers),
            **content,
        }

    def to_markdown(self, marks: str = "##") -> str:
        """The number of changed heads and a table of the most changed ones, as Markdown; `marks` are its heading's."""
        heading = f"{marks} {markdown_text(self.names[1])} against {markdown_text(self.names[0])}"
        return "\n\n".join([heading, *map(self._section, self.comparisons)]) + "\n"

    def _section(self, direction: str) -> str:
        better, worse = self.better_and_worse(direction)
        text = (
            f"{direction.replace('_', ' ')}: {better + worse} of {self.tested} heads changed, {better} of them for "
            f"the better (paired permutation test by image, holm, p ≤ {LEVEL:g})."
        )
        columns = ("head", "before", "after", "difference", "corrected p")
        return f"{text}\n\n{markdown_table(columns, self._rows(direction))}"

    def _rows(self, direction: str) -> Iterator[tuple[str, ...]]:
        difference = self.comparisons[direction].difference
        p = self.corrected[direction]
        before = self.before.entities[direction]["all"].accuracy
        after = self.after.entities[direction]["all"].accuracy
        for place in np.argsort(-np.abs(difference), axis=None, kind="stable")[:_SHOWN]:
            layer, head = (int(index) for index in np.unravel_index(place, difference.shape))
            at = (layer, head)
            name = markdown_text(self.after.name(layer, head))
            yield name, f"{before[at]:.1%}", f"{after[at]:.1%}", f"{difference[at]:+.1%}", f"{p[at]:.2g}"

    def plot(self, folder: Path) -> list[Path]:
        """Draws each direction; returns the files `changes_<direction>.png`."""
        files = []
        for direction in self.comparisons:
            files.append(folder / f"changes_{direction}.png")
            self.figure(direction, files[-1])
        return files

    def figure(self, direction: str, path: Path) -> Figure:
        """Draws the heads before and after, with a frame around those that changed."""
        from .figures import heads_figure, seen_accuracy

        counts = [result.entities[direction]["all"] for result in (self.before, self.after)]
        panels = {name: seen_accuracy(one) for name, one in zip(self.names, counts, strict=True)}
        changed = [(int(layer), int(head)) for layer, head in np.argwhere(self.significant(direction))]
        title = f"{direction.replace('_', ' ')}: right answers of each head; frame: changed (p ≤ {LEVEL:g})"
        return heads_figure(panels, None, path, self.after.layers, {self.names[1]: changed}, title)


def permutation_test(before: HeadCounts, after: HeadCounts, draws: int = PERMUTATIONS, seed: int = 0) -> Comparison:
    """Tests which heads changed between two checkpoints with answers to the same items: a paired permutation test.

    Each draw exchanges all answers of an image with probability 1/2; if there are no more exchanges than `draws`, all
    are tried and p is exact.
    """
    after = _paired(before, after)
    return exchange_test(after.correct - before.correct, before.total, draws, seed)


def _paired(before: HeadCounts, after: HeadCounts) -> HeadCounts:
    """`after` with its images in the order of `before`."""
    index = {image: row for row, image in enumerate(after.image_ids)}
    if index.keys() != set(before.image_ids):
        first = len(set(before.image_ids) - index.keys())
        second = len(index.keys() - set(before.image_ids))
        raise ValueError(
            f"judged on different images: {first} are only in the first, {second} only in the second; "
            "audit both with the same data and regions"
        )
    after = after.take([index[image] for image in before.image_ids])
    unlike = np.flatnonzero(before.items != after.items)
    if len(unlike):
        image = unlike[0]
        raise ValueError(
            f"image {before.image_ids[image]} has {before.items[image]} items in the first and {after.items[image]} "
            "in the second; audit both with the same data, regions and words"
        )
    return after


def compare(
    before: HeadTable,
    after: HeadTable,
    names: tuple[str, str] = ("before", "after"),
    draws: int = PERMUTATIONS,
    seed: int = 0,
) -> Changes:
    """Tests which heads changed."""
    if (before.layers, before.heads) != (after.layers, after.heads):
        raise ValueError(
            f"the models have the layers {', '.join(before.layers)} of {before.heads} heads and "
            f"{', '.join(after.layers)} of {after.heads}: compare two models of the same architecture"
        )
    for name in ("data", "split", "word", "iou_threshold", "coverage_threshold", "merged_box", "instruction"):
        if before.about.get(name) != after.about.get(name):
            raise ValueError(
                f"the audits have {name} {before.about.get(name)!r} and {after.about.get(name)!r}: run both "
                "audits with the same options"
            )
    shared = [direction for direction in after.entities if direction in before.entities]
    comparisons = {}
    for name in shared:
        entities = (before.entities[name]["all"], after.entities[name]["all"])
        comparisons[name] = permutation_test(*entities, draws, seed)
    real = before.real | after.real
    corrected = {direction: np.ones_like(comparison.p) for direction, comparison in comparisons.items()}
    for direction, comparison in comparisons.items():
        corrected[direction][real] = holm(comparison.p[real])
    return Changes(names, before, after, comparisons, corrected)
