# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`HeadTable`: for every head of a model how often, and how much, it looks at the right place; saved as `heads.json`.

The sums are over each image, because items of one image are not independent; accuracies, intervals and tests are
computed from them. The best of 144 heads is partly the best by chance, so its accuracy on the items of the choice is
too high. Therefore heads are chosen on one split and reported on another. `SAME_SPLIT` selects the way of the paper
(Li et al., 2020), one split for both. Shape letters: I images, L layers of the model, H heads.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from grounded_attention.metrics.intervals import Interval, to_json
from grounded_attention.metrics.significance import Estimate
from grounded_attention.supervision import DIRECTIONS
from grounded_attention.utils.bounded_files import read_data, read_json
from grounded_attention.utils.named_types import Columns, Fields, Head
from grounded_attention.utils.safe_paths import path_below
from grounded_attention.utils.whole_files import write_bytes, write_text

from . import SAME_SPLIT
from .card import heads_section, region_of
from .choosing import top_heads
from .heads_file import FILE, FORMAT
from .statistics import ACTIVE_SHARE, ALL, DRAWS, IN_BLOCK, LEVEL, RELATIONS, ratio_intervals

if TYPE_CHECKING:
    import pandas

# The sums of `HeadCounts`.
SUMS = ("items", "correct", "share", "baseline", "chance", "reachable", "lift", "entropy")
MEASURES = ("pointing", "lift", "share", "entropy")


@dataclass(frozen=True, eq=False)
class HeadCounts:
    """Sums over the judged items (phrases, or words of a dependency relation) of each image, or of each block of
    images where they are more than `BLOCKS` of `statistics.py`.

    (I,): `items`, `baseline` (right answers of the baseline rule), `chance` (of a random candidate), `reachable`
    (items that any candidate answers). (I, L, H): `correct`, `share` (attention on all candidates), `lift` (attention
    on right answers over their part of the candidates), `entropy` (spatial, of the map of image tokens).
    """

    image_ids: tuple[str, ...]
    items: np.ndarray
    correct: np.ndarray
    share: np.ndarray
    baseline: np.ndarray
    chance: np.ndarray
    reachable: np.ndarray | None = None
    lift: np.ndarray | None = None
    entropy: np.ndarray | None = None

    @property
    def total(self) -> int:
        """Number of items of all images."""
        return int(self.items.sum())

    @property
    def unit(self) -> str:
        """What is counted apart."""
        if self.image_ids[0].startswith(IN_BLOCK):
            return "blocks of images"
        return "images"

    def mean(self, measure: str) -> np.ndarray | None:
        """(L, H): the mean of one of `MEASURES` over all items; `None` if it was not counted."""
        sums = self.correct if measure == "pointing" else getattr(self, measure)
        if sums is None:
            return None
        return sums.sum(0) / self.total

    @property
    def accuracy(self) -> np.ndarray:
        """Share of right answers of each head, (L, H) in [0, 1]: `pointing`."""
        return self.correct.sum(0) / self.total

    @property
    def mean_share(self) -> np.ndarray:
        """Mean share of attention on all candidates, (L, H) in [0, 1]."""
        return self.share.sum(0) / self.total

    @property
    def active(self) -> np.ndarray:
        """Mask of the heads whose mean share is above `ACTIVE_SHARE`, (L, H) bool."""
        return self.mean_share > ACTIVE_SHARE

    @property
    def seeing(self) -> np.ndarray:
        """(L, H) bool: the heads that see a candidate of any item; layers may have fewer heads than H, or none."""
        return np.any(self.share > 0, axis=0)

    @property
    def blind_layers(self) -> tuple[int, ...]:
        """Layers that see no candidate of any item: without heads, or with windows that end before the image."""
        return tuple(np.flatnonzero(~self.seeing.any(1)).tolist())

    @property
    def baseline_accuracy(self) -> float:
        """Accuracy of always choosing the most confident region, in [0, 1]."""
        return float(self.baseline.sum() / self.total)

    @property
    def chance_accuracy(self) -> float:
        """Expected accuracy of a random candidate, in [0, 1]."""
        return float(self.chance.sum() / self.total)

    @property
    def upper_bound(self) -> float | None:
        """Share of items that any candidate answers, the limit for every head; `None` if not counted."""
        if self.reachable is None:
            return None
        return float(self.reachable.sum() / self.total)

    def intervals(self, level: float = LEVEL, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
        """(2, L, H): bootstrap intervals of the accuracy: percentiles over samples of I images with replacement."""
        ends = ratio_intervals(self.correct.reshape(len(self.items), -1), self.items, level, draws, seed)
        return ends.reshape(2, *self.correct.shape[1:])

    def interval(self, head: Head) -> Interval:
        """The interval of the accuracy of one head."""
        low, high = ratio_intervals(self.correct[:, head[0], head[1], None], self.items)[:, 0].tolist()
        return low, high

    def share_of(self, head: Head) -> Estimate:
        """How often a head is right, with its interval."""
        return Estimate(float(self.accuracy[head]), *self.interval(head), self.total)

    def baseline_interval(self) -> Interval:
        """The interval of the baseline rule; the same seed gives the same samples of images as for the heads."""
        low, high = ratio_intervals(self.baseline[:, None], self.items)[:, 0].tolist()
        return low, high

    def take(self, images: Sequence[int] | np.ndarray) -> "HeadCounts":
        """The counts of the images with these indices; repeats are allowed."""
        index = np.asarray(images, dtype=np.int64)
        arrays = {}
        for name in SUMS:
            value = getattr(self, name)
            if value is not None:
                arrays[name] = value[index]
        return HeadCounts(tuple(self.image_ids[i] for i in index), **arrays)

    def summary(self) -> Fields:
        """Counts, baselines, and the mean scores of all heads as lists (L, H), as JSON types."""
        scores = {}
        for name in MEASURES:
            values = self.mean(name)
            if values is not None:
                scores[name] = values
        return {
            "items": self.total,
            "images": len(self.image_ids),
            "reachable": self.upper_bound,
            "baseline": self.baseline_accuracy,
            "chance": self.chance_accuracy,
            "scores": {name: np.round(values, 6).tolist() for name, values in scores.items()},
        }


# Direction -> group -> what was counted.
Counted = Mapping[str, Mapping[str, HeadCounts]]


@dataclass(frozen=True)
class Choice:
    """The chosen heads: direction -> group -> head."""

    split: str
    heads: Mapping[str, Mapping[str, Head]]

    @property
    def ring(self) -> str:
        """What figures ring: the heads that tables name."""
        if self.split == SAME_SPLIT:
            return "best head of these items"
        return f"head chosen on {self.split}"


def choose(table: "HeadTable", split: str) -> Choice:
    """Chooses the best head of each group of a table.

    The best head is the most accurate active head (Table 2 of the paper), or the most accurate head if none is active;
    the first of equals.
    """
    heads = {}
    for kind, groups in table.counted.items():
        heads[kind] = {group: _best(counts) for group, counts in groups.items()}
    return Choice(split, heads)


def _best(counts: HeadCounts) -> Head:
    (best,) = top_heads(counts.accuracy, 1, counts.active if counts.active.any() else None)
    return best


@dataclass(frozen=True, eq=False)
class HeadTable:
    """What was counted of every head of a model: a table, a card, figures and the file `heads.json`.

    Args:
        layers (`tuple[str, ...]`): names of the L layers of the model.
        heads (`int`): H, the largest number of heads of a layer.
        entities (`dict[str, dict[str, HeadCounts]]`): direction -> group -> counts; the groups are "all" and the
            phrase types.
        relations (`dict[str, HeadCounts]`, *optional*): dependency relation -> counts from words to regions.
        about (`dict[str, Any]`, *optional*): settings and facts: model, data, split, word, iou_threshold or
            coverage_threshold, baseline, numbers of judged, boxless and cut phrases.
        chosen (`Choice`, *optional*): heads to report; None chooses the best of this result, as the paper
            does.
        headless (`tuple[int, ...]`, *optional*): layers without softmax attention over the sequence.
    """

    layers: tuple[str, ...]
    heads: int
    entities: dict[str, dict[str, HeadCounts]]
    relations: dict[str, HeadCounts] = field(default_factory=dict)
    about: Fields = field(default_factory=dict)
    chosen: Choice | None = None
    headless: tuple[int, ...] = ()

    @property
    def counted(self) -> dict[str, dict[str, HeadCounts]]:
        """All counts: the directions, and the relations if there are any."""
        return {**self.entities, **({RELATIONS: self.relations} if self.relations else {})}

    @property
    def counts(self) -> HeadCounts:
        """The counts of all phrases, from words to regions."""
        return self.entities[DIRECTIONS[0]][ALL]

    @property
    def real(self) -> np.ndarray:
        """(L, H) bool: the heads that the model has; a layer may have fewer than H, or none.

        A layer whose heads see nothing, and that is not `headless`, has windows that end before the image.
        """
        seeing = np.any([counts.seeing for groups in self.counted.values() for counts in groups.values()], axis=0)
        blind = ~seeing.any(1, keepdims=True)
        blind[list(self.headless)] = False
        return seeing | blind

    def choose_on(self, other: "HeadTable | str") -> Self:
        """A copy that reports the heads that are best on another split.

        Args:
            other (`HeadTable | str`): the table of the split to choose on, or "same_split" to choose on this one, as
                the paper does.

        Raises:
            ValueError: if the other table has other layers or heads, or the name is not "same_split".
        """
        if isinstance(other, str):
            if other != SAME_SPLIT:
                raise ValueError(f"choose_on({other!r}): expected the audit of another split, or {SAME_SPLIT!r}")
            return replace(self, chosen=choose(self, SAME_SPLIT))
        if (other.layers, other.heads) != (self.layers, self.heads):
            raise ValueError(
                f"the audit to choose on has {len(other.layers)} layers of {other.heads} heads, but the reported one "
                f"has {len(self.layers)} of {self.heads}: give audits of the same model"
            )
        return replace(self, chosen=choose(other, str(other.about.get("split", "another split"))))

    def sorted_images(self) -> Self:
        """A copy whose images are in the order of their ids."""
        entities = {}
        for kind, groups in self.entities.items():
            entities[kind] = {group: counts.take(np.argsort(counts.image_ids)) for group, counts in groups.items()}
        return replace(self, entities=entities)

    @property
    def region(self) -> str:
        """What a region is: "region", or "image token" for a vision-language model."""
        return region_of(self.about)

    def rule(self, kind: str) -> str:
        """What the baseline rule always answers, in one of the kinds of `counted`."""
        if kind == DIRECTIONS[1]:
            return "first word"
        return str(self.about.get("baseline", "most confident region"))

    @property
    def choice(self) -> Choice:
        """The heads to report."""
        return self.chosen or choose(self, SAME_SPLIT)

    def best_heads(self) -> list[Fields]:
        """The chosen head of each group, with its accuracy and interval here, as `best` of `heads.json` has them.

        All scores are in [0, 1], and layers have their names; groups without a choice are skipped.
        """
        best = []
        for kind, groups in self.counted.items():
            chosen = self.choice.heads.get(kind, {})
            best += [self._best_head(kind, group, chosen[group]) for group in groups if group in chosen]
        return best

    def _best_head(self, kind: str, group: str, pair: Head) -> Fields:
        counts = self.counted[kind][group]
        return {
            "kind": kind,
            "group": group,
            "layer": self.layers[pair[0]],
            "head": pair[1],
            "active": bool(counts.active[pair]),
            "accuracy": float(counts.accuracy[pair]),
            "interval": counts.interval(pair),
            "share": float(counts.mean_share[pair]),
            "baseline": counts.baseline_accuracy,
            "baseline_interval": counts.baseline_interval(),
            "chance": counts.chance_accuracy,
            "upper_bound": counts.upper_bound,
            "items": counts.total,
            "images": len(counts.image_ids),
            "unit": counts.unit,
        }

    def name(self, layer: int, head: int) -> str:
        """The name of a head as in the paper, layer-head, both counted from 0 (or the name of the layer)."""
        return f"{self.layers[layer]}-{head}"

    def to_pandas(self) -> "pandas.DataFrame":
        """One row per head and group: kind, group, layer, head, accuracy, low, high (its interval), share, active,
        and for the group: items, images, baseline, chance, upper_bound.
        """
        import pandas

        rows = []
        for kind, groups in self.counted.items():
            for group, counts in groups.items():
                low, high = counts.intervals()
                for layer, head in np.argwhere(self.real).tolist():
                    at = (layer, head)
                    row = {"kind": kind, "group": group, "layer": self.layers[layer], "head": head}
                    row |= {"accuracy": counts.accuracy[at], "low": low[at], "high": high[at]}
                    row |= {"share": counts.mean_share[at], "active": bool(counts.active[at])}
                    row |= {"items": counts.total, "images": len(counts.image_ids)}
                    row |= {"baseline": counts.baseline_accuracy, "chance": counts.chance_accuracy}
                    rows.append({**row, "upper_bound": counts.upper_bound})
        return pandas.DataFrame(rows)

    def to_card_section(self) -> str:
        """Markdown for a model card: method, best heads with intervals, limits."""
        return heads_section(self.to_dict())

    def plot(self, folder: str | Path) -> list[Path]:
        """Draws a .png for each direction, the phrase types and the relations; returns the files."""
        from .figures import plot_table

        return plot_table(self, Path(folder))

    # Files

    def chosen_heads(self) -> list[Fields]:
        """The chosen head of all phrases, as an entry of `chosen` in `heads.json`."""
        pair = self.choice.heads.get(DIRECTIONS[0], {}).get(ALL)
        if pair is None:
            return []
        return [head_entry(self.counts, pair)]

    def to_dict(self) -> Fields:
        """The content of `heads.json`, without the counts of each image."""
        scores = {}
        for kind, groups in self.counted.items():
            scores[kind] = {group: counts.summary() for group, counts in groups.items()}
        return {
            "format": FORMAT,
            "about": self.about,
            "layers": list(self.layers),
            "heads": self.heads,
            "headless": list(self.headless),
            "chosen": self.chosen_heads(),
            "choice": None if self.chosen is None else asdict(self.chosen),
            "best": self.best_heads(),
            "scores": scores,
        }

    def save(self, folder: str | Path) -> Path:
        """Writes `heads.json` and a file with the counts; an earlier result stays readable until the end.

        Returns:
            `Path`: the folder.
        """
        return self.save_content(self.to_dict(), folder)

    def save_content(self, content: Columns, folder: str | Path) -> Path:
        """Writes `content` as `heads.json`, beside the counts of this table."""
        folder = Path(folder)
        arrays, index = _pack(self.counted)
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]
        digest = hashlib.sha256(packed.getvalue()).hexdigest()
        counts = folder / f"heads_counts_{digest[:16]}.npz"
        write_bytes(counts, packed.getvalue())
        stored = {"file": counts.name, "sha256": digest, "index": index}
        write_text(folder / FILE, to_json({**content, "counts": stored}, indent=1) + "\n")
        for other in folder.glob("heads_counts_*.npz"):
            if other != counts:
                other.unlink()
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Reads a result that `save` wrote.

        Raises:
            ValueError: if there is no table, it has another format, or its counts are damaged or missing.
        """
        path = Path(folder, FILE)
        try:
            stored_table = read_json(path)
            if stored_table["format"] != FORMAT:
                raise ValueError(f"format {stored_table['format']}, expected {FORMAT}")
            stored = stored_table["counts"]
            content = read_data(path_below(folder, stored["file"]))
            if hashlib.sha256(content).hexdigest() != stored["sha256"]:
                raise ValueError(f"{stored['file']} is damaged")
            counted = _unpack(np.load(io.BytesIO(content), allow_pickle=False), stored["index"])
            chosen = None
            choice = stored_table["choice"]
            if choice is not None:
                heads = {}
                for kind, of in choice["heads"].items():
                    heads[kind] = {name: tuple(pair) for name, pair in of.items()}
                chosen = Choice(choice["split"], heads)
            layers = tuple(stored_table["layers"])
            headless = tuple(stored_table.get("headless", ()))
            relations = counted.pop(RELATIONS, {})
            return cls(layers, stored_table["heads"], counted, relations, stored_table["about"], chosen, headless)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{path}: cannot read the audit ({error}); run grounded-attention heads again") from error


def head_entry(counts: HeadCounts, pair: Head) -> Fields:
    """A chosen head and its scores, as JSON types."""
    means = {}
    for name in MEASURES:
        values = counts.mean(name)
        if values is not None:
            means[name] = float(values[pair])
    interval = list(counts.interval(pair))
    return {"layer": pair[0], "head": pair[1], **means, "pointing_interval": interval}


def _pack(counted: Counted) -> tuple[dict[str, np.ndarray], list[Fields]]:
    """The arrays by name, and the kind and group of each number in the names."""
    arrays: dict[str, np.ndarray] = {}
    index: list[Fields] = []
    for kind, groups in counted.items():
        for group, counts in groups.items():
            arrays[f"{len(index)}/image_ids"] = np.array(counts.image_ids, dtype=np.str_)
            for name in SUMS:
                if getattr(counts, name) is not None:
                    arrays[f"{len(index)}/{name}"] = getattr(counts, name)
            index.append({"kind": kind, "group": group})
    return arrays, index


def _unpack(arrays: Mapping[str, np.ndarray], index: list[Fields]) -> dict[str, dict[str, HeadCounts]]:
    counted: dict[str, dict[str, HeadCounts]] = {}
    for number, place in enumerate(index):
        ids = tuple(str(image) for image in arrays[f"{number}/image_ids"])
        sums = {name: arrays[f"{number}/{name}"] for name in SUMS if f"{number}/{name}" in arrays}
        shape = (len(ids), *sums["correct"].shape[1:])
        by_head = ("correct", "share", "lift", "entropy")
        shapes = {name: value.shape for name, value in sums.items()}
        if len(shape) != 3 or shapes != {name: shape if name in by_head else shape[:1] for name in shapes}:
            raise ValueError(f"{len(ids)} images, but counts of other shapes: {shapes}")
        counted.setdefault(place["kind"], {})[place["group"]] = HeadCounts(ids, **sums)
    return counted
