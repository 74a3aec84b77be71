# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pseudo-labels: rows, one a caption, whose phrases have the boxes and scores of a grounder.

pseudo_labels.parquet        the rows, in the order of the captions
pseudo_labels.json           manifest: provenance and checksum; written last
pseudo_labels.partial.json   exists instead while captions are labelled, beside the folder parts/
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError, damaged, refuse_if
from grounded_attention.dataset_scripts.files.manifests import ManifestKind, check_file, is_size, sha256
from grounded_attention.dataset_scripts.hub.tables import table_folder
from grounded_attention.dataset_scripts.regions.rows import check_boxes
from grounded_attention.processing.phrase import read_phrase
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou
from grounded_attention.utils.named_types import AnyPath, Columns, Fields, Row
from grounded_attention.utils.safe_paths import path_below

from . import MANIFEST

FILE = "pseudo_labels.parquet"
KIND = ManifestKind(
    "grounded-attention pseudo-labels",
    3,
    "pseudo-labels",
    hint="make them with `grounded-attention data pseudo-ground`",
    file=MANIFEST,
    unfinished="run the same command again to finish them",
)
_COPY_HINT = "copy the pseudo-labels again, or make them again"
_PHRASE = {
    "text": pa.string(),
    "start": pa.int32(),
    "end": pa.int32(),
    "boxes": pa.list_(pa.list_(pa.float32())),
    "scores": pa.list_(pa.float32()),
}
SCHEMA: pa.Schema = pa.schema(
    {
        "caption_id": pa.string(),
        "image_id": pa.string(),
        "text": pa.string(),
        "width": pa.int32(),
        "height": pa.int32(),
        "phrases": pa.list_(pa.struct(_PHRASE)),
    }
)
BINS = 10  # of scores


class PseudoLabels:
    """Finished pseudo-labels: their folder `path`, their manifest `info`, and their `rows`, mapped into memory.

    Example:
        >>> labels = PseudoLabels.open("data/pseudo_labels")  # doctest: +SKIP
        >>> labels.rows[0]["phrases"][0]["boxes"]  # doctest: +SKIP
        [[0.1, 0.2, 0.4, 0.9]]
    """

    def __init__(self, folder: AnyPath) -> None:
        self.path = Path(folder).absolute()
        self.info: Fields = KIND.read_finished(self.path, _is_valid)
        [shard] = self.info["shards"]
        self.file = path_below(self.path, shard["file"])
        check_file(self.file, shard["bytes"], _COPY_HINT)
        kinds = (pa.ArrowException, datasets.exceptions.DatasetGenerationError)
        with damaged("not the Parquet file of pseudo-labels", *kinds, file=self.file, hint=_COPY_HINT):
            features = datasets.Features.from_arrow_schema(SCHEMA)
            self.rows = datasets.Dataset.from_parquet(str(self.file), features=features)

    @classmethod
    def open(cls, place: AnyPath) -> "PseudoLabels":
        """Opens pseudo-labels in a folder or on the Hub."""
        return cls(table_folder(place, KIND, (FILE,), lambda folder: cls(folder).verify()))

    def verify(self) -> None:
        """Compares the file with its checksum and checks every row; for labels that somebody else made."""
        damaged = sha256(self.file) != self.info["shards"][0]["sha256"]
        refuse_if(damaged, "the file is damaged: its checksum differs", file=self.file, hint=_COPY_HINT)
        twice = len(self.rows.unique("caption_id")) < len(self.rows)
        refuse_if(twice, "a caption has two rows", file=self.file, hint=_COPY_HINT)
        for row in self.rows:
            try:
                for number, phrase in enumerate(row["phrases"]):
                    name = f"phrase {number}"
                    read_phrase(phrase, [row["text"]], name)
                    scores = np.asarray(phrase["scores"], dtype=np.float32)
                    if len(scores) != len(phrase["boxes"]) or not ((scores > 0) & (scores < 1)).all():
                        expected = f"{len(phrase['boxes'])} numbers in (0, 1), one for each box"
                        raise DataError("scores", where=name, found=phrase["scores"], expected=expected)
                    if phrase["boxes"]:
                        check_boxes(np.asarray(phrase["boxes"], dtype=np.float32), 1.0)
            except (TypeError, ValueError) as error:
                where = f"caption {row['caption_id']}"
                raise DataError(str(error), file=self.file, where=where, hint=_COPY_HINT) from error


def _is_valid(content: Fields) -> bool:
    shards = content["shards"]
    texts = all(isinstance(shard[name], str) for shard in shards for name in ("file", "sha256"))
    return texts and len(shards) == 1 and is_size(shards[0]["bytes"])


def count_labels(rows: Iterable[Row]) -> Fields:
    """Counts captions, phrases and boxes; `scores[i]` counts boxes with a score from i / 10 to (i + 1) / 10."""
    counts = Counter(captions=0, captions_skipped=0, phrases=0, phrases_with_box=0, boxes=0)
    per_caption: Counter[int] = Counter()
    scores = [0] * BINS
    for row in rows:
        counts["captions"] += 1
        counts["captions_skipped"] += row["width"] is None
        counts["phrases"] += len(row["phrases"])
        per_caption[len(row["phrases"])] += 1
        for phrase in row["phrases"]:
            counts["phrases_with_box"] += bool(phrase["boxes"])
            counts["boxes"] += len(phrase["boxes"])
            for score in phrase["scores"]:
                scores[min(int(score * BINS), BINS - 1)] += 1
    return {**counts, "phrases_per_caption": {str(n): per_caption[n] for n in sorted(per_caption)}, "scores": scores}


def count_matches(rows: Iterable[Row], regions: Any, iou: float = IOU_THRESHOLD) -> Fields:
    """Counts the phrases that region proposals match (section III-B of the paper: IoU with the grounder's box)."""
    counts = {"iou": iou, "phrases": 0, "matched": 0, "regions": 0, "captions_without_regions": 0}
    for row in rows:
        if row["image_id"] not in regions:
            counts["captions_without_regions"] += 1
            continue
        boxes = np.asarray(regions[row["image_id"]].boxes)
        for phrase in row["phrases"]:
            if phrase["boxes"]:
                matches = int((box_iou(phrase["boxes"], boxes) >= iou).any(axis=0).sum())
                counts["phrases"] += 1
                counts["matched"] += matches > 0
                counts["regions"] += matches
    return counts


def describe(statistics: Columns, matches: Columns | None = None) -> list[str]:
    """Formats statistics as lines of text."""
    captions = statistics["captions"]
    phrases = statistics["phrases"]
    boxes = statistics["boxes"]
    with_box = statistics["phrases_with_box"]
    alone = statistics["phrases_per_caption"].get("0", 0)
    mean = phrases / max(captions, 1)
    lines = [
        f"{captions:,} captions, {phrases:,} phrases ({mean:.2f} per caption; {alone:,} captions without phrases)",
        f"{with_box:,} phrases with a box ({_share(with_box, phrases)}), {boxes:,} boxes",
    ]
    if statistics["captions_skipped"]:
        lines.append(f"{statistics['captions_skipped']:,} captions of images that could not be used")
    if matches is not None:
        matched = matches["matched"]
        share = _share(matched, matches["phrases"])
        mean = matches["regions"] / max(matched, 1)
        lines.append(
            f"{matched:,} of {matches['phrases']:,} phrases with a box are matched by regions "
            f"({share}) at IoU >= {matches['iou']:g}, {mean:.2f} regions each"
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
    if whole:
        return f"{part / whole:.1%}"
    return "none"
