# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Referring expressions of scenes in the format of RefCOCO+: references, instances, and a detector's boxes.

Sentence numbers increase through the data set. As in the real data, the images of one test split show objects of one
kind: in testA most of the objects are solids, in testB figures.
"""

import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import shapes
from .language import SOLIDS
from .world import SHAPES, Scene

NAME, SPLIT_BY = "refcoco+", "unc"
REFS_FILE = f"refs({SPLIT_BY}).p"
DETECTIONS_FILE = "detections/refcoco+_unc/res101_coco_minus_refer_notime_dets.json"
OBJECTS_PER_IMAGE = 8
SENTENCES_PER_IMAGE = 24
CATEGORIES = [{"id": number, "name": shape, "supercategory": "shape"} for number, shape in enumerate(SHAPES, start=1)]


@dataclass(frozen=True)
class ReferredImage:
    """The data of an image in the RefCOCO+ files."""

    number: int
    image_id: str
    width: int
    height: int
    boxes: tuple[tuple[float, ...], ...]
    shapes: tuple[str, ...]
    expressions: tuple[tuple[str, ...], ...]
    detections: tuple[tuple[tuple[float, ...], float], ...]

    @property
    def test_split(self) -> str:
        """`testA` if most objects of the image are solids, otherwise `testB`."""
        return "testA" if 2 * sum(shape in SOLIDS for shape in self.shapes) >= len(self.shapes) else "testB"

    def annotation_id(self, place: int) -> int:
        """Returns the id of an object, unique in the data set."""
        return OBJECTS_PER_IMAGE * self.number + place + 1


def object_boxes(scene: Scene) -> tuple[tuple[float, ...], ...]:
    """Returns the boxes of all objects in pixels, clipped to the image."""
    limits = (scene.width, scene.height) * 2
    return tuple(
        tuple(min(max(value, 0.0), float(limit)) for value, limit in zip(shapes.box(item), limits, strict=True))
        for item in scene.objects
    )


def instances_file(images: Iterable[ReferredImage]) -> str:
    """Returns the text of instances.json."""
    listed = list(images)
    return _json(
        {
            "images": [
                {"id": int(i.image_id), "file_name": f"{i.image_id}.jpg", "width": i.width, "height": i.height}
                for i in listed
            ],
            "annotations": [
                {
                    "id": image.annotation_id(place),
                    "image_id": int(image.image_id),
                    "bbox": _xywh(box),
                    "area": round((box[2] - box[0]) * (box[3] - box[1]), 2),
                    "category_id": SHAPES.index(shape) + 1,
                    "iscrowd": 0,
                }
                for image in listed
                for place, (box, shape) in enumerate(zip(image.boxes, image.shapes, strict=True))
            ],
            "categories": CATEGORIES,
        }
    )


def references_file(splits: Mapping[str, Iterable[ReferredImage]]) -> bytes:
    """Returns the content of refs(unc).p, a pickle of plain data; `splits` are train, val and test."""
    references = []
    for split, images in splits.items():
        for image in images:
            name = image.test_split if split == "test" else split
            references += [
                _reference(image, place, name) for place, sentences in enumerate(image.expressions) if sentences
            ]
    return pickle.dumps(references, protocol=2)


def detections_file(images: Iterable[ReferredImage]) -> str:
    """Returns the text of the file of detected boxes, in the format of MAttNet's detector."""
    return _json(
        [
            {"image_id": int(image.image_id), "box": _xywh(box), "score": score, "det_id": 32 * image.number + place}
            for image in images
            for place, (box, score) in enumerate(image.detections)
        ]
    )


def _reference(image: ReferredImage, place: int, split: str) -> dict[str, object]:
    first = SENTENCES_PER_IMAGE * image.number + 3 * place
    sentences = [
        {"sent_id": first + offset, "tokens": text.split(), "raw": text, "sent": text}
        for offset, text in enumerate(image.expressions[place])
    ]
    return {
        "ref_id": image.annotation_id(place),
        "ann_id": image.annotation_id(place),
        "image_id": int(image.image_id),
        "file_name": f"{image.image_id}_{place}.jpg",
        "category_id": SHAPES.index(image.shapes[place]) + 1,
        "split": split,
        "sent_ids": [sentence["sent_id"] for sentence in sentences],
        "sentences": sentences,
    }


def _xywh(box: tuple[float, ...]) -> list[float]:
    x1, y1, x2, y2 = box
    return [round(value, 2) for value in (x1, y1, x2 - x1, y2 - y1)]


def _json(content: object) -> str:
    return json.dumps(content) + "\n"
