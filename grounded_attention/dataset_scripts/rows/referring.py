# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with a text, or several, and one thing that each of them means: referring expressions, screens, regions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .columns import (
    IMAGE_NAMES,
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
from .outlines import around
from .questions import evidence_of
from .raw import (
    BOX_NAMES,
    SIDE_NAMES,
    RawRow,
    RowError,
    first_of,
    items,
    read_boxes,
    size_of,
    structured,
    texts_of,
)
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
    return (has_boxes(record) or any(name in record for name in MASK_NAMES)) and has_text(record)


def has_text(record: Columns) -> bool:
    return any(isinstance(record.get(name), (str, list)) for name in TEXT_NAMES)


def has_text_alone(record: Columns) -> bool:
    """Whether a record has a text and no column that may be one of boxes under another name."""
    known = (*TEXT_NAMES, *IMAGE_NAMES, *BOX_NAMES)
    others = [value for key, value in record.items() if key not in known]
    return (has_text(record) or isinstance(record.get("question"), str)) and not any(map(_looks_like_boxes, others))


def _looks_like_boxes(value: Any) -> bool:
    if isinstance(value, list) and value and isinstance(value[0], (list, Mapping)):
        return _looks_like_boxes(value[0])
    if isinstance(value, Mapping):
        return any({*sides} <= value.keys() for _, sides in SIDE_NAMES) or any(name in value for name in BOX_NAMES)
    return isinstance(value, list) and len(value) == 4 and all(isinstance(each, (int, float)) for each in value)


def _known(record: Columns) -> tuple[Readings, Sequence[str]]:
    """How a public set writes its boxes, and the columns of its texts, by columns that only it has."""
    if isinstance(record.get("answer"), list) and {"question_id", "segmentation", "iscrowd"} & record.keys():
        return XYWH_PIXELS, ("answer",)  # lmms-lab/RefCOCO and its siblings
    return next((known for columns, *known in _SETS if columns <= record.keys()), ((), TEXT_NAMES))  # type: ignore


def read(record: Columns, context: Context) -> Iterator[RawRow]:
    readings, names = _known(record)
    name = first_of(record, names)
    if record.get("box_type") == "refusal":  # OSWorld-G
        record = {**record, "box_coordinates": None}
    elif record.get("box_type") == "polygon":
        sides = structured(record["box_coordinates"], "box_coordinates")
        readings, record = (
            XYXY_PIXELS,
            {**record, "box_coordinates": around(zip(sides[::2], sides[1::2], strict=True))},
        )
    raw, about = (structured(record.get(key), key) for key in ("raw_anns", "raw_image_info"))
    size = size_of(about) if isinstance(about, Mapping) else size_of(record)
    boxes = evidence_of(record, readings)
    if isinstance(raw, Mapping) and len(boxes) == 1 and raw.get("bbox"):
        x, y, w, h = read_boxes(raw["bbox"], "raw_anns, bbox")[0].numbers
        boxes[0].hull = (x, y, x + w, y + h)
    texts = texts_of(record[name], name) if name else []
    if not texts or name is None:
        raise RowError("no text", found=list(record), expected=f"a text or a list of texts: {', '.join(names[:8])}")
    listed = record[name] if isinstance(record[name], list) else texts
    if len(boxes) > 1 and len(listed) > 1:
        if len(boxes) != len(listed):
            found = (len(listed), len(boxes))
            raise RowError(f"{name} and boxes", found=found, expected="a text, or one for each box")
        for text, box in zip(listed, boxes, strict=True):
            yield from each_text(record, texts_of(text, name), [box], size=size)
        return
    yield from each_text(record, texts, boxes, _screen_types(record), size=size)


# Several things of a picture


def has_samples(record: Columns) -> bool:
    value = record.get("samples", record.get("refs"))
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)


def read_samples(record: Columns, context: Context) -> Iterator[RawRow]:
    """moondream/refcoco-m: objects with sentences, a box x, y, width, height and a mask."""
    name = "samples" if "samples" in record else "refs"
    for each in items(record[name], name):
        texts = texts_of(each.get("sentences", each.get("sentence", each.get("label"))), f"{name}, sentences")
        is_known = "sentences" in each and {"mask", "label", "supercategory"} & each.keys()
        yield from each_text(record, texts, boxes_of(each, XYWH_PIXELS if is_known else ()))


def has_elements(record: Columns) -> bool:
    value = record.get("elements", record.get("regions"))
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)


def read_elements(record: Columns, context: Context) -> Iterator[RawRow]:
    """OS-Atlas's `elements`, shares of the picture; Visual Genome's `regions`, x, y, width, height in pixels."""
    name = "elements" if "elements" in record else "regions"
    about = {key: value for key, value in record.items() if key != name}
    if "image_id" not in about and "image" not in about and about.get("id") is not None:
        about["image_id"] = about["id"]
    for number, each in enumerate(items(record[name], name)):
        key = first_of(each, ("instruction", "phrase", "text", "caption", "expression"))
        if key is None:
            raise RowError(
                f"{name}, element {number}: no text",
                found=each,
                expected="instruction or phrase (VIA: export COCO JSON)",
            )
        readings: Readings = XYXY_SHARES if name == "elements" or "box" in each else XYWH_PIXELS
        if first_of(each, BOX_NAMES) and name == "regions" and "box" not in each:
            readings = ()
        yield from each_text(about, texts_of(each[key], key), boxes_of(each, readings))


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
    return [named] if named else []
