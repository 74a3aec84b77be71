# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with grounded phrases from whatever people have."""

import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import numpy as np
from PIL import Image

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.files.image_files import SUFFIXES
from grounded_attention.processing.phrase import read_phrase
from grounded_attention.utils.boxes import check_shape, clip_box
from grounded_attention.utils.masks import run_lengths
from grounded_attention.utils.named_types import AnyPath, Columns, Fields
from grounded_attention.utils.open_images import open_image

from .captions import texts_in_order
from .columns import IMAGE_NAMES, TEXT_NAMES, Context
from .detection import OBJECT_NAMES, has_no_objects
from .masks import find_mask, unite_masks
from .opening import open_source
from .pictures import (
    MissingPicture,
    Pictures,
    UnreadablePicture,
    picture_digest,
)
from .raw import (
    BOX_NAMES,
    NESTED,
    RawBox,
    RawPhrase,
    RawRow,
    RowError,
    Rows,
    named_sides,
    plain,
    structured,
)
from .readings import (
    FORMAT,
    Decision,
    Reading,
    Readings,
    Sample,
    Size,
    UnclearBoxes,
    decide,
    parse_reading,
)
from .report import RowsReport
from .shapes import NO_OBJECTS, OF_A_TOOL, Shape, find_shape
from .sources import Source, in_words, split_name

UNREAD = "it looks like boxes, points, masks or marks and is not read"
_NAME = re.compile(
    r"box|rect|polygon|quad|outline|contour|points?(?![a-z])|coordinate|region|geometry|trace|\b(?:roi|rois|corners)\b",
    re.IGNORECASE,
)
_MASK = re.compile(r"mask|segmentation|\brles?\b|polygon", re.IGNORECASE)
_MARK = re.compile(r"<\|?(?:box|quad|det|point|points|loc_?\d+|patch_index_\d+)(?:_start)?[\s|>]")
_LOOKED_AT = 64  # entries of a list


def unread_places(record: Columns, rows: Sequence[RawRow]) -> list[str]:
    """The columns that say where something is, of a record whose rows have no box; else those of masks, of rows that
    have no mask.
    """
    has_boxes = False
    for row in rows:
        for phrase in row.phrases:
            masks = [box.mask for box in phrase.boxes]
            if any(mask is not None for mask in (phrase.mask, *masks)):
                return []
            has_boxes = has_boxes or bool(phrase.boxes) or phrase.regions is not None
    columns = {key: value for key, value in record.items() if key not in IMAGE_NAMES}
    names = dict.fromkeys(_places(columns, ""))
    return [name for name in names if not has_boxes or _MASK.search(name.rpartition(".")[2])]


def _places(value: Any, name: str) -> Iterator[str]:
    last = name.rpartition(".")[2]
    if isinstance(value, str):
        with suppress(RowError):
            value = structured(value, name)
    if isinstance(value, dict):
        if named_sides(value) or None not in (value.get("x"), value.get("y")):
            yield name or "columns of sides"
        if value.get("bytes") and (_MASK.search(last) or last == "gt"):
            yield name
        for key, inner in value.items():
            yield from _places(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and all(isinstance(entry, (int, float)) for entry in value):
        if len(value) in (4, 8) or ((_NAME.search(last) or _MASK.search(last)) and len(value) > 1):
            yield name
    elif isinstance(value, list):
        for entry in value[:_LOOKED_AT]:
            yield from _places(entry, name)
    elif isinstance(value, str):
        is_file = last == "gt" and value.lower().endswith(SUFFIXES)
        if _MARK.search(value) or is_file or (_MASK.search(last) and len(value.split()) == 1):
            yield name
    elif _MASK.search(last) and isinstance(value, (bytes, np.ndarray, Image.Image)):
        yield name


logger = logging.getLogger(__name__)

# Boxes that are counted to find a convention, and, where several hold, in a second look.
COUNTED = (200, 2000)
# Records that are read for it at most while no box was found.
LOOKED_AT = 2000
_PLACE = ("text", "start", "end", "sentence")  # of a phrase
_POINTS = (Reading("point"),)  # a key of decisions: points of which nothing else is known
WITHOUT_BOXES = "a phrase without boxes (the phrase stays)"
# What a user names -> the columns that would be taken for it.
_SAME = {
    "boxes": BOX_NAMES,
    **dict.fromkeys(("image", "images"), IMAGE_NAMES),
    **dict.fromkeys(("text", "caption", "captions"), TEXT_NAMES),
}
_WEAK = ("text", NO_OBJECTS)  # shapes of rows that have nothing to tell; others may follow
# Names of columns that a user may give.
COLUMNS = (
    "image", "images", "image_id", "width", "height", "text", "caption", "captions", "boxes", "phrases", "messages",
    "conversations", "objects", "points", "question", "answer", "instruction", "label", "names", "mask", "category",
)  # fmt: skip


def grounded_rows(
    source: Any,
    columns: Columns | None = None,
    boxes: str | None = None,
    split: str | None = None,
    *,
    images: AnyPath | None = None,
    config: str | None = None,
    max_rows: int | None = None,
    **options: Any,
) -> "GroundedRows":
    """Reads rows with grounded phrases from data as people have them: on the Hub, JSON, Parquet, CSV, COCO, YOLO ...

    The shape of the rows is recognised by their columns (docs/data.md has a table). How boxes are written is said by
    `boxes`, known from the shape, or found by counting which readings keep every box inside of its picture; if several
    hold, nothing is guessed.

    Args:
        source: A `datasets.Dataset`, `IterableDataset` or dictionary of them; `ORG/NAME`, `ORG/NAME:CONFIG` or
            `ORG/NAME:CONFIG@REVISION` on the Hub; a .jsonl, .json, .parquet, .csv or .tsv file, or a pattern of files;
            an image folder with metadata; a COCO or Label Studio JSON file; a folder of YOLO, Pascal VOC or LabelMe;
            or a list of rows.
        columns (`Mapping[str, str]`, *optional*): What a column is -> its name, such as `{"text": "answer", "boxes":
            "bbox"}`; `boxes` may be a list of four columns, `names` a list of the names of classes.
        boxes (`str`, *optional*): How boxes are written: an order (`xyxy`, `xywh`, `cxcywh`, `yxyx`, `points`), a
            scale (`pixels`, `0..1`, `0..1000`, any `0..N`), or both, such as `"xywh pixels"`.
        split (`str`, *optional*): The split to read, by any name; all by default.
        images (`str` or `os.PathLike`, *optional*): A folder of the pictures that rows name.
        config (`str`, *optional*): The configuration of a data set on the Hub.
        max_rows (`int`, *optional*): The largest number of rows.
        options: Further arguments of `datasets.load_dataset`, such as `streaming=True` or `revision="main"`.

    Returns:
        `GroundedRows`: The rows, which can be iterated again and again, and their `report`.

    Raises:
        DataError: The source, a column or a row cannot be read; the message names file, row, what was found and what
            was expected.
        UnclearBoxes: Several readings of the boxes hold, or they are against what is said or known; the message names
            the readings.
    """
    unknown = sorted(set(columns or ()) - set(COLUMNS))
    if unknown:
        raise DataError("columns: an unknown name", found=unknown[0], expected=", ".join(COLUMNS))
    if max_rows is not None and max_rows < 1:
        raise DataError("bad max_rows", found=max_rows, expected="a whole number from 1")
    reading = Reading() if boxes is None else parse_reading(boxes)
    if config is not None:
        options["name"] = config
    opened = open_source(source, split, **options)
    chosen = _choose_split(opened, split)
    pictures = Pictures(opened.folder, images, opened.is_foreign)
    return GroundedRows(opened, columns or {}, reading, chosen, pictures, max_rows)


def _choose_split(source: Source, split: str | None) -> str | None:
    """The name of the split in the source; None reads all."""
    if split is None or (len(source.parts) == 1 and source.folder is None and not source.is_foreign):
        return None  # all, or a data set that has been chosen already
    if [*source.parts] == [""] and split_name(split) == "train":
        return None  # rows without splits are the train split, as for `datasets`
    if split in source.parts:
        return split
    same = [name for name in source.parts if split_name(name) == split_name(split)]
    if len(same) != 1:
        known = ", ".join(filter(None, source.parts)) or "no name of a split: these rows have none"
        raise DataError("no such split", file=source.name, found=split, expected=known)
    return same[0]


class GroundedRows:
    """Rows with `image` or `images` (upright RGB), texts (`text`, `captions` or `messages`), `phrases` and further
    columns of the source; made by [`grounded_rows`].

    Each iteration reads the source again, lazily. A phrase is a mapping with the keys of [`Phrase`]; its boxes are x1,
    y1, x2, y2 in [0, 1], clipped to the picture. `report` has the convention, counts, and what was left out.
    """

    def __init__(
        self,
        source: Source,
        columns: Columns,
        reading: Reading,
        split: str | None,
        pictures: Pictures,
        max_rows: int | None,
    ) -> None:
        self._source = source
        self._reading = reading
        self._split = split
        self._columns = dict(columns)
        classes = self._columns.pop("names", None)
        if isinstance(classes, list | tuple):
            source.classes["names"] = dict(enumerate(classes))
        self._pictures = pictures
        self._decodes = True
        self._max_rows = math.inf if max_rows is None else max_rows
        self._decisions: dict[Readings, Decision] = {}
        self._shape: Shape | None = None
        self._known_columns: set[str] = set()
        self._logged: set[str] = set()  # reasons for which rows were left out
        self.report = RowsReport(source.name)
        self._look()
        for _ in self._read(False, min(self._max_rows, COUNTED[0])):
            pass

    def __iter__(self) -> Iterator[Fields]:
        yield from self._read(self._decodes, self._max_rows)
        self._log_dropped(self.report)

    def _log_dropped(self, report: RowsReport) -> None:
        for reason, count in report.dropped.items():
            if reason not in self._logged and reason != WITHOUT_BOXES:
                self._logged.add(reason)
                logger.warning("%s: left out: %d x %s", report.source, count, reason)

    def decode(self, enable: bool = True) -> "GroundedRows":
        """The same rows with pictures as they are stored: paths, or mappings with bytes, for `open_image`.

        Args:
            enable (`bool`, *optional*, defaults to `True`): Whether pictures are decoded, upright RGB.

        Returns:
            `GroundedRows`: The rows; nothing is read again.
        """
        rows = copy(self)
        rows._decodes = enable
        return rows

    def first(self, count: int | None) -> "GroundedRows":
        """The first rows alone; all with None.

        Args:
            count (`int`, *optional*): Their largest number.

        Returns:
            `GroundedRows`: The rows; nothing is read again.
        """
        rows = copy(self)
        rows._max_rows = min(self._max_rows, math.inf if count is None else count)
        rows.report = copy(self.report)
        return rows

    def of_record(self, record: Columns) -> list[Fields]:
        """The rows of a record that another library brings, as those of the source: their boxes are written alike.

        Args:
            record (`Mapping[str, Any]`): A record with the columns of the source.

        Returns:
            `list[dict[str, Any]]`: Its rows, with pictures as they are stored; none if nothing of it is read.

        Raises:
            DataError: The record cannot be read, or a picture is missing.
        """
        report = RowsReport(self.report.source)
        context = Context(self._source.kind, self._source.readings, self._source.classes, report, "the row")
        rows = [self._row(raw, False, report) for raw in self._read_record(self._renamed(record), context)]
        self._log_dropped(report)
        return rows

    @property
    def splits(self) -> list[str]:
        """The names of the splits; none if the source has no names."""
        return [name for name in self._source.parts if name]

    def of_split(self, name: str) -> "GroundedRows":
        """The rows of a split.

        Args:
            name (`str`): The split; `val`, `dev` and `validation` are one name.

        Returns:
            `GroundedRows`: The rows; nothing is read again.

        Raises:
            DataError: There is no such split.
        """
        rows = copy(self)
        rows._split = _choose_split(self._source, name)
        rows.report = copy(self.report)
        return rows

    # Reading

    def _renamed(self, record: Columns) -> Columns:
        """Plain values, with the columns that the user names under their known names, before all others."""
        self._known_columns |= record.keys()
        # A null says no more than a column that is not there, but for things: there it says that there are none.
        values: Fields = {}
        for key, value in record.items():
            if value is not None or key in OBJECT_NAMES:
                values[key] = plain(value)
            if key in values and key in NESTED:
                values[key] = structured(values[key], key)
        for key, names in self._source.classes.items():
            if isinstance(values.get(key), int):
                values[key] = names.get(values[key], values[key])
        renamed: Fields = {}
        hidden: set[str] = set()
        for name, column in self._columns.items():
            columns = [column] if isinstance(column, str) else list(column)
            # Other columns of the same meaning step back: what the user names is what is read.
            hidden.update(columns, _SAME.get(name, ()))
            missing = [key for key in columns if key not in values]
            if missing:
                if not set(missing) & self._known_columns:
                    raise RowError(f"no column {missing[0]}", found=", ".join(values), expected=missing[0])
                if name in OBJECT_NAMES:
                    renamed[name] = None
                continue
            renamed[name] = values[column] if isinstance(column, str) else [values[key] for key in columns]
        others = {key: value for key, value in values.items() if key not in hidden}
        return {**others, **renamed}

    def _raw_rows(self, report: RowsReport) -> Rows:
        context = Context(self._source.kind, self._source.readings, self._source.classes, report)
        for split, (file, where, record) in self._source.records(self._split):
            context.where = where
            with in_words("no row", file=file or self._source.name, where=where):
                rows = self._read_record(self._renamed(record), context)
            for row in rows:
                row.split = split
                row.file = file
                row.where = where
                yield row

    def _read_record(self, record: Columns, context: Context) -> list[RawRow]:
        shape = self._shape
        if shape is None or not shape.matches(record) or has_no_objects(record):
            shape = find_shape(record)
        if self._shape is None or self._shape.name in _WEAK:
            self._shape = shape
        before = context.report.dropped.total()
        rows = list(shape.read(record, context))
        left_out = context.report.dropped.total() > before
        if not rows and not left_out:
            context.leave_out("a row without a text or an object")
        if shape.name != "conversation" or not left_out:
            for name in unread_places(record, rows):
                context.leave_out(f"{name}: {UNREAD}")
        phrases = [(row, phrase) for row in rows for phrase in row.phrases if phrase.boxes]
        if phrases:
            context.note_beside(record)
        for row, phrase in phrases:
            if phrase.image is None and len(row.images) > 1:
                problem = f"boxes of {phrase.text!r:.40}, and several pictures"
                expected = "the picture of each box, such as phrases with image"
                raise RowError(problem, found=len(row.images), expected=expected)
        return rows

    def _look(self) -> None:
        """Finds the shape, and how boxes are written."""
        for limit in COUNTED:
            samples, complete = self._samples(limit)
            try:
                for kind, of_kind in samples.items():
                    self._decide(kind, of_kind)
                break
            except UnclearBoxes:
                if complete or limit == COUNTED[-1]:
                    raise
        self._note_convention()

    def _samples(self, limit: int) -> tuple[dict[Readings, list[Sample]], bool]:
        samples: dict[Readings, list[Sample]] = {}
        count = 0
        report = RowsReport(self._source.name)
        has_boxes = False
        for number, row in enumerate(self._raw_rows(report)):
            if count >= limit or number >= LOOKED_AT:
                return samples, False
            for phrase in row.phrases:
                if not phrase.boxes:
                    continue
                has_boxes = True
                try:
                    size = self._size(row, phrase.image or 0)
                except (ValueError, IndexError):
                    continue  # reported when rows are made
                for box in phrase.boxes:
                    samples.setdefault(_kind(box), []).append(Sample(box.numbers, size, box.area, box.hull))
                    count += 1
        unread = [reason.removesuffix(f": {UNREAD}") for reason in report.dropped if reason.endswith(UNREAD)]
        if unread and not has_boxes:
            raise DataError(
                f"no row has a box, but a column that is not read: {UNREAD}",
                file=self._source.name,
                found=", ".join(unread),
                expected="boxes of four numbers, or masks inside of the rows, in a column of a known name",
                hint="columns={'boxes': ...}, or leave the column out",
            )
        return samples, True

    def _size(self, row: RawRow, image: int) -> Size:
        """Width and height to which boxes in pixels refer: those that the row says, or those of the picture."""
        if row.size is not None and image == 0:
            return row.size
        return self._pictures.size(self._pictures.find(row.images[image], row.file))

    def _decide(self, kind: Readings, samples: Sequence[Sample], **place: str) -> None:
        assert self._shape is not None
        known_by = f"the columns, as in {self._shape.sets}"
        if self._source.readings:
            known_by = f"{FORMAT}{self._source.kind}"
        elif self._shape.name == OF_A_TOOL:
            known_by = f"{FORMAT}{self._shape.sets}"
        elif self._shape.name in ("conversation", "text"):
            known_by = "the marks in the texts"
        readings = () if kind == _POINTS else kind
        self._decisions[kind] = decide(samples, readings, self._reading, known_by, file=self._source.name, **place)

    def _note_convention(self) -> None:
        self.report.shape = self._shape.name if self._shape else "no rows"
        decisions = self._decisions.values()
        self.report.convention = " and ".join(dict.fromkeys(str(decision.reading) for decision in decisions))
        self.report.known_by = "; ".join(dict.fromkeys(decision.known_by for decision in decisions))
        if self._decisions:
            logger.info("%s: boxes are %s (%s)", self.report.source, self.report.convention, self.report.known_by)
        elif self.report.shape in _WEAK:
            self.report.known_by = "no column of boxes was found: name it by columns={'boxes': ...} if there is one"
            logger.warning("%s: %s", self.report.source, self.report.known_by)

    # Rows

    def _read(self, decode: bool, limit: float) -> Iterator[Fields]:
        about = self.report
        report = RowsReport(about.source, about.shape, about.convention, about.known_by)
        problem = ""
        for number, raw in enumerate(self._raw_rows(report)):
            if number >= limit:
                break
            try:
                row = self._row(raw, decode, report)
            except (MissingPicture, UnreadablePicture) as error:
                place = f"{raw.where}: {error}"
                problem = problem or place
                report.drop(error.reason, place)
                if isinstance(error, MissingPicture):
                    report.miss(error.name)
                continue
            if raw.split:
                row.setdefault("split", raw.split)
            report.add(row, raw.split)
            yield row
        else:
            report.complete = True
        vars(self.report).update(vars(report))
        if report.rows:
            return
        refuse_if(problem, f"no picture was found; {problem}", file=self._source.name)
        refuse_if(report.complete, "no rows", file=self._source.name, expected="at least one row")

    def _row(self, raw: RawRow, decode: bool, report: RowsReport) -> Fields:
        file = raw.file or self._source.name
        stored = [self._pictures.find(image, raw.file) for image in raw.images]
        pictures = stored
        try:
            if decode:
                pictures = [open_image(image, "its picture") for image in stored]
                sizes = [picture.size for picture in pictures]
            else:
                sizes = [self._pictures.size(image) for image in stored]
        except ValueError as error:
            raise UnreadablePicture(str(error)) from None
        with in_words("another size", file=file, where=raw.where):
            if sizes:
                check_shape(raw.size, sizes[0], raw.image_id or raw.where, "picture")
        texts = texts_in_order(raw.texts)
        digest = picture_digest(stored[0]) if stored else None
        row: Fields = {"image_id": raw.image_id or digest or f"row {report.rows}", **raw.texts}
        if len(pictures) == 1:
            row["image"] = pictures[0]
        elif pictures:
            row["images"] = pictures
        if sizes:
            row["width"], row["height"] = sizes[0]
        else:
            report.drop("a picture (the row is text alone)", raw.where)
        row["phrases"] = []
        for index, phrase in enumerate(raw.phrases):
            name = f"{raw.where}, phrase {index} ({phrase.text!r:.40})"
            try:
                row["phrases"].append(self._phrase(phrase, raw, sizes, texts, report, name))
            except UnclearBoxes:
                raise
            except ValueError as error:
                raise DataError(str(error), file=file, where=name) from None
        return {**raw.more, **row}

    def _phrase(
        self, raw: RawPhrase, row: RawRow, sizes: Sequence[Size], texts: Sequence[str], report: RowsReport, name: str
    ) -> Columns:
        given = {key: getattr(raw, key) for key in _PLACE}
        place = read_phrase(given, texts, "its words")
        if not place.text:
            raise RowError("a phrase without words", found=[place.start, place.end], expected="start before end")
        image = raw.image or 0
        if raw.boxes and not sizes:
            expected = f"a column of it ({', '.join(IMAGE_NAMES[2:8])}, ...)"
            hint = "columns={'image': ...}"
            raise RowError("boxes without a picture", found=", ".join(row.more), expected=expected, hint=hint)
        if raw.boxes and not 0 <= image < len(sizes):
            raise RowError("image is out of range", found=image, expected=f"0 to {len(sizes) - 1}")
        if row.size is not None and image == 0:
            size = row.size
        else:
            size = (*sizes, (0, 0))[image]
        boxes = []
        masks = []
        for box in raw.boxes:
            sides = self._box(box, size, name)
            if sides is None:
                report.drop("a box that is inverted or outside of its picture", name)
                continue
            boxes.append(sides)
            masks.append(box.mask)
        if not raw.boxes and raw.regions is None:
            report.drop(WITHOUT_BOXES, name)
        phrase: Fields = {
            **{key: getattr(place, key) for key in _PLACE},
            "boxes": boxes,
            "image": image,
        }
        for key in ("weight", "entity", "scores", "regions"):
            if getattr(raw, key) is not None:
                phrase[key] = getattr(raw, key)
        if raw.types:
            phrase["types"] = list(raw.types)
        own = find_mask({"mask": raw.mask})
        if own:
            masks = [own[0]]
        if masks and all(mask is not None for mask in masks):
            phrase["mask"] = run_lengths(unite_masks(masks, size))
        return phrase

    def _box(self, box: RawBox, size: Size, name: str) -> list[float] | None:
        """x1, y1, x2, y2 in [0, 1]; None if nothing of it is in the picture."""
        kind = _kind(box)
        if kind not in self._decisions:  # one that the first rows do not have
            self._decide(kind, [Sample(box.numbers, size, box.area, box.hull)], where=name)
            self._note_convention()
        x1, y1, x2, y2 = map(float, self._decisions[kind].reading.corners(box.numbers, size))
        inside = x1 <= 1 and y1 <= 1 and x2 >= 0 and y2 >= 0
        if not inside or x1 > x2 or y1 > y2:
            return None
        clipped = clip_box((x1, y1, x2, y2))
        is_empty = clipped[0] == clipped[2] or clipped[1] == clipped[3]
        if is_empty and len(box.numbers) == 4:
            return None
        return clipped


def _kind(box: RawBox) -> Readings:
    """What boxes of one convention share: the readings that their place allows; points without any are a kind."""
    return box.readings or _POINTS * (len(box.numbers) == 2)
