# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrase pairs of VGP: reading the CSV files, dropping invalid rows, and finding the phrases in the captions.

The CSVs hold no entity id, no caption index and no character span: image and phrase texts join a row to the captions.
Two phrases are a visually grounded paraphrase if they belong to one coreference chain of Flickr30K Entities, so the
chain decides if the text alone is ambiguous.
"""

import csv
import io
import random
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grounded_attention.dataset_scripts.files.errors import DataError, data_file, refuse_if
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.utils.bounded_files import read_text
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.progress import with_progress

from .flickr30k_entities import NOT_GROUNDED
from .local_builder import BuildReport

UNTAGGED = ""  # chain of a phrase that was found outside all tags


@dataclass(frozen=True)
class PairKind:
    """One family of VGP files."""

    labels: tuple[str, ...]
    column: str
    numbers: Mapping[str, int]  # of the labels in this column
    swapped: tuple[int, ...]
    files: tuple[str, ...]
    where_to_get: str


KINDS = {
    "typology": PairKind(
        labels=("alternation", "forward_entailment", "reverse_entailment", "equivalence", "independence"),
        column="type_label",
        numbers={str(number): number for number in range(5)},
        swapped=(0, 2, 1, 3, 4),
        files=("{split}_data.csv", "full_data_type_phrase_pair_{split}.csv"),
        where_to_get="get the typology from https://github.com/felixgiov/VGP-Typology",
    ),
    "binary": PairKind(
        labels=("not_paraphrase", "paraphrase"),
        column="ytrue",
        numbers={"False": 0, "True": 1},
        swapped=(0, 1),
        files=("phrase_pair_remove_trivial_match_{split}.csv",),
        where_to_get="get the binary pairs from the links in https://github.com/ids-cv/coling_iparaphrasing",
    ),
}


@dataclass(frozen=True)
class PairRow:
    """A row of a pair file: two phrases of an image and the number of their class; `line` is its line in the file."""

    line: int
    image_id: str
    phrase1: str
    phrase2: str
    label: int

    def __str__(self) -> str:
        return f"line {self.line}: image {self.image_id}: {self.phrase1!r}, {self.phrase2!r}, label {self.label}"


class Mention(NamedTuple):
    """A phrase in a caption: character offsets, text and chain (`UNTAGGED` outside all tags)."""

    start: int
    end: int
    text: str
    entity: str

    def within(self, other: "Mention") -> bool:
        """Returns whether the other mention covers this one."""
        return other.start <= self.start and self.end <= other.end


# Pairs of mentions, the first in the first caption, with the number of their class.
MentionPairs = list[tuple[Mention, Mention, int]]


def read_pairs(path: Path, kind: PairKind) -> list[PairRow]:
    """Reads a pair file of either family."""
    hint = f"{kind.where_to_get} again"
    columns = ("image", "original_phrase1", "original_phrase2", kind.column)
    with data_file(path, hint):
        reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    rows = []
    try:
        missing = []
        for name in columns:
            if name not in (reader.fieldnames or ()):
                missing.append(name)
        refuse_if(missing, "columns are missing", file=path, where="line 1", found=missing, hint=hint)
        for row in reader:
            place: Fields = {"file": path, "where": f"line {reader.line_num}", "hint": hint}
            # DictReader puts surplus fields under None and None into missing fields.
            whole = None not in row and None not in row.values() and all(row[name].strip() for name in columns)
            refuse_if(not whole, "the row has a wrong length", found=[*row.values()], **place)
            image, phrase1, phrase2, label = (" ".join(row[name].split()) for name in columns)
            refuse_if(label not in kind.numbers, f"impossible {kind.column}", found=label, **place)
            image_id = image.removesuffix(".jpg")
            rows.append(PairRow(reader.line_num, image_id, phrase1, phrase2, kind.numbers[label]))
    except csv.Error as error:
        problem = f"not readable as CSV (a truncated or damaged file): {error}"
        raise DataError(problem, file=path, where=f"line {max(reader.reader.line_num, 1)}", hint=hint) from None
    return rows


def clean_pairs(
    rows: Iterable[PairRow], kind: PairKind, image_ids: set[str], other_split_images: set[str], report: BuildReport
) -> dict[str, list[PairRow]]:
    """Groups rows by image; drops those of other images, contradicting labels and repetitions, all counted."""
    groups: dict[tuple[str, str, str], list[tuple[int, PairRow]]] = defaultdict(list)
    report.add("rows", count=0)  # the report also shows a file without rows
    for row in rows:
        report.add("rows")
        if row.image_id not in image_ids:
            leaks = row.image_id in other_split_images
            report.add("rows_leaking_from_another_split" if leaks else "rows_of_unknown_images", str(row))
            continue
        if row.phrase1 <= row.phrase2:
            groups[row.image_id, row.phrase1, row.phrase2].append((row.label, row))
        else:
            groups[row.image_id, row.phrase2, row.phrase1].append((kind.swapped[row.label], row))
    kept: dict[str, list[PairRow]] = defaultdict(list)
    for group in groups.values():
        if len({label for label, _ in group}) > 1:
            report.add("rows_with_conflicting_labels", "; ".join(str(row) for _, row in group), len(group))
            continue
        report.add("rows_repeated", count=len(group) - 1)
        kept[group[0][1].image_id].append(group[0][1])
    return kept


def tagged_mentions(caption: Columns) -> list[Mention]:
    """Returns the tagged phrases of a caption of [`Flickr30kEntities`]."""
    return [Mention(tag["start"], tag["end"], tag["text"], tag["entity"]) for tag in caption["phrases"]]


def text_mentions(text: str, phrase: str, tags: Sequence[Mention]) -> list[Mention]:
    """Finds a phrase in a text, between word boundaries and case-sensitively."""
    mentions = []
    for match in re.finditer(rf"(?<!\S){re.escape(phrase)}(?!\S)", text):
        span = Mention(match.start(), match.end(), phrase, UNTAGGED)
        chain = next((tag.entity for tag in tags if span.within(tag)), UNTAGGED)
        mentions.append(span._replace(entity=chain))
    return mentions


def join_pairs(
    rows: Iterable[PairRow], captions: Sequence[Columns], kind: PairKind, report: BuildReport
) -> dict[tuple[int, int], MentionPairs]:
    """Finds the phrase pairs of an image in each pair of its captions.

    A row belongs to captions (i, j) if one phrase is in i and the other in j; in swapped order, the label is swapped
    too. The phrases must be of the same chain (of different chains for the binary class `not_paraphrase`). A phrase
    without a tag in any caption is searched as plain text on word boundaries; its chain may then be unknown, which
    agrees with every chain. A pair with both sides inside those of another pair is removed.
    """
    labels: dict[tuple[int, int], dict[tuple[Mention, Mention], int]] = defaultdict(dict)
    tags = [tagged_mentions(caption) for caption in captions]
    tagged: dict[str, dict[int, list[Mention]]] = defaultdict(lambda: defaultdict(list))
    for index, mentions in enumerate(tags):
        for mention in mentions:
            tagged[mention.text][index].append(mention)
    for row in rows:
        sides = []
        for phrase in (row.phrase1, row.phrase2):
            sides.append(tagged.get(phrase) or _untagged_places(captions, tags, phrase, row, report))
        same_chain = kind.labels[row.label] != "not_paraphrase"
        joined = False
        for first, second, label in ((0, 1, row.label), (1, 0, kind.swapped[row.label])):
            for (i, firsts), (j, seconds) in product(sides[first].items(), sides[second].items()):
                if i >= j:
                    continue
                for pair in _agreeing(firsts, seconds, same_chain):
                    labels[i, j].setdefault(pair, label)
                    joined = True
        _report_outcome(row, sides, joined, report)
    return {captions_ij: _without_contained(pairs, report) for captions_ij, pairs in labels.items()}


def _untagged_places(
    captions: Sequence[Columns],
    tags: Sequence[Sequence[Mention]],
    phrase: str,
    row: PairRow,
    report: BuildReport,
) -> dict[int, list[Mention]]:
    """Finds a phrase without any tag as plain text: caption index -> mentions."""
    texts = {index: text_mentions(caption["text"], phrase, tags[index]) for index, caption in enumerate(captions)}
    places = {index: mentions for index, mentions in texts.items() if mentions}
    if places:
        report.add("phrases_found_as_untagged_text", f"{phrase!r} of {row}")
    return places


def _agreeing(
    firsts: Iterable[Mention], seconds: Iterable[Mention], same_chain: bool
) -> Iterable[tuple[Mention, Mention]]:
    """Returns pairs of mentions whose chains agree with the class; for the same two chains, only the first pair."""
    pairs: dict[tuple[str, str], tuple[Mention, Mention]] = {}
    for first, second in product(firsts, seconds):
        chains = (first.entity, second.entity)
        may_share = NOT_GROUNDED not in chains and (chains[0] == chains[1] or UNTAGGED in chains)
        may_differ = chains[0] != chains[1] or chains[0] in (NOT_GROUNDED, UNTAGGED)
        if may_share if same_chain else may_differ:
            pairs.setdefault(chains, (first, second))
    return pairs.values()


def _report_outcome(row: PairRow, sides: Sequence[Mapping[int, Any]], joined: bool, report: BuildReport) -> None:
    missing = [phrase for phrase, places in zip((row.phrase1, row.phrase2), sides, strict=True) if not places]
    if joined:
        report.add("rows_joined")
    elif missing:
        report.add("rows_with_phrase_not_in_captions", f"{' and '.join(map(repr, missing))} of {row}")
    elif len({*sides[0], *sides[1]}) == 1:
        report.add("rows_in_one_caption_only", str(row))
    else:
        report.add("rows_with_disagreeing_chains", str(row))


def _without_contained(pairs: Mapping[tuple[Mention, Mention], int], report: BuildReport) -> MentionPairs:
    def contained(pair: tuple[Mention, Mention]) -> bool:
        return any(pair != other and pair[0].within(other[0]) and pair[1].within(other[1]) for other in pairs)

    kept = [(*pair, label) for pair, label in pairs.items() if not contained(pair)]
    report.add("pairs_inside_other_pairs", count=len(pairs) - len(kept))
    report.add("phrase_pairs", count=len(kept))
    return kept


# Cosines are compared after rounding, so that the order of the ids breaks ties (two copies of an image), not the order
# of additions in a matrix product.
_DIGITS = 5
_CHUNK = 1024


def seeded(*parts: object) -> random.Random:
    """Returns a random generator that depends only on the values of the parts, in every process."""
    return random.Random(zlib.crc32("/".join(map(str, parts)).encode()))


def random_negatives(image_ids: Sequence[str], seed: int) -> dict[str, str]:
    """Draws a donor image for each image."""
    ordered = sorted(image_ids)
    if len(ordered) < 2:
        return {}
    negatives = {}
    for index, image_id in enumerate(ordered):
        # Draws from the list without the image itself.
        donor = seeded(seed, "negative", image_id).randrange(len(ordered) - 1)
        negatives[image_id] = ordered[donor + (donor >= index)]
    return negatives


def nearest_negatives(image_ids: Sequence[str], table: RegionTable) -> dict[str, str]:
    """Finds the nearest other image of each image, by the cosine of the mean region feature.

    The public code of the VGP paper uses the nearest neighbour of pooled ResNet-101 features; here the mean over
    detected regions replaces them. Ties go to the image whose id comes first as text. Memory: one float32 feature an
    image and `_CHUNK` rows of cosines.
    """
    ordered = sorted(image_ids)
    missing = [image_id for image_id in ordered if image_id not in table]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(ordered)} images have no region features",
            file=table.path,
            where=f"image {missing[0]}",
            hint="import features of all images (grounded-attention regions import), or use negatives=random",
        )
    if len(ordered) < 2:
        return {}
    nearest = nearest_rows(table.mean_features(ordered))
    return {image_id: ordered[donor] for image_id, donor in zip(ordered, nearest, strict=True)}


def nearest_rows(vectors: np.ndarray) -> list[int]:
    """Finds, for each vector, the index of the other one with the largest cosine."""
    vectors = np.nan_to_num(vectors)  # an image without regions has no mean
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    nearest: list[int] = []
    chunks = range(0, len(vectors), _CHUNK)
    for start in with_progress(chunks, "nearest images", quiet=len(chunks) < 2):
        cosines = vectors[start : start + _CHUNK] @ vectors.T
        np.round(cosines, _DIGITS, out=cosines)
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -np.inf
        nearest += cosines.argmax(axis=1).tolist()
    return nearest


def draw_negatives(
    captions: Sequence[Columns], donor_captions: Sequence[Columns], count: int, rng: random.Random
) -> list[tuple[Columns, Columns, str]]:
    """Draws pairs of a caption of the image and a caption of the donor image. As in the public code, every caption of
    the image is paired with one wrong caption after the other (two of them for 5 captions and 10 pairs), and a random
    bit decides which comes first.
    """
    texts = {caption["text"].casefold() for caption in captions}
    wrong = [caption for caption in donor_captions if caption["text"].casefold() not in texts]
    rng.shuffle(wrong)
    pairs = []
    for donor, caption in [(donor, caption) for donor in wrong for caption in captions][:count]:
        first = rng.random() < 0.5
        pairs.append((caption, donor, "first") if first else (donor, caption, "second"))
    return pairs
