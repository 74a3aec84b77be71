# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrases of a batch: character spans become token masks, their grounding becomes region masks.

Shapes: B batch, P phrases, T text columns, G regions given, R region columns, K phrase pairs; F phrases of the whole
batch in one row, so that all of them are computed at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from ..utils.named_types import Columns
from .grounded_batch import DroppedPhrase
from .installed_package import find_installed
from .number_arrays import Arrays, to_array
from .phrase import Phrase, read_phrase
from .region_boxes import box_iou, find_bad_box
from .region_columns import RegionColumns
from .sequence_layouts import EncodedTexts, TextColumns

logger = logging.get_logger(__name__)

# Compares n gold boxes (n, 4) float32 with the G regions (n, G, 4) float32 of their examples: (n, G) bool.
BoxMatch = Callable[[np.ndarray, np.ndarray], np.ndarray]

TRUNCATED = "truncated"
NO_TOKEN = "no token"
REGIONS_CUT = "regions cut"


@dataclass
class FlatPhrases:
    """The F phrases of a batch in one row."""

    example: np.ndarray  # (F,) int64, the example of each phrase
    row: np.ndarray  # (F,) int64, its row in the example
    text: np.ndarray  # (F,) int64, the index of its text
    start: np.ndarray  # (F,) int64, its first character
    end: np.ndarray  # (F,) int64, the character after its last one
    records: list[Phrase]  # The phrases
    kind: str = "phrase"  # The word for a phrase in errors

    def name(self, index: int) -> str:
        """Returns the name of phrase `index` in errors."""
        return f"Example {self.example[index]}, {self.kind} {self.row[index]}"


def flatten_phrases(
    phrases: Sequence[Sequence[Columns | Phrase] | None], texts: list[list[str]], kind: str = "phrase"
) -> FlatPhrases:
    """Collects the phrases of a batch in one row."""
    places: list[tuple[int, int]] = []
    records: list[Phrase] = []
    texts_by_example = zip(*texts, strict=True)
    for i, (given, own_texts) in enumerate(zip(phrases, texts_by_example, strict=True)):
        for number, record in enumerate(given or ()):
            places.append((i, number))
            records.append(read_phrase(record, own_texts, f"Example {i}, {kind} {number}"))
    example, row = np.array(places, dtype=np.int64).reshape(-1, 2).T
    spans = [(record.sentence, record.start, record.end) for record in records]
    text, start, end = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    return FlatPhrases(example, row, text, start, end, records, kind)


def covered_tokens(flat: FlatPhrases, encoded: EncodedTexts) -> np.ndarray:
    """Finds the pieces of its text that share a character with each span, including cut pieces: (F, L) bool."""
    spans = encoded.spans[flat.text, flat.example]
    start = flat.start[:, None]
    end = flat.end[:, None]
    length = encoded.lengths[flat.text, flat.example][:, None]
    covered = (spans[..., 0] < end) & (spans[..., 1] > start) & (np.arange(spans.shape[1]) < length)
    return covered & (start < end)  # an empty span inside a word has no common character with it


def phrase_tokens(
    flat: FlatPhrases, shape: tuple[int, int, int], encoded: EncodedTexts, columns: TextColumns
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes the token mask of each phrase: pieces that share a character with the span; `shape` is B, P, T."""
    covered = covered_tokens(flat, encoded)
    token = np.arange(covered.shape[1])
    is_cut = token >= columns.kept[flat.text, flat.example][:, None]
    truncated = (covered & is_cut).any(axis=1)
    empty = np.logical_not(covered.any(axis=1))
    phrase, token = np.nonzero(covered & ~truncated[:, None])
    mask = np.zeros(shape, dtype=bool)
    first = columns.first[flat.text[phrase], flat.example[phrase]]
    mask[flat.example[phrase], flat.row[phrase], first + token] = True
    return mask, truncated, empty


def match_iou(gold: np.ndarray, candidates: np.ndarray, iou_threshold: float) -> np.ndarray:
    """Marks the regions whose IoU with a gold box reaches the threshold, as [`BoxMatch`] requires, (n, G) bool."""
    overlap = box_iou(torch.from_numpy(gold)[:, None], torch.from_numpy(candidates))[:, 0].numpy()
    return overlap >= iou_threshold


def phrase_arrays(
    inputs: Columns,
    texts: list[list[str]],
    encoded: EncodedTexts,
    columns: TextColumns,
    length: int,
    regions: RegionColumns | None,
    match: BoxMatch,
    images: np.ndarray,
) -> tuple[Arrays, list[list[DroppedPhrase]]]:
    """Makes the arrays `phrase_...` of a batch of T columns, and the report of dropped phrases."""
    if inputs["phrases"] is None:
        if inputs["phrase_pairs"] is not None:
            raise ValueError("phrase_pairs are given without phrases; they are indices into them.")
        return {}, [[] for _ in images]
    flat = flatten_phrases(inputs["phrases"], texts)
    counts = [len(example or ()) for example in inputs["phrases"]]
    shape = (len(counts), max(counts, default=0), length)
    mask, truncated, empty = phrase_tokens(flat, shape, encoded, columns)
    absent = truncated | empty
    data = {"phrase_mask": mask}
    flags = {TRUNCATED: truncated, NO_TOKEN: empty}
    if regions is not None:
        images_of = _image_of(flat, images, bool(regions.cover))
        gold, lost, scores = ground_phrases(flat, regions, match, images_of)
        targets = np.zeros((*shape[:2], gold.shape[1]), dtype=np.float32)
        targets[flat.example, flat.row] = gold * ~absent[:, None]
        data["phrase_regions"] = targets
        if scores is not None:
            data["phrase_scores"] = np.ones_like(targets)
            data["phrase_scores"][flat.example, flat.row] = scores
        flags[REGIONS_CUT] = lost & ~absent
    if inputs["phrase_pairs"] is not None:
        data["phrase_pairs"] = pair_phrases(inputs["phrase_pairs"], flat, absent, counts)
    dropped = list_dropped(flat, texts, flags)
    warn_about_dropped(dropped, len(flat.records))
    return data, dropped


def ground_phrases(
    flat: FlatPhrases, regions: RegionColumns, match: BoxMatch, images: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Computes how much each region column is gold of each phrase (1 or 0, with a mask the share of it that the mask
    covers), which phrases lost all of theirs, and how sure they are. With `regions`, `boxes` are ignored; `images`
    (F,) are the images of the boxes, -1 for any.
    """
    is_gold = np.zeros((len(flat.records), regions.columns.shape[1]), dtype=bool)
    scores = np.zeros(is_gold.shape, dtype=np.float32)  # 0 where no box with a score decides
    boxes: list[np.ndarray] = []
    owners: list[int] = []  # the phrase of each box
    has_scores = any(record.scores is not None for record in flat.records)
    box_scores = [np.ones(0, dtype=np.float32)] * len(flat.records)
    for index, record in enumerate(flat.records):
        if record.regions is not None:
            is_gold[index, check_indices(flat, index, regions.counts)] = True
        elif record.boxes is not None:
            gold = _gold_boxes(flat, index)
            boxes += [*gold]
            owners += [index] * len(gold)
            if has_scores:
                box_scores[index] = _box_scores(flat, index, len(gold))
    boxed = np.array(owners, dtype=np.int64)
    if boxes:
        stacked = np.array(boxes, dtype=np.float32)
        problem = find_bad_box(stacked, pixels_hint=False)
        if problem is not None:
            raise ValueError(f"{flat.name(boxed[problem[0]])}: gold {problem[1]} (gold boxes are always normalised).")
        box, region = np.nonzero(match(stacked, _candidates(flat, boxed, regions, images)))
        is_gold[boxed[box], region] = True
        if has_scores:
            np.maximum.at(scores, (boxed[box], region), np.concatenate(box_scores)[box])
    shares = np.ones(is_gold.shape, dtype=np.float32)
    for index, record in enumerate(flat.records):
        if record.mask is not None and record.regions is None:
            candidates = _candidates(flat, np.array([index]), regions, images)[0]
            mask_regions = find_installed("utils.masks", "mask_regions")
            counted = mask_regions(record.mask, candidates, is_gold[index], regions.cover, flat.name(index))
            shares[index], is_gold[index] = counted
    target = np.zeros((len(is_gold), regions.arrays["region_boxes"].shape[1]), dtype=np.float32)
    columns = regions.columns[flat.example]
    phrase, region = np.nonzero(is_gold & (columns >= 0))
    column = columns[phrase, region]
    target[phrase, column] = shares[phrase, region]
    lost = np.logical_and(is_gold.any(axis=1), ~target.any(axis=1))
    if regions.cover:
        lost[boxed] |= ~target[boxed].any(axis=1)
    if not has_scores:
        return target, lost, None
    highest = np.array([own.max() if own.size else 1.0 for own in box_scores], dtype=np.float32)
    sure = np.repeat(highest[:, None], target.shape[1], axis=1)
    matched = scores[phrase, region]  # 0 for regions that are given by their index
    sure[phrase, column] = np.where(matched > 0, matched, 1.0)
    return target, lost, sure


def _image_of(flat: FlatPhrases, images: np.ndarray, required: bool) -> np.ndarray:
    """Returns the image of the boxes of each phrase, (F,) int64, -1 for any; (B,) `images` are those of an example."""
    images_of = np.full(len(flat.records), -1, dtype=np.int64)
    for index, record in enumerate(flat.records):
        image = record.image
        count = images[flat.example[index]]
        is_required = required and count > 1 and record.boxes is not None
        if record.regions is not None or (image is None and not is_required):
            continue
        if isinstance(image, bool) or not isinstance(image, (int, np.integer)) or not 0 <= image < count:
            raise ValueError(
                f"{flat.name(index)}: image is {image!r}, but the example has {count} image(s); expected the index of "
                "the image of the boxes, from 0."
            )
        images_of[index] = image
    return images_of


def check_indices(flat: FlatPhrases, index: int, counts: np.ndarray) -> np.ndarray:
    """Returns the indices of the regions of phrase `index`, int64; `ValueError` unless its example has them."""
    count = counts[flat.example[index]]
    indices = to_array(flat.records[index].regions, f"{flat.name(index)}, regions", kinds="iufb").reshape(-1)
    if indices.size and indices.dtype.kind not in "iu":
        raise ValueError(
            f"{flat.name(index)}: regions {indices.tolist()} are not integers; expected indices into the regions, "
            "not a mask."
        )
    indices = indices.astype(np.int64)
    if ((indices < 0) | (indices >= count)).any():
        raise ValueError(
            f"{flat.name(index)}: regions {indices.tolist()}, but the example has {count} regions; expected indices "
            "into the given regions, from 0, without the whole image."
        )
    return indices


def _box_scores(flat: FlatPhrases, index: int, count: int) -> np.ndarray:
    """Returns the score of each of the `count` boxes of a phrase, (count,) float32; 1 without scores."""
    scores = flat.records[index].scores
    if scores is None:
        return np.ones(count, dtype=np.float32)
    array = to_array(scores, f"{flat.name(index)}, scores").astype(np.float32).reshape(-1)
    if len(array) != count or not ((array > 0) & (array <= 1)).all():
        raise ValueError(
            f"{flat.name(index)}: scores {scores!r:.80}, expected one number above 0 and at most 1 for each "
            f"of its {count} boxes."
        )
    return array


def _gold_boxes(flat: FlatPhrases, index: int) -> np.ndarray:
    """Returns the gold boxes of a phrase, (n, 4)."""
    boxes = flat.records[index].boxes
    array = to_array(boxes, f"{flat.name(index)}, boxes")
    if array.shape not in ((0,), (0, 4)) and (array.ndim != 2 or array.shape[1] != 4 or not array.size):
        raise ValueError(f"{flat.name(index)}: boxes {boxes!r:.80}, expected [[x1, y1, x2, y2], ...].")
    return array.reshape(-1, 4)


def _candidates(flat: FlatPhrases, phrase: np.ndarray, regions: RegionColumns, images: np.ndarray) -> np.ndarray:
    """The boxes (n, G, 4) of the regions of n phrases; 0 for those of other images."""
    example = flat.example[phrase]
    candidates = regions.given_boxes[example]
    if regions.images.any():
        image = images[phrase][:, None]
        others = (image >= 0) & (regions.images[example] != image)
        candidates = np.where(others[..., None], np.float32(0), candidates)
    return candidates


def pair_phrases(
    pairs: Sequence[Any], flat: FlatPhrases, absent: np.ndarray, phrase_counts: Sequence[int]
) -> np.ndarray:
    """Pads index pairs with -1, (B, K, 2) int64. Pairs with a phrase in `absent` (F,) become (-1, -1)."""
    arrays = [_check_pairs(example, value) for example, value in enumerate(pairs)]
    most = max(map(len, arrays), default=0)
    out = np.full((len(arrays), most, 2), -1, dtype=np.int64)
    missing = np.zeros((len(arrays), max(phrase_counts, default=0)), dtype=bool)
    missing[flat.example[absent], flat.row[absent]] = True
    for example, array in enumerate(arrays):
        if ((array < 0) | (array >= phrase_counts[example])).any():
            raise ValueError(
                f"Example {example}: phrase_pairs {array.tolist()}, but it has {phrase_counts[example]} phrases; "
                "expected pairs of indices into them."
            )
        is_missing = missing[example][array].any(axis=1, keepdims=True)
        out[example, : len(array)] = np.where(is_missing, -1, array)
    return out


def _check_pairs(example: int, pairs: Any) -> np.ndarray:
    """Returns the pairs of an example, (k, 2) int64."""
    array = to_array([] if pairs is None else pairs, f"Example {example}: phrase_pairs")
    if not array.size:
        return np.zeros((0, 2), dtype=np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(
            f"Example {example}: phrase_pairs {array.tolist()!r:.80}, expected [[phrase, phrase], ...], two integers "
            "each."
        )
    return array.astype(np.int64)


def list_dropped(
    flat: FlatPhrases, texts: list[list[str]], flags: Mapping[str, np.ndarray]
) -> list[list[DroppedPhrase]]:
    """Lists, for each example, a record of every phrase with a flag (reason -> (F,) bool); S lists of B texts."""
    dropped: list[list[DroppedPhrase]] = [[] for _ in texts[0]]
    for reason, flag in flags.items():
        for index in np.flatnonzero(flag):
            example = int(flat.example[index])
            words = texts[flat.text[index]][example][flat.start[index] : flat.end[index]]
            dropped[example].append(DroppedPhrase(int(flat.row[index]), words, reason))
    return [sorted(records) for records in dropped]


def warn_about_dropped(dropped: list[list[DroppedPhrase]], phrase_count: int) -> None:
    """Logs a warning about the phrases of each example that lost their label, of `phrase_count` phrases."""
    named = []
    for example, records in enumerate(dropped):
        for record in records:
            named.append(f"example {example}, phrase {record.phrase} ({record.words!r}): {record.reason}")
    if named:
        more = f"; and {len(named) - 3} more" if len(named) > 3 else ""
        listed = "; ".join(named[:3]) + more
        logger.warning(f"{len(named)} of {phrase_count} phrases lost their label: {listed} (`dropped_phrases`).")
