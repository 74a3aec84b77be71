# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Label Studio's exports: tasks with regions in percent of the picture, as `JSON` and as `JSON-MIN`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.image_files import SUFFIXES
from grounded_attention.dataset_scripts.files.streaming import json_elements
from grounded_attention.utils.named_types import Columns

from .detection import UNREAD
from .outlines import around, corners_of
from .raw import RowError, first_of
from .sources import Records, in_words, starts_with

_LOOKED_AT = 100  # tasks; the first ones may have nothing
_PEOPLE = ("annotations", "completions")


def is_label_studio(path: Path) -> bool:
    """Whether a JSON file is an export of Label Studio; its first tasks may have no annotation."""
    if not starts_with(path, b"["):
        return False
    tasks = [each for _, _, each in islice(json_elements(path, "expected JSON"), _LOOKED_AT)]
    whole = {*_PEOPLE, "predictions"}
    tasks = [each for each in tasks if isinstance(each, Mapping)]
    return any(_regions_of(each) or (isinstance(each.get("data"), Mapping) and whole & each.keys()) for each in tasks)


def _regions_of(task: Columns) -> list[Columns]:
    """The regions of a task of JSON-MIN, whose fields stand side by side."""
    lists = [each for each in task.values() if isinstance(each, list) and each and isinstance(each[0], Mapping)]
    named = [each for each in lists if any(str(key).endswith("labels") for key in each[0])]
    return [{"value": region} for each in named for region in each]


def read_label_studio(path: Path) -> Records:
    """A record with `objects` for each task."""
    for _, index, task in json_elements(path, "expected a list of tasks"):
        where = f"task {task.get('id', index) if isinstance(task, Mapping) else index}"
        with in_words("no task of Label Studio", file=path, where=where):
            if not isinstance(task.get("data"), Mapping):
                yield path, where, _row(task, _regions_of(task), [])
                continue
            people = [each for key in _PEOPLE for each in task.get(key) or []]
            valid = [each for each in people if not each.get("was_cancelled")]
            valid.sort(key=lambda each: not each.get("ground_truth"))  # else the first person's is read
            left_out = ["was_cancelled"] * (len(people) - len(valid))
            left_out += ["of a further person"] * len(valid[1:])
            left_out += ["predictions"] * len(task.get("predictions") or [])
            yield path, where, _row(task["data"], valid[0].get("result") or [] if valid else [], left_out)


def _row(data: Columns, regions: Sequence[Columns], left_out: list[str]) -> Columns:
    name = first_of(data, ("image", "img", "ocr", "photo", "url"))
    files = [each for each in data.values() if isinstance(each, str) and each.lower().endswith(SUFFIXES)]
    picture = data[name] if name else next(iter(files), None)
    if not isinstance(picture, str):
        raise RowError("no picture", found=dict(data), expected='"image" in data')
    labels: dict[Any, list[str]] = defaultdict(list)
    words: dict[Any, list[str]] = defaultdict(list)
    shapes: dict[Any, Columns] = {}
    captions = []
    for number, region in enumerate(regions):
        value = region.get("value") or {}
        key = region.get("id") or f"region {number}"
        for name, each in value.items():
            if name.endswith("labels") or name in ("choices", "text"):
                written = words if name == "text" else labels
                written[key] += map(str, each if isinstance(each, list) else [each])
        if any(side in value for side in ("x", "points")):
            shapes[key] = {**region, **value}
        elif "text" in value:
            captions += words[key]
        else:
            left_out.append(f"of the type {'brush' if 'rle' in value else region.get('type')}")
    places = {each.get("to_name") for each in shapes.values()}
    if len(places) > 1 or any(each.get("image_rotation") for each in shapes.values()):
        raise RowError("regions of several pictures, or of a turned one", expected="one picture, image_rotation 0")
    objects: list[Columns] = []
    for key, shape in shapes.items():
        names = [*dict.fromkeys(words[key] or labels[key])]
        left_out += [] if names else ["without a label"]
        if "radiusX" in shape and shape.get("rotation"):
            left_out.append("a turned ellipse")
        else:
            objects += [{"bbox": _box(shape), "category": name} for name in names]
    objects += [{UNREAD: reason} for reason in left_out]
    return {"image": picture, **({"caption": captions[0]} if captions else {}), "objects": objects}


def _box(shape: Columns) -> list[float]:
    """x, y, width, height in percent of what a region encloses, also if it is turned about its corner."""
    if "points" in shape:
        points = shape["points"]
    else:
        x = float(shape["x"])
        y = float(shape["y"])
        if "keypointlabels" in shape and not ("height" in shape and "rectanglelabels" in shape):
            return [x, y]
        if "radiusX" in shape:
            across = float(shape["radiusX"])
            down = float(shape["radiusY"])
            points = corners_of(x - across, y - down, 2 * across, 2 * down)
        else:
            points = corners_of(x, y, float(shape["width"]), float(shape["height"]))
    # Percent of both sides: turned in shares of the width, and brought back.
    ratio = float(shape.get("original_height") or 1) / float(shape.get("original_width") or 1)
    scaled = [(float(x), float(y) * ratio) for x, y in points]
    x1, y1, x2, y2 = around(scaled, float(shape.get("rotation") or 0), scaled[0], (100.0, 100 * ratio))
    return [x1, y1 / ratio, x2 - x1, (y2 - y1) / ratio]
