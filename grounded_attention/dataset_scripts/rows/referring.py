# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with a text, or several, and one thing that each of them means: referring expressions, screens, regions."""

from collections.abc import Mapping, Sequence
from typing import Any

from grounded_attention.dataset_scripts.rows.raw import hull

from .columns import (
    TEXT_NAMES,
    XYWH_PIXELS,
    XYWH_SHARES,
    XYXY_PIXELS,
    XYXY_SHARES,
    Columns,
    Context,
    boxes_of,
    each_text,
    has_boxes,
)
from .masks import MASK_NAMES
from .questions import evidence_of
from .raw import BOX_NAMES, RowError, Rows, first_of, found_in, items, read_boxes, size_of, structured, texts_of
from .readings import Readings

_ALL = (*XYXY_SHARES, *XYXY_PIXELS, *XYWH_PIXELS)
_SCREEN = ("instruction",)
_SETS: Sequence[tuple[set[str], Readings, Sequence[str]]] = (
    ({"raw_anns"}, XYXY_PIXELS, ("captions", "sentences", "raw_sentences")),  # jxu124/refcoco and its siblings
    ({"ref_id", "sentences", "captions"}, XYXY_PIXELS, ("captions",)),
    ({"ori_category_id"}, XYWH_PIXELS, ("caption",)),  # Ref-L4
    ({"bbox_id", "bbox_area"}, XYWH_PIXELS, ("caption",)),
    ({"bbox_area", "is_rewrite"}, XYWH_PIXELS, ("caption",)),
    ({"proposal"}, XYWH_SHARES, TEXT_NAMES),  # OpenRef
    ({"img_path", "expression", "dataset_name"}, XYXY_PIXELS, TEXT_NAMES),  # Visual-CoT's referring expressions
    ({"instruction", "box_coordinates"}, XYWH_PIXELS, _SCREEN),  # OSWorld-G
    ({"instruction", "ui_type"}, XYXY_PIXELS, _SCREEN),  # ScreenSpot-Pro; v2 of GUI-Actor
    ({"instruction", "img_size"}, XYXY_PIXELS, _SCREEN),
    ({"instruction", "application"}, XYXY_PIXELS, _SCREEN),
    ({"instruction", "img_filename", "data_source"}, (*XYWH_PIXELS, *XYXY_SHARES), _SCREEN),  # v2 of OS-Copilot
    ({"instruction", "data_type", "data_source"}, _ALL, _SCREEN),  # v1
    ({"instruction", "img_filename"}, _ALL, _SCREEN),  # OS-Atlas
    ({"instruction"}, (), _SCREEN),
)


def matches(record: Columns) -> bool:
    return (has_boxes(record) or not record.keys().isdisjoint(MASK_NAMES)) and has_text(record)


def has_text(record: Columns) -> bool:
    return any(isinstance(record.get(name), (str, list)) for name in TEXT_NAMES)


def has_text_or_question(record: Columns) -> bool:
    return has_text(record) or isinstance(record.get("question"), str)


def _known(record: Columns) -> tuple[Readings, Sequence[str]]:
    """How a public set writes its boxes, and the columns of its texts, by columns that only it has."""
    if isinstance(record.get("answer"), list) and {"question_id", "segmentation", "iscrowd"} & record.keys():
        return XYWH_PIXELS, ("answer",)  # lmms-lab/RefCOCO and its siblings
    for columns, readings, names in _SETS:
        if columns <= record.keys():
            return readings, names
    return (), TEXT_NAMES


def read(record: Columns, context: Context) -> Rows:
    readings, names = _known(record)
    name = first_of(record, names)
    if record.get("box_type") == "refusal":  # OSWorld-G
        record = {**record, "box_coordinates": None}
    elif record.get("box_type") == "polygon":
        outline = structured(record["box_coordinates"], "box_coordinates")
        readings = XYXY_PIXELS
        record = {**record, "box_coordinates": hull(outline)}
    raw = structured(record.get("raw_anns"), "raw_anns")
    about = structured(record.get("raw_image_info"), "raw_image_info")
    size = size_of(about) if isinstance(about, Mapping) else size_of(record)
    boxes = evidence_of(record, readings)
    if isinstance(raw, Mapping) and len(boxes) == 1 and raw.get("bbox"):
        x, y, w, h = read_boxes(raw["bbox"], "raw_anns, bbox")[0].numbers
        boxes[0].hull = (x, y, x + w, y + h)
    texts = texts_of(record[name], name) if name else []
    if not texts or name is None:
        raise RowError("no text", found=list(record), expected=f"a text or a list of texts: {', '.join(names[:8])}")
    if isinstance(record[name], list):
        listed = record[name]
    else:
        listed = texts
    if len(boxes) > 1 and len(listed) > 1:
        if len(boxes) != len(listed):
            found = (len(listed), len(boxes))
            raise RowError(f"{name} and boxes", found=found, expected="a text, or one for each box")
        for text, box in zip(listed, boxes, strict=True):
            yield from each_text(record, texts_of(text, name), [box], size=size)
        return
    yield from each_text(record, texts, boxes, _screen_types(record), size=size)


# Several things of a picture


_THING_TEXTS = ("sentences", "sentence", "instruction", "phrase", "text", "caption", "expression", "label")


def has_samples(record: Columns) -> bool:
    return _are_things(record.get("samples", record.get("refs")))


def has_elements(record: Columns) -> bool:
    return _are_things(record.get("elements", record.get("regions")))


def _are_things(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)


def read_things(record: Columns, context: Context) -> Rows:
    """moondream/refcoco-m's `samples`; OS-Atlas's `elements`, shares of the picture; Visual Genome's `regions`."""
    name = next(each for each in ("samples", "refs", "elements", "regions") if each in record)
    about = {key: value for key, value in record.items() if key != name}
    if "image_id" not in about and "image" not in about and about.get("id") is not None:
        about["image_id"] = about["id"]
    for number, thing in enumerate(items(record[name], name)):
        expected = "instruction, phrase or sentences (VIA: export COCO JSON)"
        key = found_in(thing, _THING_TEXTS, f"{name}, element {number}: no text", expected)
        boxes = boxes_of(thing, _readings_of(thing, name))
        yield from each_text(about, texts_of(thing[key], key), boxes)


def _readings_of(thing: Columns, name: str) -> Readings:
    """How a known set writes the boxes of such a list."""
    if name == "elements" or (name == "regions" and "box" in thing):
        return XYXY_SHARES
    if "sentences" in thing and {"mask", "label", "supercategory"} & thing.keys():
        return XYWH_PIXELS
    if name == "regions" and not first_of(thing, BOX_NAMES):
        return XYWH_PIXELS
    return ()


# ScreenSpot's platforms of its sources.
_PLATFORMS = {"windows": "desktop", "macos": "desktop", "ios": "mobile", "android": "mobile"}
_PLATFORMS |= dict.fromkeys(("tool", "shop", "gitlab", "forum"), "web")


def _screen_types(record: Columns) -> list[str]:
    """The groups of the published tables: platform or field, and text or icon; OSWorld-G's list."""
    if isinstance(record.get("GUI_types"), list):
        return [str(each) for each in record["GUI_types"]]
    source = record.get("group") or _PLATFORMS.get(str(record.get("data_source")))
    kind = record.get("ui_type") or record.get("data_type")
    named = " ".join(str(each) for each in (source, kind) if each)
    if named:
        return [named]
    return []
