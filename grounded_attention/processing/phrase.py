# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The phrase: words of one text of a row, and the part of an image that they mean."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..utils.named_types import Columns, Fields
from ..utils.whole_words import whole_words
from .installed_package import find_installed


@dataclass(frozen=True)
class Phrase:
    """Words of one text of a row, and the part of an image that they mean.

    Two phrases are equal if they are the same words at the same place; boxes and regions are not compared.

    Args:
        text (`str`): The words; "" in a phrase for [`read_phrase`] if they need not be compared.
        start (`int`): Their first character in the text.
        end (`int`): The character after the last one.
        sentence (`int`, *optional*, defaults to 0): The text: an index into the texts of the row.
        boxes (`(n, 4)`, *optional*): Gold boxes x1, y1, x2, y2, divided by width and height of the image, in [0, 1].
            None or no box: the phrase is not grounded.
        regions (sequence of `int`, *optional*): Indices into the regions of the image; with them boxes are not read.
        mask (`(H, W)` or `Mapping`, *optional*): Pixels of the image that the words mean, COCO's run lengths, or a map
            in [0, 1] such as gaze: a region counts as the mask covers it. Without boxes, that of the mask is taken.
        scores (sequence of `float`, *optional*): How sure each box is, in (0, 1].
        weight (`float`, *optional*, defaults to 1.0): How much the phrase counts, as rows say it; 1 is usual.
        image (`int`, *optional*): The image of the boxes: an index into the images of the row, 0 by default.
        entity (`str`, *optional*): The id of what the words mean; phrases with one id mean the same.
        types (sequence of `str`, *optional*): Groups of the phrase in tables, such as the type of the entity.
    """

    text: str
    start: int
    end: int
    sentence: int = 0
    boxes: Any = field(default=None, compare=False)
    regions: Any = field(default=None, compare=False)
    mask: Any = field(default=None, compare=False)
    scores: Any = field(default=None, compare=False)
    weight: float = field(default=1.0, compare=False)
    image: int | None = None
    entity: str | None = None
    types: Sequence[str] = ()


KEYS = tuple(each.name for each in fields(Phrase))
# Keys of earlier versions, and of rows that they wrote.
_FORMER = {"words": "text", "caption": "sentence", "message": "sentence", "entity_id": "entity"}


def read_phrase(phrase: Columns | Phrase, texts: Sequence[str], name: str, grounded: bool = False) -> Phrase:
    """Reads a phrase of a row.

    A mapping has the keys of [`Phrase`]. `start` and `end` may be missing if the text occurs once, as whole words, in
    the sentence, or without `sentence` in all texts. As in earlier versions, an integer `text` is the `sentence`, and
    `region` one of `regions`.

    Args:
        phrase (`Mapping` or `Phrase`): The phrase.
        texts (sequence of `str`): The texts of the row.
        name (`str`): Its name in errors.
        grounded (`bool`, *optional*, defaults to `False`): Whether a mapping must say what the words mean: `boxes` or
            `regions`. `boxes: []` says that they mean nothing in the image.

    Returns:
        `Phrase`: The phrase.

    Raises:
        ValueError: A key is unknown (the message has the nearest known one) or missing, the words are not at that
            place, or occur not exactly once.
    """
    values = known_values(phrase, name)
    if values.get("mask") is not None and values.get("boxes") is None:
        values["boxes"] = find_installed("utils.masks", "mask_boxes")(values["mask"], name)
    if grounded and isinstance(phrase, Mapping) and not {"boxes", "regions", "mask"} & phrase.keys():
        raise ValueError(f"{name}: neither boxes nor regions; give 'boxes': [] for a phrase that is not grounded.")
    text = values.get("text") or None
    sentence = values.get("sentence")
    if sentence is not None and not (_is_integer(sentence) and 0 <= sentence < len(texts)):
        raise ValueError(f"{name}: sentence is {sentence!r}, but the example has {len(texts)} text(s).")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{name}: text is {text!r:.80}, expected the words of the phrase.")
    start: Any = values.get("start")
    end: Any = values.get("end")
    if start is None and end is None and text is not None:
        sentence, start, end = _find(text, texts, sentence, name)
    sentence = int(sentence or 0)
    if not (_is_integer(start) and _is_integer(end)):
        raise ValueError(f"{name}: start and end are {start!r:.40} and {end!r:.40}, expected characters of its text.")
    whole = texts[sentence]
    if not 0 <= start <= end <= len(whole):
        raise ValueError(
            f"{name}: characters {start} to {end} are outside its text {whole!r:.200} of {len(whole)} characters."
        )
    words = whole[start:end]
    if text is not None and words != text:
        raise ValueError(f"{name}: text is {text!r:.80}, but characters {start} to {end} are {words!r:.80}.")
    return Phrase(**{**values, "text": words, "start": int(start), "end": int(end), "sentence": sentence})


def row_texts(row: Columns) -> list[str]:
    """The texts of a row that `sentence` counts: of its `messages`, its `captions`, or its `text`."""
    if row.get("messages") is None:
        if row.get("captions") is not None:
            return list(row["captions"])
        return [row["text"]]
    texts = []
    for message in row["messages"]:
        content = message["content"]
        parts = [{"text": content}] if isinstance(content, str) else content or ()
        texts += [part["text"] for part in parts if part.get("text") is not None]
    return texts


def known_values(phrase: Any, name: str) -> Fields:
    """The values of a mapping that are not None, by the names of `Phrase`; ValueError for an unknown key."""
    # By its attributes: the code of a checkpoint has a class `Phrase` of its own.
    values = phrase if isinstance(phrase, Mapping) else getattr(phrase, "__dict__", None)
    if values is None:
        raise ValueError(f"{name}: {phrase!r:.80} is not a dictionary; expected a list of phrases for every example.")
    known_values: Fields = {}
    for key, value in values.items():
        if value is None:
            continue
        if key == "text" and _is_integer(value):
            key = "sentence"
        elif key == "region":
            key = "regions"
            value = [value]
        known = _FORMER.get(key, key)
        if known not in KEYS:
            close = difflib.get_close_matches(str(key), [*KEYS, *_FORMER], n=1, cutoff=0.5)
            meant = "."
            if close:
                meant = f"; did you mean {_FORMER.get(close[0], close[0])!r}?"
            raise ValueError(f"{name}: {key!r} is no key of a phrase; known: {', '.join(KEYS)}{meant}")
        if known in known_values:
            raise ValueError(f"{name}: {key!r} says once more what {known!r} is; remove one of them.")
        known_values[known] = value
    return known_values


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _find(text: str, texts: Sequence[str], sentence: int | None, name: str) -> tuple[int, int, int]:
    searched = range(len(texts)) if sentence is None else [sentence]
    places = []
    for index in searched:
        for place in whole_words(re.escape(text), texts[index]):
            places.append((index, *place))
    if len(places) != 1 or not text:
        often = f"{len(places)} times in the texts" if places else "not in the texts as whole words"
        raise ValueError(f"{name}: the phrase {text!r:.80} is {often}: give sentence, start and end.")
    return places[0]
