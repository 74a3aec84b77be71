# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Statistics of pseudo-labels: phrases per caption, phrases with boxes, scores, and matches with region proposals."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou

from .rows import CaptionLabels

BINS = 10


class LabelCounts:
    """Counts of rows that are added one by one."""

    def __init__(self) -> None:
        self.captions = self.skipped = self.phrases = self.grounded = self.boxes = self.not_found = 0
        self.per_caption: Counter[int] = Counter()
        self.scores = [0] * BINS

    def add(self, row: CaptionLabels) -> None:
        """Adds a row."""
        self.captions += 1
        self.skipped += row.width == 0
        self.not_found += row.not_found
        self.per_caption[len(row.phrases)] += 1
        for phrase in row.phrases:
            self.phrases += 1
            self.grounded += bool(phrase["boxes"])
            self.boxes += len(phrase["boxes"])
            for score in phrase["scores"]:
                self.scores[min(int(score * BINS), BINS - 1)] += 1

    def as_dict(self) -> dict[str, Any]:
        """Returns the counts as JSON: `scores[i]` counts boxes with a score from i / 10 to (i + 1) / 10."""
        return {
            "captions": self.captions,
            "captions_skipped": self.skipped,
            "phrases": self.phrases,
            "phrases_with_box": self.grounded,
            "phrases_not_found": self.not_found,
            "boxes": self.boxes,
            "phrases_per_caption": {str(count): self.per_caption[count] for count in sorted(self.per_caption)},
            "scores": self.scores,
        }


class RegionsOfImages(Protocol):
    """A region table, as far as it is needed here."""

    def __contains__(self, image_id: object) -> bool: ...

    def __getitem__(self, image_id: str) -> Any: ...


def count_matches(
    rows: Iterable[CaptionLabels], regions: RegionsOfImages, iou: float = IOU_THRESHOLD
) -> dict[str, Any]:
    """Counts the phrases that region proposals match (section III-B of the paper: IoU with the grounder's box)."""
    counts = {"iou": iou, "phrases": 0, "matched": 0, "regions": 0, "captions_without_regions": 0}
    for row in rows:
        if row.image_id not in regions:
            counts["captions_without_regions"] += 1
            continue
        boxes = np.asarray(regions[row.image_id].boxes)
        for phrase in filter(lambda phrase: phrase["boxes"], row.phrases):
            matches = int((box_iou(phrase["boxes"], boxes) >= iou).any(axis=0).sum())
            counts["phrases"] += 1
            counts["matched"] += matches > 0
            counts["regions"] += matches
    return counts


def describe(statistics: Mapping[str, Any], matches: Mapping[str, Any] | None = None) -> list[str]:
    """Formats statistics as lines of text."""
    captions, phrases, boxes = (statistics[name] for name in ("captions", "phrases", "boxes"))
    alone = statistics["phrases_per_caption"].get("0", 0)
    lines = [
        f"{captions:,} captions, {phrases:,} phrases ({phrases / max(captions, 1):.2f} per caption; {alone:,} "
        f"captions without phrases)",
        f"{statistics['phrases_with_box']:,} phrases with a box ({_share(statistics['phrases_with_box'], phrases)}), "
        f"{boxes:,} boxes",
    ]
    if statistics["phrases_not_found"]:
        lines.append(f"{statistics['phrases_not_found']:,} noun phrases could not be found in their caption again")
    if statistics["captions_skipped"]:
        lines.append(f"{statistics['captions_skipped']:,} captions of images that could not be used")
    if matches is not None:
        lines.append(
            f"{matches['matched']:,} of {matches['phrases']:,} phrases with a box are matched by regions "
            f"({_share(matches['matched'], matches['phrases'])}) at IoU >= {matches['iou']:g}, "
            f"{matches['regions'] / max(matches['matched'], 1):.2f} regions each"
        )
        if matches["captions_without_regions"]:
            lines.append(f"{matches['captions_without_regions']:,} captions have an image that is not in the table")
    lines += ["scores:"]
    top = max(statistics["scores"])
    for place, count in enumerate(statistics["scores"]):
        bar = "#" * round(40 * count / max(top, 1))
        lines.append(f"  {place / BINS:.1f} to {(place + 1) / BINS:.1f}  {count:>9,}  {bar}".rstrip())
    return lines


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"
