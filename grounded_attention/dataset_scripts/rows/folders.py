# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Formats of annotation tools: JSON of COCO and Label Studio; XML of Pascal VOC and CVAT; folders of YOLO,
`imagefolder` and V*.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from defusedxml import ElementTree
from defusedxml.common import DefusedXmlException

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError, refuse_if
from grounded_attention.dataset_scripts.files.image_files import SUFFIXES
from grounded_attention.dataset_scripts.files.records import json_elements
from grounded_attention.utils.bounded_files import parse_yaml, read_json, read_text
from grounded_attention.utils.named_types import Columns

from .detection import UNREAD
from .pictures import own_files
from .probes import is_amber, open_amber
from .raw import RowError, around, corners_of, first_of, hull, items, read_boxes
from .readings import MARGIN, PIXELS, Reading
from .sources import (
    FILES,
    Parts,
    Records,
    Source,
    in_words,
    open_files,
    split_name,
    split_of,
    starts_with,
)

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
    lists = []
    for each in task.values():
        if isinstance(each, list) and each and isinstance(each[0], Mapping):
            lists.append(each)
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
    refuse_if(
        len(places) > 1 or any(each.get("image_rotation") for each in shapes.values()),
        "regions of several pictures, or of a turned one",
        RowError,
        expected="one picture, image_rotation 0",
    )
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


COCO = "COCO"
YOLO = "YOLO"
VOC = "XML of Pascal VOC or CVAT"
LABEL_STUDIO = "Label Studio"
_READINGS = {
    COCO: (Reading("xywh", PIXELS),),
    YOLO: (Reading("cxcywh", 1.0),),
    VOC: (Reading("xyxy", PIXELS),),
    LABEL_STUDIO: (Reading("xywh", 100.0),),
}
_METADATA = ("metadata.parquet", "metadata.csv", "metadata.jsonl")  # of one folder the last one is read


def open_folder(folder: Path) -> Source:
    """Opens a folder by what is in it."""
    if is_amber(folder):
        return open_amber(folder)
    files = own_files(folder, (*FILES, ".xml", ".txt", ".names", ".yaml", ".yml"))
    metadata = {path.parent: path for name in _METADATA for path in files if path.name == name}
    if metadata:
        return open_files(sorted(metadata.values()), folder, str(folder))
    settings = next((path for path in files if path.stem == "data" and path.suffix in (".yaml", ".yml")), None)
    if settings:
        return _open_yolo(settings.parent, parse_yaml(read_text(settings), settings))
    coco = [path for path in files if path.suffix == ".json" and _is_coco(path)]
    if coco:
        parts: Parts = defaultdict(list)
        for path in coco:
            parts[split_of(path, folder)].append(partial(_coco, path))
        return _format(COCO, folder, dict(parts))
    xml = [path for path in files if path.suffix == ".xml"]
    if xml:
        return _open_xml(folder, xml)
    names = next((path for path in files if path.name in ("classes.txt", "obj.names")), None)
    if names:
        return _open_yolo(folder, {"names": _lines(names)})
    files = [path for path in files if path.suffix.lower() in FILES]
    beside = [path for path in files if path.suffix == ".json" and _picture_beside(path)]
    if beside and len(beside) == len(files):
        return Source(str(folder), {"": [partial(_of_one, path, folder) for path in beside]}, folder)
    if len(files) == 1:
        return open_file(files[0])
    if files and len({path.suffix for path in files}) == 1:
        return open_files(files, folder, str(folder))
    raise MissingFileError(
        "no data that are known",
        file=folder,
        found=[path.name for path in files[:5]] or None,
        expected=f"one file of {', '.join(FILES)}, {_METADATA[-1]}, data.yaml (YOLO), XML (Pascal VOC) or COCO JSON",
        hint="give the file itself",
    )


def open_file(path: Path) -> Source:
    """Opens one file; a JSON file may be COCO's or Label Studio's, and XML is Pascal VOC's or CVAT's."""
    if path.suffix.lower() == ".xml":
        return _open_xml(path.parent, [path])
    if path.suffix.lower() == ".json":
        if _is_coco(path):
            return _format(COCO, path.parent, {"": [partial(_coco, path)]})
        if is_label_studio(path):
            return _format(LABEL_STUDIO, path.parent, {"": [partial(read_label_studio, path)]})
    return open_files([path], path.parent, str(path))


def _format(kind: str, folder: Path, parts: Parts) -> Source:
    return Source(str(folder), parts, folder, kind=kind, readings=_READINGS[kind])


def _is_coco(path: Path) -> bool:
    """Whether a JSON object has the members of COCO."""
    if not starts_with(path, b"{"):
        return False
    text = path.read_bytes()
    return b'"images"' in text and b'"annotations"' in text and (b'"file_name"' in text or b'"coco_url"' in text)


def _coco(path: Path) -> Records:
    whole = read_json(path)
    lists: dict[str, list[Columns]] = {}
    for key in ("images", "annotations", "categories"):
        with in_words("no COCO", file=path, where=key):
            lists[key] = items(whole.get(key) or [], key)
    images = _by_id(path, "images", lists["images"])
    names = _by_id(path, "categories", lists["categories"])
    objects: dict[Any, list[Columns]] = defaultdict(list)
    for number, each in enumerate(lists["annotations"]):
        with in_words("no COCO", file=path, where=f"annotations, element {number}"):
            image_id = each.get("image_id")
            category = each.get("category_id")
            refuse_if(
                image_id not in images, "an unknown image_id", RowError, found=image_id, expected="an id of images"
            )
            if "category_id" in each and names and category not in names and "caption" not in each:
                expected = f"an id of categories: {', '.join(map(str, names))}"
                raise RowError("an unknown category_id", found=category, expected=expected)
            for part in each.get("segments_info") or [each]:  # of panoptic annotations
                name = names.get(part.get("category_id"), {}).get("name")
                named = {} if name is None else {"category": str(name)}
                objects[image_id].append({**_upright(part, images[image_id]), **named})
    for number, (image_id, image) in enumerate(images.items()):
        where = f"images, element {number}"
        file = image.get("file_name") or image.get("coco_url")
        if not isinstance(file, str):
            raise DataError("no file_name", file=path, where=where, found=dict(image))
        about = {key: image[key] for key in ("width", "height", "caption") if image.get(key) is not None}
        yield path, where, {"image": file, "image_id": image_id, **about, "objects": objects[image_id]}


def _by_id(path: Path, key: str, entries: Sequence[Columns]) -> dict[Any, Columns]:
    named: dict[Any, Columns] = {}
    for number, each in enumerate(entries):
        with in_words("no COCO", file=path, where=f"{key}, element {number}"):
            if not isinstance(each.get("id"), Hashable):
                raise RowError("bad id", found=each["id"], expected="a number or a text")
            if named.setdefault(each.get("id"), each) != each:
                expected = "an id of its own: an earlier element has it"
                raise RowError("an id that is there twice", found=each.get("id"), expected=expected)
    return named


def _upright(part: Columns, image: Columns) -> Columns:
    """CVAT writes a turned rectangle as it is before it is turned about its middle, with the angle beside it."""
    about = part.get("attributes")
    if not isinstance(about, Mapping) or not about.get("rotation"):
        return part
    size = [float(image.get(side) or math.inf) for side in ("width", "height")]
    numbers = []
    for box in read_boxes(part.get("bbox"), "bbox"):
        numbers.extend(box.numbers)
    refuse_if(len(numbers) != 4, "bad bbox", RowError, found=numbers, expected="x, y, width, height")
    x1, y1, x2, y2 = around(corners_of(*numbers), float(about["rotation"]), size=size)
    return {"category_id": part.get("category_id"), "bbox": [x1, y1, x2 - x1, y2 - y1]}


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


# YOLO


def _open_yolo(folder: Path, settings: Any) -> Source:
    """`data.yaml` and, for each picture of a split, a text file with a line for each object."""
    names = settings.get("names") if isinstance(settings, Mapping) else None
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, Mapping) or not names:
        raise DataError("no names of classes", file=folder / "data.yaml", found=names, expected="a list names: [...]")
    names = {int(key): str(value) for key, value in names.items()}
    points = math.prod(settings.get("kpt_shape") or [0])  # numbers with which a line of a pose goes on
    pictures: dict[str, list[Path]] = defaultdict(list)
    root = folder / str(settings.get("path") or "")
    for key in ("train", "val", "valid", "test"):
        places = settings.get(key) or []
        for place in [places] if isinstance(places, str) else places:
            pictures[split_name(key)] += _yolo_pictures(folder, root, place)
    if not any(pictures.values()):
        for path in own_files(folder, SUFFIXES):
            pictures[split_of(path.parent / "x", folder)].append(path)
    parts: Parts = {}
    for split, paths in pictures.items():
        if paths:
            parts[split] = [partial(_yolo, paths, names, folder, points)]
    return _format(YOLO, folder, parts)


def _yolo_pictures(folder: Path, root: Path, place: str) -> list[Path]:
    """The pictures of a split: a folder, or a text file with a line each. Exports name folders of other machines."""
    tail = place.replace("\\", "/").lstrip("./")
    for path in (root / place, root / tail, folder / tail, folder / Path(tail).parent):
        if path.is_dir():
            return own_files(path, SUFFIXES)
        if path.is_file() and path.suffix == ".txt":
            return [path.parent / line if (path.parent / line).is_file() else folder / line for line in _lines(path)]
    return []


def _yolo(pictures: Sequence[Path], names: Mapping[int, str], folder: Path, points: int) -> Records:
    for picture in pictures:
        before, images, behind = picture.absolute().as_posix().rpartition("/images/")
        labels = Path(before, "labels", behind).with_suffix(".txt")
        if not images or not labels.is_file():
            labels = picture.with_suffix(".txt")
        objects = []
        lines = read_text(labels).splitlines() if labels.is_file() else []
        for number, line in enumerate(lines, 1):
            with in_words("no object", file=labels, where=f"line {number}"):
                if line.strip():
                    objects.append(_yolo_object(line.split(), names, points))
        shown = picture.relative_to(folder) if picture.is_relative_to(folder) else picture
        yield labels, "its lines", {"image": str(shown), "objects": objects}


def _yolo_object(cells: Sequence[str], names: Mapping[int, str], points: int) -> Columns:
    """A box, perhaps with points and a confidence or an id behind it, or the corners of a polygon."""
    label, *numbers = map(float, cells)
    if label not in names:
        raise RowError("an unknown class", found=cells[0], expected=f"a class from {min(names)} to {max(names)}")
    name = names[int(label)]
    beside = len(numbers) - 4 - points
    if beside in (0, 1):
        return {"bbox": numbers[:4], "keypoints": numbers[4:][:points], "score": beside, "category": name}
    # A tracker writes a box, its confidence and an id: six numbers too.
    is_tracked = len(numbers) == 6 and numbers[5] % 1 == 0
    inside = all(-MARGIN <= each <= 1 + MARGIN for each in numbers)
    if points or len(numbers) < 6 or len(numbers) % 2 or is_tracked or not inside:
        expected = "a class, then centre x, centre y, width, height in [0, 1] (or three corners of a polygon, or more)"
        raise RowError("a line of other numbers", found=" ".join(cells), expected=expected)
    x1, y1, x2, y2 = hull(numbers)
    return {"bbox": [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1], "category": name}


# Pascal VOC, CVAT


def _open_xml(folder: Path, files: Sequence[Path]) -> Source:
    parts: dict[str, list[Path]] = defaultdict(list)
    listed: dict[str, str] = {}
    for split in ("test", "val", "train"):
        for path in folder.rglob(f"ImageSets/Main/{split}.txt"):
            listed |= dict.fromkeys(read_text(path).split(), split)
    for path in files:
        parts[split_name(listed.get(path.stem) or split_of(path.parent / "x", folder))].append(path)
    return _format(VOC, folder, {split: [partial(_xml, paths, folder)] for split, paths in parts.items()})


def _xml(files: Sequence[Path], folder: Path) -> Records:
    for path in files:
        try:
            root = ElementTree.fromstring(path.read_bytes())
        except (ElementTree.ParseError, DefusedXmlException, ValueError) as error:
            raise DataError(f"no XML ({error})", file=path, hint="get it again") from None
        images = root.findall("image")
        if root.tag == "annotation":
            with in_words("no objects", file=path):
                row = _voc_row(root, path, folder)
            yield path, "its objects", row
        elif root.tag != "annotations" or not images:
            expected = "<annotation> of Pascal VOC, or <annotations> of CVAT for images 1.1"
            found = [root.tag, *sorted({each.tag for each in root})]
            raise DataError("XML of another kind", file=path, found=found, expected=expected)
        for image in images:
            where = f"image {image.get('name')}"
            with in_words("no image of CVAT", file=path, where=where):
                row = _cvat_row(image)
            yield path, where, row


def _voc_row(root: Any, path: Path, folder: Path) -> Columns:
    objects = []
    for each in root.iter("object"):
        box = {side: each.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")}
        beside = {key: each.findtext(key) for key in ("difficult", "occluded", "truncated")}
        objects.append({**beside, "bbox": box, "category": each.findtext("name")})
    name = (root.findtext("filename") or "").strip()
    size = [root.findtext(f"size/{side}") for side in ("width", "height")]
    if all(size) and "0" not in size:
        about = dict(zip(("width", "height"), size, strict=True))
    else:
        about = {}
    return {"image": _voc_picture(path, name, folder), **about, "objects": objects}


def _cvat_row(image: Any) -> Columns:
    objects: list[Columns] = []
    size = [float(image.get(side)) for side in ("width", "height")]
    for shape in image:
        about = {"category": shape.get("label"), "occluded": shape.get("occluded")}
        if shape.tag == "box":
            x1, y1, x2, y2 = (float(shape.get(side)) for side in ("xtl", "ytl", "xbr", "ybr"))
            turned = around(corners_of(x1, y1, x2 - x1, y2 - y1), float(shape.get("rotation") or 0), size=size)
            objects.append({**about, "bbox": turned})
        elif shape.tag == "polygon":
            points = shape.get("points").replace(";", ",").split(",")
            objects.append({**about, "polygon": [float(each) for each in points]})
        else:
            objects.append({UNREAD: f"of the type {shape.tag}"})
    return {"image": image.get("name"), "width": size[0], "height": size[1], "objects": objects}


def _voc_picture(path: Path, name: str, folder: Path) -> str:
    """The picture of a file: in `JPEGImages`, beside it, or of its own name, as the name in it may be an old one."""
    names = [name, *(path.stem + suffix for suffix in SUFFIXES)]
    parents = (path.parent.parent / "JPEGImages", path.parent.parent / "images", path.parent)
    places = []
    for parent in parents:
        for each in names:
            if each:
                places.append(parent / Path(each).name)
    found = next(filter(Path.is_file, places), None)
    if found:
        return str(found.relative_to(folder))
    return name or path.stem


# One JSON file for each picture


def _picture_beside(path: Path) -> Path | None:
    for suffix in SUFFIXES:
        picture = path.with_suffix(suffix)
        if picture.is_file():
            return picture
    return None


def _of_one(path: Path, folder: Path) -> Records:
    value = read_json(path)
    if not isinstance(value, Mapping):
        raise DataError("not a row", file=path, found=value, expected="an object")
    picture = _picture_beside(path)
    yield path, "the object", {"image": str(picture.relative_to(folder)) if picture else path.stem, **value}
