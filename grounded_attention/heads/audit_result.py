# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The result of an audit: sums per head and image, with reports, figures and files."""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grounded_attention.heads.audit_card import card_section
from grounded_attention.heads.choice import Choice
from grounded_attention.heads.counts import RELATIONS, AuditCounts
from grounded_attention.heads.head_counts import HeadCounts
from grounded_attention.heads.statistics import DRAWS, LEVEL, bootstrap_intervals
from grounded_attention.utils.bounded_files import read_data, read_json
from grounded_attention.utils.safe_paths import path_below
from grounded_attention.utils.whole_files import write_bytes

if TYPE_CHECKING:
    import pandas

MANIFEST = "audit.json"
FORMAT = 1
_ARRAYS = ("items", "correct", "share", "baseline", "chance", "reachable")


@dataclass(frozen=True, eq=False)
class AuditResult(AuditCounts):
    """The result of an audit: its counts ([`AuditCounts`]), as a table, a card, figures and files."""

    def to_pandas(self, level: float = LEVEL, draws: int = DRAWS) -> "pandas.DataFrame":
        """One row per head and group: kind, group, layer, head, accuracy, low, high (its interval), share, active,
        and for the group: items, images, baseline, chance, upper_bound.
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
        """Markdown for a model card: method, best heads with intervals, limits."""
        return card_section(self)

    def plot(self, folder: str | Path) -> list[Path]:
        """Draws the figures into a folder, see `grounded_attention.heads.plots`; returns the files."""
        from grounded_attention.heads.plots import plot_result

        return plot_result(self, Path(folder))

    # Files

    def save(self, folder: str | Path) -> Path:
        """Writes `audit.json` and a file with the counts; an earlier result stays readable until the end.

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
        """Reads a result that `save` wrote.

        Raises:
            ValueError: if there is no audit, it has another format, or its counts are damaged or missing.
        """
        path = Path(folder, MANIFEST)
        try:
            manifest = read_json(path)
            if manifest["format"] != FORMAT:
                raise ValueError(f"format {manifest['format']}, expected {FORMAT}")
            stored = manifest["counts"]
            content = read_data(path_below(folder, stored["file"]))
            if hashlib.sha256(content).hexdigest() != stored["sha256"]:
                raise ValueError(f"{stored['file']} is damaged")
            counted = _unpack(np.load(io.BytesIO(content), allow_pickle=False), stored["index"])
            chosen = None if manifest["chosen"] is None else Choice.from_dict(manifest["chosen"])
            relations = counted.pop(RELATIONS, {})
            return cls(tuple(manifest["layers"]), manifest["heads"], counted, relations, manifest["about"], chosen)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{path}: cannot read the audit ({error}); run grounded-attention audit again") from error


def _pack(counted: Mapping[str, Mapping[str, HeadCounts]]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """The arrays by name, and the kind and group of each number in the names."""
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
