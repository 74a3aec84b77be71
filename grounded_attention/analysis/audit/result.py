# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The result of an audit: sums of every head for every image, and what can be said, drawn and kept of them."""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grounded_attention.analysis.head_counts import HeadCounts
from grounded_attention.utils.whole_files import write_bytes

from .choice import SAME_SPLIT, BestHead, BestLayer, Choice, choose, report_heads, report_layers
from .statistics import DRAWS, LEVEL, bootstrap_intervals

if TYPE_CHECKING:
    import pandas

RELATIONS = "relations"
MANIFEST = "audit.json"
FORMAT = 1
_ARRAYS = ("items", "correct", "share", "baseline", "chance", "reachable")


@dataclass(frozen=True, eq=False)
class AuditResult:
    """What an audit counted.

    Args:
        layers (`tuple[str, ...]`): names of the L layers.
        heads (`int`): H, in each layer.
        entities (`dict[str, dict[str, HeadCounts]]`): direction -> group -> counts; "all" is in each direction, beside
            the phrase types.
        relations (`dict[str, HeadCounts]`, *optional*): dependency relation -> counts, from words to regions.
        about (`dict[str, Any]`, *optional*): how it was measured: model, data, split, word, iou_threshold, baseline,
            how many phrases were judged, had no box, were cut.
        chosen (`Choice`, *optional*): the heads and layers to report; None is the paper's way, those that are best
            here.
    """

    layers: tuple[str, ...]
    heads: int
    entities: dict[str, dict[str, HeadCounts]]
    relations: dict[str, HeadCounts] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    chosen: Choice | None = None

    @property
    def counted(self) -> dict[str, dict[str, HeadCounts]]:
        """Everything that was counted: the directions, and the relations where there are any."""
        return {**self.entities, **({RELATIONS: self.relations} if self.relations else {})}

    # What is best

    def choose_on(self, other: "AuditResult | str") -> "AuditResult":
        """The same result, that reports the heads and layers which are best on another split.

        Args:
            other (`AuditResult | str`): the audit of the split to choose on, or "same_split" for the paper's way: this
                one.

        Raises:
            ValueError: an audit of a model of another size, or another name.
        """
        if isinstance(other, str):
            if other != SAME_SPLIT:
                raise ValueError(f"choose_on({other!r}): expected the audit of another split, or {SAME_SPLIT!r}")
            return replace(self, chosen=choose(self.counted, SAME_SPLIT))
        if (other.layers, other.heads) != (self.layers, self.heads):
            raise ValueError(
                f"heads are chosen in {len(other.layers)} layers of {other.heads}, but reported in {len(self.layers)} "
                f"of {self.heads}: give audits of one model"
            )
        return replace(self, chosen=choose(other.counted, str(other.about.get("split", "another split"))))

    @property
    def choice(self) -> Choice:
        """The heads and layers to report."""
        return self.chosen or choose(self.counted, SAME_SPLIT)

    def best_heads(self, level: float = LEVEL, draws: int = DRAWS) -> list[BestHead]:
        """The chosen head of each group with what it reaches here and its interval."""
        return report_heads(self.counted, self.choice, level, draws)

    def best_layers(self, level: float = LEVEL, draws: int = DRAWS) -> list[BestLayer]:
        """The chosen layer of each group with the mean accuracy of its heads here."""
        return report_layers(self.counted, self.choice, level, draws)

    def name(self, layer: int, head: int) -> str:
        """A head's name as the paper writes it, layer-head, both from 0 (or the layer's own name)."""
        return f"{self.layers[layer]}-{head}"

    # What can be done with it

    def to_pandas(self, level: float = LEVEL, draws: int = DRAWS) -> "pandas.DataFrame":
        """One row a head and group: kind, group, layer, head, accuracy, low, high (its interval), share, active.

        Besides what holds for the group: items, images, baseline, chance, upper_bound.
        """
        import pandas

        return pandas.DataFrame(list(self._rows(level, draws)))

    def _rows(self, level: float, draws: int) -> Iterator[dict[str, Any]]:
        for kind, groups in self.counted.items():
            for group, counts in groups.items():
                low, high = bootstrap_intervals(counts, level, draws)
                whole = {
                    "items": counts.total,
                    "images": len(counts.image_ids),
                    "baseline": counts.baseline_accuracy,
                    "chance": counts.chance_accuracy,
                    "upper_bound": counts.upper_bound,
                }
                for layer, head in np.ndindex(counts.accuracy.shape):
                    place = (layer, head)
                    yield {
                        "kind": kind,
                        "group": group,
                        "layer": self.layers[layer],
                        "head": head,
                        "accuracy": counts.accuracy[place],
                        "low": low[place],
                        "high": high[place],
                        "share": counts.mean_share[place],
                        "active": bool(counts.active[place]),
                        **whole,
                    }

    def to_card_section(self) -> str:
        """Markdown for a model card: what was measured, the best heads with their intervals, the limits."""
        from .card import card_section

        return card_section(self)

    def plot(self, folder: str | Path) -> list[Path]:
        """Draws the figures into a folder, see `grounded_attention.analysis.audit.plots`; returns the files."""
        from .plots import plot_result

        return plot_result(self, Path(folder))

    # Files

    def save(self, folder: str | Path) -> Path:
        """Writes `audit.json`, and beside it the counts it names; what was there before stays whole until the end.

        Returns:
            `Path`: the folder.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        arrays, index = _pack(self.counted)
        content = _to_bytes(arrays)
        digest = hashlib.sha256(content).hexdigest()
        counts = folder / f"audit_counts_{digest[:16]}.npz"
        write_bytes(counts, content)
        manifest = {
            "format": FORMAT,
            "about": self.about,
            "layers": list(self.layers),
            "heads": self.heads,
            "chosen": None if self.chosen is None else self.chosen.to_dict(),
            "counts": {"file": counts.name, "sha256": digest, "index": index},
        }
        write_bytes(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
        for other in folder.glob("audit_counts_*.npz"):
            if other != counts:
                other.unlink()
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> "AuditResult":
        """Reads what `save` wrote.

        Raises:
            ValueError: there is no audit, one of another format, or one whose counts are damaged or gone.
        """
        path = Path(folder, MANIFEST)
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            if manifest["format"] != FORMAT:
                raise ValueError(f"format {manifest['format']}, expected {FORMAT}")
            stored = manifest["counts"]
            content = Path(folder, stored["file"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != stored["sha256"]:
                raise ValueError(f"{stored['file']} is damaged")
            counted = _unpack(np.load(io.BytesIO(content), allow_pickle=False), stored["index"])
            chosen = None if manifest["chosen"] is None else Choice.from_dict(manifest["chosen"])
            relations = counted.pop(RELATIONS, {})
            return cls(tuple(manifest["layers"]), manifest["heads"], counted, relations, manifest["about"], chosen)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(
                f"{path}: no audit that can be read ({error}): run grounded-attention audit again"
            ) from error


def _pack(counted: Mapping[str, Mapping[str, HeadCounts]]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Arrays by name, and what each number in the names means."""
    arrays: dict[str, np.ndarray] = {}
    index: list[dict[str, Any]] = []
    for kind, groups in counted.items():
        for group, counts in groups.items():
            number = len(index)
            index.append({"kind": kind, "group": group})
            arrays[f"{number}/image_ids"] = np.array(counts.image_ids, dtype=np.str_)
            for name in _ARRAYS:
                if getattr(counts, name) is not None:
                    arrays[f"{number}/{name}"] = getattr(counts, name)
    return arrays, index


def _unpack(arrays: Mapping[str, np.ndarray], index: list[dict[str, Any]]) -> dict[str, dict[str, HeadCounts]]:
    counted: dict[str, dict[str, HeadCounts]] = {}
    for number, place in enumerate(index):
        ids = tuple(str(image) for image in arrays[f"{number}/image_ids"])
        found = {name: arrays[f"{number}/{name}"] for name in _ARRAYS if f"{number}/{name}" in arrays}
        counted.setdefault(place["kind"], {})[place["group"]] = HeadCounts(ids, **found)
    return counted


def _to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
