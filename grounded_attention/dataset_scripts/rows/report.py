# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What was read of a source: convention, counts, and what was left out."""

from collections import Counter
from dataclasses import dataclass, field

from grounded_attention.utils.named_types import Fields

EXAMPLES = 5  # of each reason and of missing pictures


@dataclass
class RowsReport:
    """What was read of a source."""

    source: str
    shape: str = ""  # The shape of its rows
    convention: str = ""  # How boxes are written, such as `"xywh pixels"`; several are joined by `" and "`
    known_by: str = ""  # How that is known, with counts
    rows: int = 0
    phrases: int = 0  # Phrases in them
    boxes: int = 0  # Boxes of them
    bare: int = 0  # Rows without a phrase
    boxes_per_phrase: Counter[int] = field(default_factory=Counter)  # Number of boxes -> phrases
    # `"WIDTH x HEIGHT"` -> pictures; the 20 most frequent are kept
    sizes: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)  # Split -> rows
    dropped: Counter[str] = field(default_factory=Counter)  # Reason -> number of what is left out
    examples: dict[str, list[str]] = field(default_factory=dict)  # Reason -> the first places
    missing: list[str] = field(default_factory=list)  # The first pictures that are missing
    complete: bool = False  # Whether all rows were read; else the counts are those of the first ones

    def drop(self, reason: str, place: str) -> None:
        """Counts something that is left out."""
        self.dropped[reason] += 1
        kept = self.examples.setdefault(reason, [])
        if len(kept) < EXAMPLES:
            kept.append(place)

    def miss(self, picture: str) -> None:
        """Keeps the name of a picture that is missing."""
        if picture not in self.missing and len(self.missing) < EXAMPLES:
            self.missing.append(picture)

    def add(self, row: Fields, split: str) -> None:
        """Counts a row that was made."""
        self.rows += 1
        self.bare += not row["phrases"]
        self.splits[split or "(none)"] += 1
        size = "without a picture"
        if "width" in row:
            size = f"{row['width']} x {row['height']}"
        if size in self.sizes or len(self.sizes) < 1000:
            self.sizes[size] += 1
        for phrase in row["phrases"]:
            self.phrases += 1
            count = len(phrase["boxes"])
            self.boxes += count
            self.boxes_per_phrase[count] += 1

    def to_dict(self) -> Fields:
        """The fields, as JSON can hold them."""
        return dict(vars(self))

    def __str__(self) -> str:
        counted = "" if self.complete else "the first "
        bare = f" ({self.bare} without a phrase)" if self.bare else ""
        counts = f"{self.rows} rows{bare}, {self.phrases} phrases, {self.boxes} boxes"
        lines = [f"{self.source}: {self.shape}; {counted}{counts}"]
        if self.convention:
            lines.append(f"boxes: {self.convention} ({self.known_by})")
        elif self.known_by:
            lines.append(self.known_by)
        for reason, count in self.dropped.items():
            places = ", ".join(self.examples.get(reason, ()))
            lines.append(f"left out: {count} x {reason}{f' ({places})' if places else ''}")
        return "\n".join(lines)
