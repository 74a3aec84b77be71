# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Formats of annotation tools: COCO and Label Studio JSON; folders of YOLO, Pascal VOC, `imagefolder` and V*."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from defusedxml import ElementTree
from defusedxml.common import DefusedXmlException

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.image_files import SUFFIXES
from grounded_attention.dataset_scripts.files.streaming import json_elements
from grounded_attention.utils.bounded_files import parse_yaml, read_json, read_text

from .probes import is_amber, open_amber
from .readings import PIXELS, Reading
from .sources import FILES, SAME_SPLIT, Record, Source, open_files, split_of

COCO, YOLO, VOC, LABEL_STUDIO = "COCO", "YOLO", "Pascal VOC", "Label Studio"
_READINGS = {
    COCO: (Reading("xywh", PIXELS),),
    YOLO: (Reading("cxcywh", 1.0),),
    VOC: (Reading("xyxy", PIXELS),),
    LABEL_STUDIO: (Reading("xywh", 100.0),),
}
_METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")


def open_folder(folder: Path) -> Source:
    """Opens a folder by what is in it."""
    if is_amber(folder):
        return open_amber(folder)
    if metadata := _below(folder, _METADATA):
        return open_files(metadata, folder, str(folder))
    if settings := next((folder / name for name in ("data.yaml", "data.yml") if (folder / name).is_file()), None):
        return _open_yolo(folder, parse_yaml(read_text(settings), settings))
    if coco := [path for path in sorted(folder.rglob("*.json")) if _is_coco(path)]:
        parts: dict[str, list[Any]] = defaultdict(list)
        for path in coco:
            parts[split_of(path, folder)].append(partial(_coco, path))
        return _format(COCO, folder, dict(parts))
    if xml := sorted(folder.rglob("*.xml")):
        return _open_voc(folder, xml)
    if names := next((path for path in (*folder.glob("classes.txt"), *folder.rglob("obj.names"))), None):
        lines = [line.strip() for line in read_text(names).splitlines() if line.strip()]
        return _open_yolo(folder, {"names": lines})
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in FILES)
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
        expected=f"one file of {', '.join(FILES)}, {_METADATA[0]}, data.yaml (YOLO), XML (Pascal VOC) or COCO JSON",
        hint="give the file itself",
    )


def open_file(path: Path) -> Source:
    """Opens one file; a JSON file may be COCO's or Label Studio's."""
    if path.suffix.lower() == ".json":
        if (known := recognise_json(path)) is not None:
            return known
    return open_files([path], path.parent, str(path))


def _below(folder: Path, names: Sequence[str]) -> list[Path]:
    """Files of these names in a folder and the folders in it, the first name of each folder."""
    files = [path for name in names for path in sorted(folder.rglob(name))]
    return list({path.parent: path for path in reversed(files)}.values())[::-1]


def _format(kind: str, folder: Path, parts: dict[str, list[Any]]) -> Source:
    return Source(str(folder), parts, folder, kind=kind, readings=_READINGS[kind])


def recognise_json(path: Path) -> Source | None:
    """Opens a JSON file of COCO or of Label Studio; None for another one."""
    if _is_coco(path):
        return _format(COCO, path.parent, {"": [partial(_coco, path)]})
    first = _first_element(path)
    if isinstance(first, Mapping):
        if isinstance(first.get("annotations") or first.get("completions"), list) and isinstance(
            first.get("data"), Mapping
        ):
            return _format(LABEL_STUDIO, path.parent, {"": [partial(_label_studio, path)]})
        if any(isinstance(value, list) and _is_region(value) for value in first.values()):
            return _format(LABEL_STUDIO, path.parent, {"": [partial(_label_studio_short, path)]})
    return None


def _first_element(path: Path) -> Any:
    with path.open("rb") as file:
        if not file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            return None
    return next((element for _, _, element in json_elements(path, "expected JSON")), None)


def _is_coco(path: Path) -> bool:
    """Whether a JSON object has the members of COCO; only its first elements are parsed."""
    with path.open("rb") as file:
        start = file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start.startswith(b"{"):
        return False
    text = path.read_bytes()
    return b'"images"' in text and b'"annotations"' in text and b'"file_name"' in text


def _coco(path: Path) -> Iterator[Record]:
    whole = read_json(path)
    lists: dict[str, list[Any]] = {
        key: whole.get(key) or [] for key in ("images", "annotations", "categories") if isinstance(whole, Mapping)
    }
    for key, entries in lists.items():
        if not isinstance(entries, list) or not all(isinstance(each, Mapping) for each in entries):
            raise DataError(f"bad {key}", file=path, expected="a list of objects")
        named: dict[Any, Any] = {}
        for number, each in enumerate(entries if key != "annotations" else ()):
            if named.setdefault(each.get("id"), each) != each:
                where, expected = f"{key}, element {number}", "an id of its own: an earlier element has it"
                raise DataError(
                    "an id that is there twice", file=path, where=where, found=each.get("id"), expected=expected
                )
    names = {each.get("id"): str(each.get("name")) for each in lists["categories"]}
    images = {each.get("id"): each for each in lists["images"]}
    objects: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for number, each in enumerate(lists["annotations"]):
        where = f"annotations, element {number}"
        if each.get("image_id") not in images:
            found = each.get("image_id")
            raise DataError("an unknown image_id", file=path, where=where, found=found, expected="an id of images")
        if "category_id" in each and names and each["category_id"] not in names and "caption" not in each:
            found, expected = each["category_id"], f"an id of categories: {', '.join(map(str, names))}"
            raise DataError("an unknown category_id", file=path, where=where, found=found, expected=expected)
        name = names.get(each.get("category_id"))
        objects[each["image_id"]].append({**each, **({} if name is None else {"category": name})})
    for number, (image_id, image) in enumerate(images.items()):
        if not isinstance(image.get("file_name"), str):
            raise DataError("no file_name", file=path, where=f"images, element {number}", found=dict(image))
        about = {key: image[key] for key in ("width", "height", "caption") if image.get(key) is not None}
        yield (
            path,
            f"images, element {number}",
            {"image": image["file_name"], "image_id": image_id, **about, "objects": objects[image_id]},
        )


# YOLO


def _open_yolo(folder: Path, settings: Any) -> Source:
    """`data.yaml` and, for each picture of a split, a text file with a line for each object."""
    names = settings.get("names") if isinstance(settings, Mapping) else None
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, Mapping):
        raise DataError("no names of classes", file=folder / "data.yaml", found=names, expected="a list names: [...]")
    names = {int(key): str(value) for key, value in names.items()}
    has_points = "kpt_shape" in settings  # poses: a line goes on with points
    parts: dict[str, list[Any]] = {}
    for key in ("train", "val", "valid", "test"):
        places = settings.get(key)
        for place in [places] if isinstance(places, str) else places or []:
            root = folder / settings["path"] if isinstance(settings.get("path"), str) else folder
            if (images := _yolo_images(folder, root, place)) is not None:
                parts.setdefault(SAME_SPLIT.get(key, key), []).append(
                    partial(_yolo, images, names, folder, has_points)
                )
    if not parts:
        by_split: dict[str, list[Path]] = defaultdict(list)
        for path in sorted(each for each in folder.rglob("*") if each.suffix.lower() in SUFFIXES):
            by_split[split_of(path.parent / "x", folder)].append(path)
        parts = {split: [partial(_yolo, paths, names, folder, has_points)] for split, paths in by_split.items()}
    return _format(YOLO, folder, parts)


def _yolo_images(folder: Path, root: Path, place: str) -> list[Path] | None:
    """The pictures of a split: a folder, or a text file with a line each. Exports name folders of other machines."""
    tail = place.replace("\\", "/").lstrip("./")
    for path in (root / place, folder / place, root / tail, folder / tail, folder / Path(tail).parent):
        if path.is_dir():
            return sorted(each for each in path.rglob("*") if each.suffix.lower() in SUFFIXES) or None
        if path.is_file() and path.suffix == ".txt":
            lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
            return [path.parent / line if (path.parent / line).is_file() else folder / line for line in lines]
    return None


def _label_file(picture: Path) -> Path:
    parts = list(picture.parts)
    for i in range(len(parts) - 2, -1, -1):
        if parts[i] == "images":
            candidate = Path(*parts[:i], "labels", *parts[i + 1 :]).with_suffix(".txt")
            if candidate.is_file():
                return candidate
    return picture.with_suffix(".txt")


def _yolo(pictures: Sequence[Path], names: Mapping[int, str], folder: Path, has_points: bool) -> Iterator[Record]:
    for picture in pictures:
        labels = _label_file(picture)
        lines = read_text(labels).splitlines() if labels.is_file() else []
        objects = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                cells = line.split()
                objects.append(_yolo_object(cells[:5] if has_points else cells, names, labels, number))
        shown = picture.relative_to(folder) if picture.is_relative_to(folder) else picture
        yield labels, "its lines", {"image": str(shown), "objects": objects}


def _yolo_object(cells: Sequence[str], names: Mapping[int, str], file: Path, line: int) -> dict[str, Any]:
    where, found = f"line {line}", " ".join(cells)
    expected = "a class, then centre x, centre y, width, height in [0, 1] (or the corners of a polygon)"
    try:
        label, numbers = int(float(cells[0])), [float(cell) for cell in cells[1:]]
        if not all(map(math.isfinite, numbers)):
            raise ValueError
    except ValueError:
        raise DataError("no object", file=file, where=where, found=found, expected=expected) from None
    if label not in names:
        known = f"a class from {min(names)} to {max(names)}"
        raise DataError("an unknown class", file=file, where=where, found=label, expected=known)
    if len(numbers) >= 6 and len(numbers) % 2 == 0:
        x1, y1, x2, y2 = min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])
        numbers = [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]
    if len(numbers) not in (4, 5):
        raise DataError("no object", file=file, where=where, found=found, expected=expected)
    return {"bbox": numbers[:4], "category": names[label]}


# Pascal VOC


def _open_voc(folder: Path, files: Sequence[Path]) -> Source:
    parts: dict[str, list[Path]] = defaultdict(list)
    lists = {path.stem: set(read_text(path).split()) for path in folder.rglob("ImageSets/Main/*.txt")}
    lists = {name: stems for name, stems in lists.items() if name in ("train", "val", "test")}
    for path in files:
        listed = [name for name, stems in lists.items() if path.stem in stems]
        split = listed[0] if listed else split_of(path.parent / "x", folder)
        parts[SAME_SPLIT.get(split, split)].append(path)
    return _format(VOC, folder, {split: [partial(_voc, paths, folder)] for split, paths in parts.items()})


def _voc(files: Sequence[Path], folder: Path) -> Iterator[Record]:
    for path in files:
        try:
            root = ElementTree.fromstring(path.read_bytes())
        except (ElementTree.ParseError, DefusedXmlException, ValueError) as error:
            raise DataError(f"no XML ({error})", file=path, hint="get it again") from None
        objects = []
        for number, each in enumerate(root.iter("object")):
            box = each.find("bndbox")
            name = (each.findtext("name") or "").strip()
            sides = [None if box is None else box.findtext(side) for side in ("xmin", "ymin", "xmax", "ymax")]
            if not name or None in sides:
                found, expected = {"name": name, "bndbox": sides}, "name, and bndbox with xmin, ymin, xmax, ymax"
                raise DataError("no object", file=path, where=f"object {number}", found=found, expected=expected)
            objects.append({"bbox": [*map(str.strip, map(str, sides))], "category": name})
        name = (root.findtext("filename") or "").strip()
        size = [root.findtext(f"size/{side}") for side in ("width", "height")]
        about = dict(zip(("width", "height"), size, strict=True)) if all(size) and "0" not in size else {}
        picture = _voc_picture(path, name, folder)
        yield path, "its objects", {"image": str(picture), **about, "objects": objects}


def _voc_picture(path: Path, name: str, folder: Path) -> str:
    """The picture of a file: in `JPEGImages`, beside it, or of its own name, as the name in it may be an old one."""
    stems = [name, *(path.stem + suffix for suffix in SUFFIXES)]
    for parent in (path.parent.parent / "JPEGImages", path.parent.parent / "images", path.parent):
        for each in filter(None, stems):
            if (parent / Path(each).name).is_file():
                return str((parent / Path(each).name).relative_to(folder))
    return name or path.stem


# Label Studio


def _label_studio(path: Path) -> Iterator[Record]:
    for _, index, task in json_elements(path, "expected a list of tasks"):
        where = f"task {task.get('id', index) if isinstance(task, Mapping) else index}"
        data = task.get("data") if isinstance(task, Mapping) else None
        if not isinstance(data, Mapping):
            raise DataError("no task", file=path, where=where, found=task, expected="data and annotations")
        regions: list[Any] = []
        cancelled = 0
        for annotation in task.get("annotations") or task.get("completions") or []:
            if annotation.get("was_cancelled"):
                cancelled += 1
            else:
                regions += annotation.get("result") or []
        yield path, where, _label_studio_row(data, regions, cancelled, path, where)


def _label_studio_short(path: Path) -> Iterator[Record]:
    """JSON-MIN: the fields of a task side by side."""
    for _, index, task in json_elements(path, "expected a list of tasks"):
        where = f"task {task.get('id', index)}"
        regions = [{"value": each} for value in task.values() if isinstance(value, list) and _is_region(value)
                   for each in value]  # fmt: skip
        yield path, where, _label_studio_row(task, regions, 0, path, where)


def _is_region(value: Sequence[Any]) -> bool:
    first = value[0] if value else None
    return isinstance(first, Mapping) and any(
        key.endswith("labels") and isinstance(each, list) for key, each in first.items()
    )


def _label_studio_row(
    data: Mapping[str, Any], regions: Sequence[Mapping[str, Any]], cancelled: int, path: Path, where: str
) -> dict[str, Any]:
    texts = [value for value in data.values() if isinstance(value, str)]
    picture = next((value for key, value in data.items() if key in ("image", "img", "ocr", "photo", "url")), None)
    picture = picture or next((each for each in texts if each.lower().endswith(SUFFIXES)), None)
    if not isinstance(picture, str):
        raise DataError("no picture", file=path, where=where, found=dict(data), expected='"image" in data')
    names: dict[Any, list[str]] = defaultdict(list)
    shapes: dict[Any, Mapping[str, Any]] = {}
    captions = []
    skipped = 0
    for number, region in enumerate(regions):
        value = region.get("value") or {}
        key = region.get("id") or f"region {number}"
        for name, each in value.items():
            if name.endswith("labels") or name in ("choices", "text"):
                names[key] += each if isinstance(each, list) else [each]
        if any(side in value for side in ("x", "points", "radiusX")):
            shapes[key] = {**region, **value}
        elif "rle" in value:
            skipped += 1
        elif region.get("type") == "textarea" or "text" in value:
            captions += names[key]
    objects = []
    for key, shape in shapes.items():
        try:
            box = _label_studio_box(shape)
        except (KeyError, TypeError, ValueError):
            expected = "x, y, width and height in percent"
            raise DataError(
                "no box", file=path, where=f"{where}, {key}", found=dict(shape), expected=expected
            ) from None
        objects.append({"bbox": box, "category": [*dict.fromkeys(map(str, names[key]))][-1] if names[key] else None})
    about = {"caption": captions[0]} if captions else {}
    return {"image": picture, **about, "objects": objects, "skipped": {"was_cancelled": cancelled, "brush": skipped}}


def _label_studio_box(shape: Mapping[str, Any]) -> list[float]:
    """x, y, width, height in percent of what a region encloses, also if it is turned about its corner."""
    if "points" in shape:
        xs, ys = zip(*shape["points"], strict=True)
        return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
    if "radiusX" in shape:
        across, down = float(shape["radiusX"]), float(shape["radiusY"])
        return [shape["x"] - across, shape["y"] - down, 2 * across, 2 * down]
    x, y = float(shape["x"]), float(shape["y"])
    if "keypointlabels" in shape and not ("height" in shape and "rectanglelabels" in shape):
        return [x, y]
    width, height = float(shape["width"]), float(shape["height"])
    angle = math.radians(float(shape.get("rotation") or 0))
    if not angle:
        return [x, y, width, height]
    # Percent of both sides: turned in pixels, and brought back.
    ratio = float(shape.get("original_height") or 1) / float(shape.get("original_width") or 1)
    corners = [(a, b * ratio) for a in (0, width) for b in (0, height)]
    turned = [
        (a * math.cos(angle) - b * math.sin(angle), (a * math.sin(angle) + b * math.cos(angle)) / ratio)
        for a, b in corners
    ]
    # What it encloses may leave the picture where the region itself does not.
    columns = [min(max(x + a, 0.0), 100.0) for a, _ in turned]
    rows = [min(max(y + b, 0.0), 100.0) for _, b in turned]
    return [min(columns), min(rows), max(columns) - min(columns), max(rows) - min(rows)]


# One JSON file for each picture


def _picture_beside(path: Path) -> Path | None:
    return next((each for suffix in SUFFIXES if (each := path.with_suffix(suffix)).is_file()), None)


def _of_one(path: Path, folder: Path) -> Iterator[Record]:
    value = read_json(path)
    if not isinstance(value, Mapping):
        raise DataError("not a row", file=path, found=value, expected="an object")
    picture = _picture_beside(path)
    yield path, "the object", {"image": str(picture.relative_to(folder)) if picture else path.stem, **value}
