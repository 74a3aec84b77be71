# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`objects` of ms-swift beside a conversation: names and boxes that fill its `<ref-object>` and `<bbox>` in order."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from grounded_attention.utils.named_types import Columns

from .box_texts import says_nothing
from .messages import text_places
from .raw import Boxes, Phrases, RawPhrase, RowError, read_boxes, structured
from .readings import PIXELS, Reading

_PLACE = re.compile(r"(<ref-object>|<bbox>)")
_TYPES = {"real": PIXELS, "norm1": 1.0, "norm1000": 1000.0, "norm100": 100.0, "norm_1": 1.0, "norm_1000": 1000.0}
_EARLIER = {"caption": "ref", "bbox": "bbox", "bbox_type": "bbox_type", "image": "image_id"}


def fill(messages: Sequence[Any], value: Any, rejected: str) -> list[tuple[RawPhrase, int | None]]:
    """Fills the places, and gives the phrase of each `<bbox>` in order, without words where it has no name, with its
    text if there are no names and that is boxes alone. Those of a rejected answer are the last ones and left out."""
    objects = _objects(value)
    refs = [str(each) for each in objects.get("ref") or []]
    boxes = _boxes(objects)
    pictures = [int(each) for each in objects.get("image_id") or [0] * len(boxes)]
    if len(pictures) != len(boxes):
        found = (len(pictures), len(boxes))
        raise RowError("objects: image_id and bbox", found=found, expected="one image_id for each bbox")
    refs = refs[: len(refs) - rejected.count("<ref-object>")]
    boxes = boxes[: len(boxes) - rejected.count("<bbox>")]
    names: Phrases = []
    owners: list[RawPhrase | None] = []  # of each place of a box: the name directly before it
    alone: list[int | None] = []
    for number, (holder, key) in enumerate(text_places(messages)):
        is_alone = says_nothing(_PLACE.sub("", holder[key]))
        written, *rest = _PLACE.split(holder[key])
        name = None
        for place, gap in zip(rest[::2], rest[1::2], strict=True):
            filled = names if place == "<ref-object>" else owners
            if len(filled) >= len(refs if place == "<ref-object>" else boxes):
                raise RowError(f"objects: too few for {place}", found=value, expected="one for each")
            if place == "<ref-object>":
                words = refs[len(names)]
                name = RawPhrase(words, [], len(written), len(written) + len(words), number)
                names.append(name)
            else:
                sides = [side for box in boxes[len(owners)] for side in box.numbers]
                words = json.dumps([int(side) if side == int(side) else side for side in sides])
                owners.append(name)
                alone.append(number if is_alone else None)
            written += words + gap
            if gap.strip(" ,;:\n"):
                name = None
        holder[key] = written
    if (len(names), len(owners)) not in ((len(refs), len(boxes)), (0, 0), (0, len(boxes))):
        expected = f"{len(refs)} <ref-object>, {len(boxes)} <bbox>"
        raise RowError("objects: names or boxes without a place", found=(len(names), len(owners)), expected=expected)
    if refs:
        alone = []
    named = names or [RawPhrase(each) for each in refs]
    if len(named) == 1:
        owners = [*named] * len(boxes)
    elif not any(owners):
        owners = [*named] if len(named) == len(boxes) else []
    phrases = []
    for owner, text, each, picture in zip_longest(owners, alone, boxes, pictures[: len(boxes)]):
        phrases.append((replace(owner or RawPhrase(), boxes=each, image=picture), text))
    return phrases


def _objects(value: Any) -> Columns:
    """`ref`, `bbox`, `bbox_type` and `image_id`; version 2 has a list of objects, with caption and image."""
    value = structured(value, "objects")
    if isinstance(value, list) and all(isinstance(each, Mapping) and {"caption", "bbox"} <= {*each} for each in value):
        return {name: [each.get(key) for each in value if key in each] for key, name in _EARLIER.items()}
    if not isinstance(value, Mapping) or not {"ref", "bbox"} & value.keys():
        raise RowError("objects beside a conversation", found=value, expected="ref and bbox, in the texts' order")
    return value


def _boxes(objects: Columns) -> list[Boxes]:
    given = objects.get("bbox") or []
    kinds = objects.get("bbox_type")
    boxes = []
    for each, kind in zip(given, kinds if isinstance(kinds, list) and kinds else [kinds] * len(given), strict=True):
        if kind is not None and kind not in [*_TYPES]:
            raise RowError("objects: an unknown bbox_type", found=kind, expected=", ".join(_TYPES))
        scales = (PIXELS, 1.0) if kind is None else (_TYPES[kind],)
        boxes.append(read_boxes(each, "objects, bbox", tuple(Reading("xyxy", scale) for scale in scales)))
    return boxes
