# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures how faithful a relevancy map is: removes regions in its order, and measures the accuracy of the model.

Regions are removed with `region_attention_mask` in steps, the most relevant first or the least relevant first. With a
faithful map the accuracy falls early in the first order (a small area under the curve) and stays high in the second (a
large area); a random order is in between. The whole-image region of VL-BERT is not a candidate and is never removed.

Shape letters: B batch, R regions, F fractions, C curves, I images.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.heads.statistics import ratio_intervals
from grounded_attention.metrics.intervals import interval_text, to_json
from grounded_attention.modeling.finite_numbers import finite_outputs
from grounded_attention.utils.named_types import Batch, Columns, Fields, Row
from grounded_attention.utils.whole_files import write_text

from . import MAPS, STEPS
from .relevancy import Reader, region_maps

MOST = "most"
LEAST = "least"
RANDOM = "random"
Scores = Callable[[Any, Columns], Sequence[float | None]]


@dataclass(frozen=True, eq=False)
class PerturbationCurves:
    """Accuracy while regions are removed."""

    curves: tuple[tuple[str, str], ...]
    fractions: np.ndarray
    image_ids: tuple[str, ...]
    items: np.ndarray
    sums: np.ndarray
    about: Fields = field(default_factory=dict)

    @property
    def maps(self) -> tuple[str, ...]:
        """Names of the compared maps."""
        return tuple(dict.fromkeys(name for name, order in self.curves if order != RANDOM))

    @property
    def accuracy(self) -> np.ndarray:
        """Mean score, (C, F) in [0, 1]."""
        return self.sums.sum(0) / self.items.sum()

    def curve(self, name: str, order: str) -> np.ndarray:
        """Mean score of one curve, (F,) in [0, 1]."""
        return self.accuracy[self.curves.index((name, order))]

    @property
    def areas(self) -> np.ndarray:
        """Area under each curve by the trapezoidal rule, (C,) in [0, 1]: the mean accuracy over the removal."""
        return np.trapezoid(self.accuracy, self.fractions, axis=-1)

    def summary(self) -> list[Fields]:
        """The areas of each map and of the random order, with bootstrap intervals over images."""
        by_image = np.trapezoid(self.sums, self.fractions, axis=-1)  # (I, C)
        index = {curve: place for place, curve in enumerate(self.curves)}
        rows = []
        for name in (*self.maps, RANDOM):
            if name == RANDOM:
                orders = (RANDOM, RANDOM)
            else:
                orders = (MOST, LEAST)
            most, least = (by_image[:, index[name, order]] for order in orders)
            columns = np.stack([most, least, least - most], axis=1)
            low, high = ratio_intervals(columns, self.items)
            row: Fields = {"map": name}
            for place, key in enumerate((MOST, LEAST, "gap")):
                row[key] = float(columns[:, place].sum() / self.items.sum())
                row[f"{key}_low"], row[f"{key}_high"] = float(low[place]), float(high[place])
            rows.append(row)
        return rows

    def to_pandas(self) -> Any:
        """One row per point: map, order, fraction, accuracy."""
        import pandas

        rows = []
        for (name, order), values in zip(self.curves, self.accuracy, strict=True):
            for fraction, value in zip(self.fractions, values, strict=True):
                rows.append((name, order, float(fraction), float(value)))
        return pandas.DataFrame(rows, columns=["map", "order", "fraction", "accuracy"])

    def save(self, folder: str | Path) -> Path:
        """Writes perturbation.json (areas, curves, facts) and perturbation.csv; returns the folder."""
        folder = Path(folder)
        curves = [{"map": n, "order": o, "accuracy": self.curve(n, o).tolist()} for n, o in self.curves]
        content = {
            "about": self.about,
            "examples": int(self.items.sum()),
            "images": len(self.image_ids),
            "fractions": self.fractions.tolist(),
            "areas": self.summary(),
            "curves": curves,
        }
        write_text(folder / "perturbation.json", to_json(content, indent=1) + "\n")
        write_text(folder / "perturbation.csv", self.to_pandas().to_csv(index=False))
        return folder


def area_text(row: Row, name: str) -> str:
    """Formats an area or the gap of a summary row with its interval."""
    return f"{row[name]:.3f} ({interval_text((row[f'{name}_low'], row[f'{name}_high']), '.3f')})"


def perturb(
    model: Any,
    batches: Iterable[tuple[Batch, Sequence[str]]],
    *,
    inputs: Callable[[Batch], Batch],
    read_out: Reader,
    scores: Scores,
    maps: Sequence[str] = MAPS,
    steps: int = STEPS,
    seed: int = 0,
    about: Columns | None = None,
) -> PerturbationCurves:
    """Computes the curves of some maps."""
    if steps < 1:
        raise ValueError(f"steps is {steps}; expected at least 1")
    model.eval()
    fractions = np.linspace(0, 1, steps + 1)
    curves = (*((name, order) for name in maps for order in (MOST, LEAST)), (RANDOM, RANDOM))
    sums: dict[str, np.ndarray] = {}
    items: dict[str, int] = {}
    first = 0
    for batch, image_ids in batches:
        model_inputs = dict(inputs(batch))
        candidates = batch["region_candidate_mask"].bool()
        ranks = _ranks(region_maps(model, model_inputs, read_out, maps), candidates, seed, first)
        measured = _measure(model, model_inputs, batch, candidates, ranks, fractions, scores)  # (B, C, F)
        first += len(image_ids)
        for image, values in zip(image_ids, measured, strict=True):
            if not np.isnan(values).any():
                sums[image] = sums.get(image, 0.0) + values
                items[image] = items.get(image, 0) + 1
    if not sums:
        raise ValueError("no example has a score, because this split has no gold answers; give another split")
    counted = np.array([items[image] for image in sums])
    return PerturbationCurves(curves, fractions, tuple(sums), counted, np.stack([*sums.values()]), dict(about or {}))


def _ranks(maps: Mapping[str, Tensor], candidates: Tensor, seed: int, first: int) -> list[Tensor]:
    """The removal order of each curve: (B, R) int64 ranks by decreasing value, undefined outside the candidates.

    Ties keep the order of the region table (by confidence). Each example has one random draw, whatever its batch.
    """
    rows, regions = candidates.shape
    drawn = [torch.from_numpy(np.random.default_rng((seed, first + row)).random(regions)) for row in range(rows)]
    wanted = []
    for relevance in maps.values():
        for sign in (1, -1):
            wanted.append(sign * relevance)
    ranks = []
    for values in (*wanted, torch.stack(drawn).to(candidates.device)):
        shown = values.masked_fill(~candidates, torch.finfo(values.dtype).min)
        ordered = shown.argsort(dim=1, descending=True, stable=True)
        ranks.append(ordered.argsort(dim=1))
    return ranks


@torch.no_grad()
def _measure(
    model: Any,
    model_inputs: Batch,
    batch: Batch,
    candidates: Tensor,
    ranks: Sequence[Tensor],
    fractions: np.ndarray,
    scores: Scores,
) -> np.ndarray:
    """Scores, (B, C, F) float64; NaN for examples without a score."""
    counts = candidates.sum(1, keepdim=True)
    attended = model_inputs["region_attention_mask"]

    def score(kept: Tensor) -> np.ndarray:
        kept_inputs = {**model_inputs, "region_attention_mask": attended * kept.to(attended.dtype)}
        scored = scores(finite_outputs(model(**kept_inputs, return_dict=True)), batch)
        return np.array([np.nan if value is None else value for value in scored], dtype=np.float64)

    whole = score(torch.ones_like(candidates))
    none = score(~candidates)
    curves = np.empty((len(candidates), len(ranks), len(fractions)))
    curves[:, :, 0], curves[:, :, -1] = whole[:, None], none[:, None]
    for place, fraction in enumerate(fractions[1:-1], 1):
        removed = (counts * fraction + 0.5).floor()
        for curve, rank in enumerate(ranks):
            curves[:, curve, place] = score(~(candidates & (rank < removed)))
    return curves
