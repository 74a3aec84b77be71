# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Compares the heads of two checkpoints with a paired test over images, corrected for the number of heads."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grounded_attention.heads.audit_result import AuditResult
from grounded_attention.heads.plots import plot_changes
from grounded_attention.heads.statistics import CORRECTIONS, PERMUTATIONS, Comparison, permutation_test
from grounded_attention.utils.plain_text import markdown_text

HOLM = "holm"
LEVEL = 0.05
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Changes:
    """The differences between the heads of two audits, over all phrases of each direction."""

    names: tuple[str, str]
    before: AuditResult
    after: AuditResult
    correction: str
    comparisons: dict[str, Comparison]
    corrected: dict[str, np.ndarray]

    def significant(self, direction: str) -> np.ndarray:
        """Mask of the heads that changed, (L, H) bool: corrected p of at most 0.05."""
        return self.corrected[direction] <= LEVEL

    def to_dict(self) -> dict[str, Any]:
        """The content as JSON types."""
        found = {
            direction: {
                "difference": comparison.difference.tolist(),
                "p": comparison.p.tolist(),
                "p_corrected": self.corrected[direction].tolist(),
            }
            for direction, comparison in self.comparisons.items()
        }
        return {
            "before": self.names[0],
            "after": self.names[1],
            "correction": self.correction,
            "layers": list(self.after.layers),
            **found,
        }

    def to_markdown(self, marks: str = "##") -> str:
        """The number of changed heads and a table of the most changed ones, as Markdown; `marks` are its heading's."""
        heading = f"{marks} {markdown_text(self.names[1])} against {markdown_text(self.names[0])}"
        return "\n\n".join([heading, *map(self._section, self.comparisons)]) + "\n"

    def _section(self, direction: str) -> str:
        significant = self.significant(direction)
        rises = int((significant & (self.comparisons[direction].difference > 0)).sum())
        text = (
            f"{direction.replace('_', ' ')}: {significant.sum()} of {significant.size} heads changed, {rises} of them "
            f"for the better (paired permutation test by image, {self.correction.replace('_', ' ')}, p ≤ {LEVEL:g})."
        )
        lines = ["| head | before | after | difference | corrected p |", "|---|--:|--:|--:|--:|"]
        return "\n".join([text, "", *lines, *self._rows(direction)])

    def _rows(self, direction: str) -> Iterator[str]:
        difference, p = self.comparisons[direction].difference, self.corrected[direction]
        before, after = (result.entities[direction]["all"].accuracy for result in (self.before, self.after))
        for place in np.argsort(-np.abs(difference), axis=None, kind="stable")[:_SHOWN]:
            layer, head = (int(index) for index in np.unravel_index(place, difference.shape))
            at = (layer, head)
            yield (
                f"| {markdown_text(self.after.name(layer, head))} | {before[at]:.1%} | {after[at]:.1%} | "
                f"{difference[at]:+.1%} | {p[at]:.2g} |"
            )

    def plot(self, folder: Path) -> list[Path]:
        """Draws each direction; returns the files `changes_<direction>`, .png and .pdf."""
        files = []
        for direction, p in self.corrected.items():
            counts = [result.entities[direction]["all"] for result in (self.before, self.after)]
            path = folder / f"changes_{direction}"
            rule = self.after.rule(direction)
            files += plot_changes(counts[0], counts[1], path, p, self.after.layers, self.names, rule)
        return files


def compare(
    before: AuditResult,
    after: AuditResult,
    names: tuple[str, str] = ("before", "after"),
    correction: str = HOLM,
    draws: int = PERMUTATIONS,
    seed: int = 0,
) -> Changes:
    """Tests which heads changed."""
    if correction not in CORRECTIONS:
        raise ValueError(f"correction={correction!r} is unknown; expected one of {', '.join(CORRECTIONS)}")
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
    comparisons = {
        direction: permutation_test(before.entities[direction]["all"], after.entities[direction]["all"], draws, seed)
        for direction in shared
    }
    corrected = {direction: CORRECTIONS[correction](found.p) for direction, found in comparisons.items()}
    return Changes(names, before, after, correction, comparisons, corrected)
