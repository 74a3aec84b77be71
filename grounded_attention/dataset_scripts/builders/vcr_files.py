# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of VCR: lines of questions, and for each image a file with the boxes of its objects; tokens to words."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import data_file, refuse_if
from grounded_attention.dataset_scripts.files.records import Record, are_numbers, json_lines
from grounded_attention.utils.bounded_files import parse_json, read_text
from grounded_attention.utils.boxes import look_normalised
from grounded_attention.utils.plain_text import has_surrogates

from .local_builder import read_size

HOMEPAGE = "https://visualcommonsense.com"
HINT = (
    "get annotations and images through the form on https://visualcommonsense.com/download; unpack both in one folder"
)


@dataclass(frozen=True)
class ImageObjects:
    """The content of the file that belongs to an image."""

    file: Path
    width: int
    height: int
    names: list[str]
    boxes: list[list[float] | None]
    clipped: int

    @property
    def filled_boxes(self) -> list[list[float]]:
        """The boxes; an object without one has the box of the whole image."""
        return [[0.0, 0.0, self.width, self.height] if box is None else box for box in self.boxes]


def read_questions(path: Path) -> Iterator[Record]:
    """Reads the records of a file of questions, one a line."""
    seen: set[str] = set()
    for record in json_lines(path, HINT, _decode):
        annot_id = record.non_empty_text("annot_id")
        record.add_once(annot_id, seen, "the question occurs twice", "unique values of annot_id")
        yield record
    refuse_if(not seen, "no questions", file=path, expected="a question a line", hint=HINT)


def read_objects(path: Path) -> ImageObjects:
    """Reads the boxes and categories of an image's objects; ignores the fifth number, the score."""
    with data_file(path, HINT, "the file with the boxes of an image is missing"):
        record = Record(_decode(read_text(path), path), path, "image", HINT)
    width, height = read_size(record)
    names = record.texts("names")
    if not all(name.strip() for name in names):
        raise record.error("bad names", found=names, expected="the category of each object")
    boxes_in_file = record.items("boxes")
    if len(boxes_in_file) > len(names):
        raise record.error("more boxes than names", found=len(boxes_in_file), expected=str(len(names)))
    boxes = [_corners(record, place, box) for place, box in enumerate(boxes_in_file)]
    if look_normalised([box for box in boxes if box is not None], width, height):
        raise record.error("the boxes look normalised", found=boxes[:2], expected="x1, y1, x2, y2 in pixels")
    inside = [None if box is None else _inside(box, width, height) for box in boxes]
    clipped = sum(after is not None and before != after for before, after in zip(boxes, inside, strict=True))
    return ImageObjects(path, width, height, names, inside + [None] * (len(names) - len(inside)), clipped)


def _inside(box: list[float], width: int, height: int) -> list[float] | None:
    clipped = [min(max(value, 0), limit) for value, limit in zip(box, (width, height) * 2, strict=True)]
    if clipped[2] - clipped[0] >= 1 and clipped[3] - clipped[1] >= 1:
        return clipped
    return None


def _corners(record: Record, place: int, box: Any) -> list[float] | None:
    """Returns the four corners; None without a box."""
    if box is None or box == []:
        return None
    expected = "x1, y1, x2, y2 in pixels, and optionally a score"
    record.refuse_if(not are_numbers(box, 4, 5), f"bad box {place}", found=box, expected=expected)
    record.refuse_if(box[2] < box[0] or box[3] < box[1], f"box {place} is inverted", found=box, expected=expected)
    return box[:4]


def _decode(text: str, place: object) -> Any:
    return parse_json(text, place, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


PERSON = "person"
# The names of the VL-BERT public code, in its order; none of them reveals a gender.
NEUTRAL_NAMES = (
    "Casey",
    "Riley",
    "Jessie",
    "Jackie",
    "Avery",
    "Jaime",
    "Peyton",
    "Kerry",
    "Jody",
    "Kendall",
    "Frankie",
    "Pat",
    "Quinn",
)
_EXPECTED = "words and lists of object indices"


def object_words(objects: Sequence[str], example_id: str, neutral: bool) -> list[str]:
    """Returns the word for each object: its category, or a gender-neutral name for a person if `neutral` is set.

    Persons get the names in turn, in the order of the objects. The VL-BERT public code continues with the next name at
    the next item. Here an item starts at a name drawn by its id (CRC-32), so that a row depends only on itself and
    names reveal little about the position of an object. A fourteenth person gets the name of the first.
    """
    start = zlib.crc32(example_id.encode())
    words = []
    persons = 0
    for category in objects:
        if neutral and category == PERSON:
            words.append(NEUTRAL_NAMES[(start + persons) % len(NEUTRAL_NAMES)])
            persons += 1
        else:
            words.append(category)
    return words


def render(
    record: Record, what: str, tokens: Any, words: Sequence[str], sentence: int = 0
) -> tuple[str, list[dict[str, Any]]]:
    """Converts mixed tokens to a text, tokens joined by spaces, and phrases of this sentence for its objects.

    A list of several objects is written as "a and b". Each name is its own phrase, so that its word pieces can see its
    region; "and" is none (VL-BERT public code).
    """
    if not isinstance(tokens, list):
        raise record.error(f"bad {what}", found=tokens, expected=_EXPECTED)
    text = ""
    phrases = []
    for word, index in _words_with_objects(record, what, tokens, words):
        start = len(text) + bool(text)
        text = f"{text} {word}" if text else word
        if index is not None:
            place = {"start": start, "end": len(text), "sentence": sentence}
            phrases.append({"text": word, **place, "regions": [index]})
    record.refuse_if(not text, f"no words in {what}", found=tokens, expected=_EXPECTED)
    record.refuse_if(has_surrogates(text), f"bad {what}", found=text, expected="words without unpaired surrogates")
    return text, phrases


def _words_with_objects(
    record: Record, what: str, tokens: list[Any], words: Sequence[str]
) -> list[tuple[str, int | None]]:
    """Returns the words in order, each with the index of its object, or None."""
    words_with_objects: list[tuple[str, int | None]] = []
    for token in tokens:
        if isinstance(token, str):
            words_with_objects += [(" ".join(token.split()), None)] if token.strip() else []
            continue
        if not isinstance(token, list) or not token:
            raise record.error(f"bad {what}", found=token, expected=_EXPECTED)
        for place, index in enumerate(token):
            if type(index) is not int or not 0 <= index < len(words):
                expected = f"an index into its {len(words)} objects, from 0"
                raise record.error(f"{what} refers to an object that does not exist", found=index, expected=expected)
            words_with_objects += [("and", None)] if place else []
            words_with_objects.append((words[index], index))
    return words_with_objects
