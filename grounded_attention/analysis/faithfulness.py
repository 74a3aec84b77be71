# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How faithful a map is: what a model still says while the places that the map ranks first are covered, or shown.

A place is a region, or a cell of the image tokens. In the deletion curve the first places of a map are covered, step
by step, and a faithful map makes the score fall early (a small area). In the insertion curve these alone are shown,
and a faithful map makes it rise early (a large area). Both are those of RISE (Petsiuk et al., arXiv 1806.07421).

Shape letters: B batch, R places, M maps, F fractions, W items (a word, or the decision about an example), S steps.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from grounded_attention.metrics.intervals import interval_text, to_json
from grounded_attention.metrics.significance import Estimates, estimate_ratio
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.plain_text import markdown_table
from grounded_attention.utils.whole_files import write_text

DELETION = "deletion"
INSERTION = "insertion"
RANDOM = "random"
GOLD = "gold"
PLAIN = "plain"
LARGE = ("fractions", "maps", "curves")  # fields of the file that are not printed as they are


@dataclass(frozen=True, eq=False)
class FaithfulCurves:
    """The scores of items while the places of each map are covered, or shown.

    Args:
        maps (`tuple[str, ...]`): names of the M maps.
        fractions (`np.ndarray`): (F,) float64, the part of the places that is covered or shown, from 0 to 1.
        image_ids (`tuple[str, ...]`): the image of each of the W items; intervals resample images.
        scores (`np.ndarray`): (W, M, 2, F) float64: of deletion and insertion, a log-probability in nats or an
            accuracy in [0, 1].
        more (`Mapping[str, np.ndarray]`): other measures, (W, M) float64 each.
        about (`Mapping[str, Any]`): facts for the file.
    """

    maps: tuple[str, ...]
    fractions: np.ndarray
    image_ids: tuple[str, ...]
    scores: np.ndarray
    more: Mapping[str, np.ndarray] = field(default_factory=dict)
    about: Columns = field(default_factory=dict)

    @property
    def curves(self) -> np.ndarray:
        """Mean scores, (M, 2, F)."""
        return self.scores.mean(0)

    @property
    def measures(self) -> dict[str, np.ndarray]:
        """The measures of each item, (W, M) float64 each.

        `deletion` and `insertion` are the areas under the curves by the trapezoidal rule: the mean score on the way.
        `gap` is insertion less deletion: 0 in expectation for an order without information. `gap - random` and
        `gap - plain` compare it with that of another map of the same item.
        """
        areas = np.trapezoid(self.scores, self.fractions, axis=-1)  # (W, M, 2)
        gap = areas[..., 1] - areas[..., 0]
        found = {DELETION: areas[..., 0], INSERTION: areas[..., 1], "gap": gap}
        for name in (RANDOM, PLAIN):
            if name in self.maps:
                found[f"gap - {name}"] = gap - gap[:, [self.maps.index(name)]]
        return {**found, **self.more}

    def summary(self) -> dict[str, Estimates]:
        """Map -> measure -> its mean, with a bootstrap interval over images."""
        found: dict[str, Estimates] = {name: {} for name in self.maps}
        for measure, values in self.measures.items():
            for name, of_map in zip(self.maps, values.T, strict=True):
                found[name][measure] = estimate_ratio(of_map, None, self.image_ids)
        return found

    def to_dict(self) -> Fields:
        """Facts, numbers of items and images, of each measure the mean and its interval, and the mean curves."""
        maps: Fields = {}
        for name, estimates in self.summary().items():
            maps[name] = {measure: [each.value, each.low, each.high] for measure, each in estimates.items()}
        counts = {"items": len(self.image_ids), "images": len({*self.image_ids})}
        curves = dict(zip(self.maps, self.curves.tolist(), strict=True))
        return {**self.about, **counts, "fractions": self.fractions.tolist(), "maps": maps, "curves": curves}

    def save(self, folder: str | Path) -> str:
        """Writes faithful.json and faithful.png to a folder, and returns a table for a terminal."""
        from grounded_attention.pages.figures import faithful_figure

        content = self.to_dict()
        write_text(Path(folder) / "faithful.json", to_json(content, indent=1) + "\n")
        faithful_figure(self, Path(folder) / "faithful.png")
        rows = []
        for name in self.maps:
            texts = [f"{mean:.3f} ({interval_text(ends, '.3f')})" for mean, *ends in content["maps"][name].values()]
            rows.append([name, *texts])
        facts = "; ".join(f"{name} {value}" for name, value in content.items() if name not in LARGE)
        return f"{markdown_table(['map', *self.measures], rows, aligned=True)}\n{facts}\nwritten: {folder}"


def step_fractions(steps: int) -> np.ndarray:
    """(F,) float64, the fractions of some equal steps."""
    if steps < 1:
        raise ValueError(f"steps is {steps}; expected at least 1")
    return np.linspace(0, 1, steps + 1)


def random_map(places: int, seed: int, number: int) -> np.ndarray:
    """(R,) float64: the random map of an item; it depends on the seed and the item's number alone."""
    return np.random.default_rng((seed, number)).random(places)


def measure_curves(
    maps: np.ndarray, candidates: np.ndarray, score: Callable[[np.ndarray], np.ndarray], fractions: np.ndarray
) -> np.ndarray:
    """Measures deletion and insertion for some maps of a batch of examples.

    Args:
        maps (`np.ndarray`): (B, M, R) float, higher is earlier; read at candidates alone. Of places with one value the
            one with the lower number comes first.
        candidates (`np.ndarray`): (B, R) bool, the places that may be covered; others are always shown.
        score (`Callable`): from (S, B, R) bool, what is shown in each step, to (S, B) float64 scores. No two steps are
            alike in all examples.
        fractions (`np.ndarray`): (F,) float64 in [0, 1], the part of an example's candidates; rounded half up.

    Returns:
        `np.ndarray`: (B, M, 2, F) float64: deletion, insertion.

    Raises:
        ValueError: if a map is NaN or infinite at a candidate.
    """
    if not np.isfinite(np.where(candidates[:, None], maps, 0)).all():
        raise ValueError("a map is NaN or infinite, so it has no order: check the model that made it")
    order = np.where(candidates[:, None], -maps, np.inf).argsort(-1, kind="stable")
    ranks = order.argsort(-1)  # (B, M, R)
    counts = np.floor(candidates.sum(1)[:, None] * fractions + 0.5)  # (B, F)
    is_first = ranks[:, :, None] < counts[:, None, :, None]  # (B, M, F, R)
    shown = np.stack([~is_first, is_first], 2) | ~candidates[:, None, None, None]  # (B, M, 2, F, R)
    steps = np.moveaxis(shown.reshape(len(maps), -1, shown.shape[-1]), 0, 1)  # (M * 2 * F, B, R)
    once, place = np.unique(steps, axis=0, return_inverse=True)
    return score(once)[place.ravel()].T.reshape(shown.shape[:-1])
