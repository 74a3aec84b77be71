# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes that data sets bring: RefCOCO's annotated objects or a detector's boxes, and the objects of VCR."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.files.image_files import ImageFile
from grounded_attention.dataset_scripts.files.records import listed
from grounded_attention.utils.safe_paths import path_below

from .coco_captions import ImageNames
from .local_builder import member_records, read_size
from .refcoco import HINT, RefCOCOConfig, read_instances
from .vcr import VCRConfig, image_id_of, read_image_objects
from .vcr_files import read_objects, read_questions

DETECTIONS_HINT = (
    "MAttNet's detections are a list of {image_id, box: [x, y, width, height], score}, such as "
    "detections/refcoco+_unc/res101_coco_minus_refer_notime_dets.json of https://github.com/lichengunc/MAttNet"
)


@dataclass(frozen=True)
class RefImage:
    """An image of `instances.json`."""

    image_id: str
    file_name: str
    width: int
    height: int


@dataclass
class Candidates:
    """The boxes of each image, the pictures that have boxes, and counts of what is otherwise."""

    source: str = ""
    records: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    images: list[ImageFile] = field(default_factory=list)
    images_without_boxes: list[str] = field(default_factory=list)
    clipped: int = 0
    too_small: int = 0
    in_unknown_images: int = 0
    of_the_whole_image: int = 0

    def counts(self) -> dict[str, Any]:
        """What a report says of them."""
        return {
            f"boxes: {self.source}": sum(len(record["boxes"]) for record in self.records.values()),
            "boxes clipped at the edge of their image": self.clipped,
            "boxes smaller than a pixel left out": self.too_small,
            "boxes in images of other data sets left out": self.in_unknown_images,
            "boxes of the whole image, of objects without one": self.of_the_whole_image,
            "images without a box": self.images_without_boxes,
        }


def refcoco_candidates(
    name: str, data_dir: Path, folder: Path, detections: Path | None = None, by_stem: bool = False
) -> Candidates:
    """The candidates of RefCOCO's expressions, for the images of a folder."""
    instances = RefCOCOConfig(name=name, data_dir=str(data_dir)).instances_file
    images = read_ref_images(instances, by_stem)
    if detections is None:
        candidates = annotated_candidates(instances, images)
    else:
        candidates = _collect(_detections(detections), images)
    if not candidates.records:
        expected = f"boxes in the {len(images)} images of {instances}"
        raise DataError("no image has a box", file=detections or instances, expected=expected)
    candidates.source = f"annotated objects of {name}" if detections is None else detections.name
    files = {image.image_id: image.file_name for image in images.values()}
    candidates.images = [ImageFile(image_id, path_below(folder, files[image_id])) for image_id in candidates.records]
    return candidates


def vcr_objects(data_dir: Path, image_id_format: str) -> Candidates:
    """The objects of VCR's images, in the order in which tags number them; one without a box has the whole image."""
    config = VCRConfig(name="default", data_dir=str(data_dir), image_id_format=image_id_format)
    candidates = Candidates("objects of vcr")
    files = dict[str, str]()
    read = lru_cache(maxsize=64)(read_objects)
    for split in config.available_splits():
        for question in read_questions(config.questions(split)):
            image_id = image_id_of(question, split, image_id_format)
            file = question.non_empty_text("img_fn")
            if files.setdefault(image_id, file) != file:
                raise question.error("two images have one id", found=file, expected=files[image_id])
            if image_id not in candidates.records:
                image = read_image_objects(question, config, read)
                candidates.images.append(ImageFile(image_id, path_below(config.images, file)))
                candidates.of_the_whole_image += sum(box is None for box in image.boxes)
                candidates.records[image_id] = {"boxes": image.filled_boxes}
    return candidates


def read_ref_images(path: Path, by_stem: bool = False) -> dict[int, RefImage]:
    """Reads the images of `instances.json`."""
    names = ImageNames(by_stem)
    images = dict[int, RefImage]()
    for _, record in member_records(path, HINT, "images"):
        number, image_id, name = names.read(record)
        images[number] = RefImage(image_id, name, *read_size(record))
    refuse_if(not images, "no images", file=path, expected="an object with the list images", hint=HINT)
    return images


def annotated_candidates(path: Path, images: dict[int, RefImage]) -> Candidates:
    """Returns all objects that `instances.json` annotates, including crowds, as the VL-BERT public code does."""
    objects = read_instances(path).items()
    return _collect(((item["image"], item["bbox"], None) for _, item in objects), images)


def _detections(path: Path) -> Iterator[tuple[int, list[float], float | None]]:
    scored: bool | None = None
    for record in listed(path, DETECTIONS_HINT):
        box = record.box("box")
        score = record.number("score") if "score" in record.values else None
        if scored is not None and scored != (score is not None):
            raise record.error(
                "only some detections have a score", found=record.values, expected="a score for all or for none"
            )
        scored = score is not None
        yield record.integer("image_id"), box, score
    if scored is None:
        raise DataError("no detections", file=path, hint=DETECTIONS_HINT)


def _collect(boxes: Iterator[tuple[int, list[float], float | None]], images: dict[int, RefImage]) -> Candidates:
    candidates = Candidates()
    by_image: dict[int, list[tuple[list[float], float | None]]] = {number: [] for number in images}
    for number, (x, y, width, height), score in boxes:
        if number not in images:
            candidates.in_unknown_images += 1
            continue
        limits = (images[number].width, images[number].height) * 2
        box = [x, y, x + width, y + height]
        inside = [min(max(value, 0), limit) for value, limit in zip(box, limits, strict=True)]
        if inside[2] - inside[0] < 1 or inside[3] - inside[1] < 1:
            candidates.too_small += 1
            continue
        candidates.clipped += inside != box
        by_image[number].append((inside, score))
    if candidates.too_small and not any(by_image.values()):
        raise DataError(
            f"{candidates.too_small} boxes are smaller than a pixel", expected="x, y, width, height in pixels"
        )
    for number, rows in by_image.items():
        _add(candidates, images[number].image_id, rows)
    return candidates


def _add(candidates: Candidates, image_id: str, rows: list[tuple[list[float], float | None]]) -> None:
    if not rows:
        candidates.images_without_boxes.append(image_id)
        return
    # Sorting is stable, so boxes without scores keep their order.
    rows = sorted(rows, key=lambda row: -(row[1] or 0.0))
    candidates.records[image_id] = {"boxes": [box for box, _ in rows]}
    if rows[0][1] is not None:
        candidates.records[image_id]["scores"] = [score for _, score in rows]
