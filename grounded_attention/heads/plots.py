# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Draws the figures of an audit result, each as .png and .pdf."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grounded_attention.heads.counts import RELATIONS, AuditCounts
from grounded_attention.heads.figures import changes_figure, entity_grounding_figure, grounding_panels_figure
from grounded_attention.heads.head_counts import HeadCounts
from grounded_attention.heads.statistics import bootstrap_intervals

TYPES = (".png", ".pdf")
# The paper reports the ten most common relations.
MOST_PANELS = 10
_TITLES = {
    "text_to_region": "Entity grounding: the most-attended {region} is gold",
    "region_to_text": "From {region}s to words: the most-attended word refers to the {region}",
}


def plot_result(result: AuditCounts, folder: Path) -> list[Path]:
    """Draws each direction by layer and head, the phrase types and the relations."""
    files: list[Path] = []
    ring = result.choice.ring
    for direction, groups in result.entities.items():
        counts = groups["all"]
        title = _TITLES[direction].format(region=result.region)
        chosen = result.choice.heads.get(direction, {})
        known = {"layers": result.layers, "title": title, "baseline": result.rule(direction), "ring": ring}
        spans, head = bootstrap_intervals(counts), chosen.get("all")
        files += _draw(entity_grounding_figure, counts, folder / direction, intervals=spans, chosen=head, **known)
        types = most_common({name: found for name, found in groups.items() if name != "all"})
        if types:
            files += _draw(grounding_panels_figure, types, folder / f"{direction}_types", chosen=chosen, **known)
    if result.relations:
        drawn = most_common(result.relations)
        marked = {"chosen": result.choice.heads.get(RELATIONS, {}), "ring": ring}
        known = {"layers": result.layers, "baseline": result.rule(RELATIONS)}
        files += _draw(grounding_panels_figure, drawn, folder / "relations", **known, **marked)
    return files


def plot_changes(
    before: HeadCounts,
    after: HeadCounts,
    path: Path,
    p: Any,
    layers: tuple[str, ...],
    names: tuple[str, str],
    baseline: str,
) -> list[Path]:
    """
    Draws the changes of the heads as .png and .pdf; returns the files.
    """
    files = [path.with_suffix(kind) for kind in TYPES]
    for file in files:
        changes_figure(before, after, file, p=p, layers=layers, names=names, baseline=baseline)
    return files


def most_common(counts: Mapping[str, HeadCounts]) -> dict[str, HeadCounts]:
    """The groups with the most items, most first."""
    names = sorted(counts, key=lambda name: (-counts[name].total, name))[:MOST_PANELS]
    return {name: counts[name] for name in names}


def _draw(figure: Callable[..., Any], counts: Any, path: Path, **options: Any) -> list[Path]:
    files = [path.with_suffix(kind) for kind in TYPES]
    for file in files:
        figure(counts, file, **options)
    return files
