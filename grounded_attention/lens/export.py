# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes of words for tools of labelling: Label Studio, FiftyOne, results of COCO."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.plain_text import check_one_of

from . import EXPORTS
from .word_maps import Lens, WordMap


class Exported(NamedTuple):
    """A look with the picture that it is of: a path, an address or an id; of several pictures one name each."""

    lens: Lens
    images: Sequence[str]


def export_lens(looks: Iterable[Exported], kind: str) -> str:
    """The boxes of the words of answers, as a tool of labelling imports them.

    Words without a letter or a digit are left out. The score of a box is the share of attention on the image that it
    holds, in [0, 1].

    Args:
        looks (iterable of `Exported`): what [`look`] returned, and the names of the pictures.
        kind (`str`): `"label-studio"`: a list of tasks with predictions, for a labelling configuration with
            `<Image name="image">` and `<RectangleLabels name="label">`; `"fiftyone"`: a list of samples with
            `filepath` and `detections`, boxes as x, y, width, height in [0, 1]; or `"coco"`: results of COCO, boxes as
            x, y, width, height in pixels, with the picture's name as `image_id` and the word as `category_name`, since
            words have no number of a category.

    Returns:
        `str`: JSON.

    Raises:
        ValueError: if there is no such kind, or a look has other numbers of pictures and names.
    """
    check_one_of(kind, EXPORTS, "export ")
    entries: list[Fields] = []
    for number, look in enumerate(looks):
        if len(look.images) != len(look.lens.images):
            count = len(look.lens.images)
            raise ValueError(f"look {number} has {count} pictures, but {len(look.images)} names of them")
        entries += _WRITERS[kind](look)
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


def _words(look: Exported, image: int) -> list[WordMap]:
    """The maps of the words of the answer that look at a picture."""
    maps = []
    for number, word in enumerate(look.lens.words):
        if word.answer and any(letter.isalnum() for letter in word.text):
            maps.append(look.lens[number])
    return [one for one in maps if one.image == image]


def _corner(one: WordMap, scales: Sequence[float]) -> list[float]:
    """x, y, width, height of a box, times the scales of width and height."""
    x1, y1, x2, y2 = one.box
    across, down = scales
    return [x1 * across, y1 * down, (x2 - x1) * across, (y2 - y1) * down]


def _label_studio(look: Exported) -> Iterator[Fields]:
    for image, name in enumerate(look.images):
        regions = []
        scores = []
        for number, one in enumerate(_words(look, image)):
            width, height = one.size
            sides = dict(zip(("x", "y", "width", "height"), _corner(one, (100, 100)), strict=True))
            value: Fields = {**sides, "rotation": 0, "rectanglelabels": [one.text]}
            kind = {"from_name": "label", "to_name": "image", "type": "rectanglelabels"}
            size = {"original_width": width, "original_height": height, "image_rotation": 0}
            regions.append({"id": f"word {number}", **kind, **size, "value": value, "score": one.box_share})
            scores.append(one.box_share)
        mean = sum(scores) / max(len(scores), 1)
        prediction = {"model_version": "grounded-attention", "score": mean, "result": regions}
        yield {"data": {"image": name, "answer": look.lens.answer}, "predictions": [prediction]}


def _fiftyone(look: Exported) -> Iterator[Fields]:
    for image, name in enumerate(look.images):
        found = []
        for one in _words(look, image):
            found.append({"label": one.text, "bounding_box": _corner(one, (1, 1)), "confidence": one.box_share})
        yield {"filepath": name, "detections": found}


def _coco(look: Exported) -> Iterator[Fields]:
    for image, name in enumerate(look.images):
        for one in _words(look, image):
            place: Fields = {"image_id": name, "category_name": one.text, "bbox": _corner(one, one.size)}
            yield {**place, "score": one.box_share}


_WRITERS: dict[str, Callable[[Exported], Iterator[Any]]] = dict(
    zip(EXPORTS, (_label_studio, _fiftyone, _coco), strict=True)
)
