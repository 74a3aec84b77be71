# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes that data sets bring: RefCOCO's annotated objects or a detector's boxes, and the objects of VCR."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.image_files import ImageFile
from grounded_attention.dataset_scripts.files.records import listed
from grounded_attention.utils.boxes import clip_box, in_pixels
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.safe_paths import path_below

from .local_builder import BuildReport
from .refcoco import RefCOCOConfig, read_instances
from .vcr import VCR

DETECTIONS_HINT = (
    "MAttNet's detections are a list of {image_id, box: [x, y, width, height], score}, such as "
    "detections/refcoco+_unc/res101_coco_minus_refer_notime_dets.json of https://github.com/lichengunc/MAttNet"
)
WITHOUT = "images without a box"


@dataclass
class Candidates:
    """The boxes of each image, the pictures that have boxes, and counts of what is otherwise."""

    source: str
    records: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    images: list[ImageFile] = field(default_factory=list)
    report: BuildReport = field(default_factory=BuildReport)

    def counts(self) -> Fields:
        """What a report says of them; of images without a box their ids."""
        boxes = {f"boxes: {self.source}": sum(len(record["boxes"]) for record in self.records.values())}
        return {**boxes, **self.report.counts, **self.report.examples}


def refcoco_candidates(
    name: str, data_dir: Path, folder: Path, detections: Path | None = None, by_stem: bool = False
) -> Candidates:
    """All annotated objects of RefCOCO's images with crowds, as the VL-BERT public code takes them, or a detector's
    boxes, best first; `folder` has the pictures."""
    path = RefCOCOConfig(name=name, data_dir=str(data_dir)).instances_file
    instances = read_instances(path, by_stem)
    if detections is None:
        boxes = [(each["image"], each["bbox"], 1.0) for each in instances.objects.values()]
    else:
        found = listed(detections, DETECTIONS_HINT)
        boxes = [(each.integer("image_id"), each.box("box"), each.number("score")) for each in found]
        boxes.sort(key=lambda each: -each[2])
    report = BuildReport(examples=len(instances.images))
    records: dict[str, dict[str, list[Any]]] = {
        image["image_id"]: {"boxes": [], "scores": []} for image in instances.images.values()
    }
    for number, (x, y, width, height), score in boxes:
        image = instances.images.get(number)
        if image is None:
            report.add("boxes in images of other data sets left out")
            continue
        box = [x, y, x + width, y + height]
        inside = clip_box(box, image["width"], image["height"])
        if inside[2] - inside[0] < 1 or inside[3] - inside[1] < 1:
            report.add("boxes smaller than a pixel left out")
            continue
        report.add("boxes clipped at the edge of their image", count=inside != box)
        records[image["image_id"]]["boxes"].append(inside)
        records[image["image_id"]]["scores"].append(score)
    images = []
    for image in instances.images.values():
        if records[image["image_id"]]["boxes"]:
            images.append(ImageFile(image["image_id"], path_below(folder, image["file_name"])))
        else:
            del records[image["image_id"]]
            report.add(WITHOUT, image["image_id"])
    if not images:
        expected = f"boxes of a pixel or more in the {len(instances.images)} images of {path}"
        raise DataError("no image has a box", file=detections or path, expected=expected, hint=DETECTIONS_HINT)
    source = f"annotated objects of {name}" if detections is None else detections.name
    return Candidates(source, records, images, report)


def vcr_objects(data_dir: Path, image_id_format: str) -> Candidates:
    """The objects of VCR's images, in the order in which tags number them; one without a box has the whole image."""
    builder = VCR(data_dir=str(data_dir), image_id_format=image_id_format)
    builder.download_and_prepare()
    candidates = Candidates("objects of vcr")
    for rows in builder.as_dataset().values():
        for row in rows.select_columns(["image_id", "file_name", "width", "height", "boxes"]):
            if row["image_id"] not in candidates.records:
                path = path_below(builder.config.images, row["file_name"])
                candidates.images.append(ImageFile(row["image_id"], path))
                boxes = [in_pixels(box, row["width"], row["height"]) for box in row["boxes"]]
                candidates.records[row["image_id"]] = {"boxes": boxes}
    return candidates
