# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of annotation tools that write their boxes in one way alone: LabelMe, VIA, CreateML."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from . import detection
from .columns import XYXY_PIXELS, Columns, Context
from .outlines import around, around_ellipse
from .raw import RawRow, RowError, items, read_boxes
from .readings import PIXELS, Reading

_CREATE_ML = ("annotations", "annotation")


def matches(record: Columns) -> bool:
    return _is_labelme(record) or _is_via(record) or _create_ml_column(record) is not None


def read(record: Columns, context: Context) -> Iterator[RawRow]:
    """A row with `objects`, read as one of detection."""
    readings, skipped = XYXY_PIXELS, Counter[str]()
    if _is_labelme(record):
        objects = [*_labelme_objects(record, skipped)]
        sides = {"width": record.get("imageWidth"), "height": record.get("imageHeight")}
        record = {"image": record["imagePath"], **sides, **record}
    elif _is_via(record):
        objects = [*_via_objects(record, skipped)]
    else:
        name = _create_ml_column(record) or ""
        readings = (Reading("cxcywh", PIXELS),)
        objects = [_create_ml_object(each) for each in items(record[name], name)]
    more = {key: value for key, value in record.items() if key not in ("shapes", "regions", *_CREATE_ML)}
    yield from detection.read({**more, "objects": objects, "skipped": skipped}, replace(context, readings=readings))


def _is_labelme(record: Columns) -> bool:
    return {"shapes", "imagePath"} <= record.keys()


def _labelme_objects(record: Columns, skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    """A box around the points of each shape that has an area, and points."""
    for number, shape in enumerate(items(record["shapes"], "shapes")):
        place = f"shapes, shape {number}: points"
        kind = shape.get("shape_type") or "polygon"
        points = [each.numbers for each in read_boxes(shape.get("points"), place)]
        if not points or any(len(each) != 2 for each in points):
            raise RowError(f"bad {place}", found=shape.get("points"), expected="a list of x, y in pixels")
        if kind == "circle" and len(points) == 2:  # its centre, and a point on it
            box = around_ellipse(*points[0], *[math.dist(*points)] * 2)
        elif kind in ("rectangle", "polygon", "rotation", "mask", "point") and (len(points) == 1) == (kind == "point"):
            box = around(points)[: 2 * min(len(points), 2)]
        else:
            skipped[f"of the type {kind} with {len(points)} points"] += 1
            continue
        yield {"label": shape.get("label"), "bbox": box}


def _is_via(record: Columns) -> bool:
    return "filename" in record and "regions" in record and "file_attributes" in record


def _via_objects(record: Columns, skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    regions = record["regions"] or []
    for each in regions.values() if isinstance(regions, Mapping) else regions:
        shape, kind = each["shape_attributes"], each["shape_attributes"]["name"]
        names = [value for value in each["region_attributes"].values() if isinstance(value, str) and value.strip()]
        if len(names) != 1:
            found = each["region_attributes"]
            raise RowError("no name of a region", found=found, expected="region_attributes with one text")
        if kind == "rect":
            box = [shape["x"], shape["y"], shape["x"] + shape["width"], shape["y"] + shape["height"]]
        elif kind == "circle":
            box = around_ellipse(shape["cx"], shape["cy"], shape["r"], shape["r"])
        elif kind == "polygon":
            box = around(zip(shape["all_points_x"], shape["all_points_y"], strict=True))
        elif kind == "point":
            box = [shape["cx"], shape["cy"]]
        else:
            skipped[f"of the type {kind}"] += 1
            continue
        yield {"label": names[0], "bbox": box}


def _create_ml_column(record: Columns) -> str | None:
    """The column whose objects have `coordinates` with a centre and sides."""
    lists = {key: record[key] for key in _CREATE_ML if isinstance(record.get(key), list)}
    return next((key for key, each in lists.items() if any(_has_centre(value) for value in each)), None)


def _has_centre(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("coordinates"), Mapping)


def _create_ml_object(each: Mapping[str, Any]) -> dict[str, Any]:
    found = each.get("coordinates")
    if not isinstance(found, Mapping) or not {"x", "y", "width", "height"} <= found.keys():
        raise RowError("bad coordinates", found=found, expected="x and y of the centre, width and height in pixels")
    return {**each, "bbox": [found[side] for side in ("x", "y", "width", "height")]}
