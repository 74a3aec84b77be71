# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region descriptions of Visual Genome: boxes in images, each with a short description.

Reads `region_descriptions.json` and `image_data.json` of https://homes.cs.washington.edu/~ranjay/visualgenome/api.html
one image at a time: 5.4 million regions of 108,077 images do not have to fit into memory. Versions 1.0 to 1.4 use
different names (`image_id` or `id`, `width` or `w`); all are read.

Boxes are pixels x, y, width, height, counted from 0. They are clipped to the image, because some exceed it, and
divided by its width and height. About half of the images are also COCO images, some of them from its validation and
test sets: exclude those (`without_coco_ids`) before evaluating on COCO.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from datasets import Value

from grounded_attention.dataset_scripts.files.errors import refuse_if
from grounded_attention.dataset_scripts.files.records import Record, listed
from grounded_attention.dataset_scripts.licences import ALLOWED, Licence
from grounded_attention.utils.named_types import Fields

from .local_builder import (
    SIZE,
    TEXTS,
    BuildReport,
    LocalBuilder,
    LocalConfig,
    clipped_corners,
    named_splits,
    phrase_column,
    read_size,
    whole_text,
)

HOMEPAGE = "https://homes.cs.washington.edu/~ranjay/visualgenome/api.html"
WHERE_TO_GET = f"get region_descriptions.json.zip and image_data.json.zip from {HOMEPAGE} and unpack them"
REGIONS_FILE = "region_descriptions.json"
IMAGES_FILE = "image_data.json"
LICENCE = Licence("cc-by-4.0", ALLOWED, "CC BY 4.0; the images have separate terms and are not included.", HOMEPAGE)
CITATION = """Ranjay Krishna, Yuke Zhu, Oliver Groth, Justin Johnson, Kenji Hata, Joshua Kravitz, Stephanie Chen,
Yannis Kalantidis, Li-Jia Li, David A. Shamma, Michael S. Bernstein, Li Fei-Fei. Visual Genome: Connecting Language and
Vision Using Crowdsourced Dense Image Annotations. IJCV 2017."""
FEATURES = {
    "image_id": Value("string"),
    **SIZE,
    "captions": TEXTS,
    "caption_ids": TEXTS,
    "phrases": phrase_column(),
}


class ImageData(NamedTuple):
    """The size of an image in pixels, and its id in COCO or None."""

    width: int
    height: int
    coco_id: str | None


@dataclass
class VisualGenomeRegionsConfig(LocalConfig):
    """Options of [`VisualGenomeRegions`]."""

    LICENCE = LICENCE
    WHERE = WHERE_TO_GET
    SPLIT_NAMES = named_splits("train")
    FILES = {"train": [(REGIONS_FILE,), (IMAGES_FILE,)]}
    LISTS = "without_coco_ids"

    without_coco_ids: str | Sequence[str] | None = None


class VisualGenomeRegions(LocalBuilder):
    """One row an image: `{image_id, width, height, captions, caption_ids, phrases}`.

    `data_dir` holds `region_descriptions.json` and `image_data.json`. There are no official splits: all rows are in
    `train`. Each description is a caption, its id that of its region, and a phrase as a whole; the box is (x1, y1, x2,
    y2) in [0, 1], clipped to the image. Skipped and counted in `builder.report`:
    regions outside the image or without an area, descriptions without words, images without a remaining region. White
    space in a description becomes single spaces.
    """

    config: VisualGenomeRegionsConfig
    BUILDER_CONFIG_CLASS = VisualGenomeRegionsConfig
    BUILDER_CONFIGS = [VisualGenomeRegionsConfig(name="default")]

    INFO = ("Boxes in images, each with a short description.", FEATURES, HOMEPAGE, CITATION)

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        regions_file, images_file = self.config.needed_files(split)
        images = read_images(images_file)
        for image_id, row in region_rows(regions_file, images, self.image_lists or (), report):
            if row["captions"]:
                report.add("images")
                report.add("regions", count=len(row["captions"]))
                yield row
            else:
                report.add("images_without_regions", image_id)


def read_images(path: Path) -> dict[int, ImageData]:
    """Reads the images of `image_data.json`."""
    images: dict[int, ImageData] = {}
    for record in listed(path, WHERE_TO_GET):
        image_id = record.integer("image_id", "id")
        record.refuse_if(image_id in images, "the image occurs twice", found=image_id)
        if record.values.get("coco_id") is None:
            coco_id = None
        else:
            coco_id = str(record.integer("coco_id"))
        images[image_id] = ImageData(*read_size(record), coco_id)
    refuse_if(not images, "no images", file=path, expected="a list of images", hint=WHERE_TO_GET)
    return images


def region_rows(
    path: Path, images: dict[int, ImageData], excluded: Container[str], report: BuildReport
) -> Iterator[tuple[str, Fields]]:
    """Reads the rows of `region_descriptions.json`."""
    ids: set[int] = set()
    for record in listed(path, WHERE_TO_GET):
        image_id = record.integer("image_id", "id")
        record.add_once(image_id, ids, "the image occurs twice")
        record.refuse_if(image_id not in images, f"the image is not in {IMAGES_FILE}", found=image_id)
        image = images[image_id]
        if image.coco_id is not None and image.coco_id.zfill(12) in excluded:
            report.add("images_left_out_by_coco_id")
            continue
        regions = _regions(record, image_id, image, report)
        yield (
            str(image_id),
            {
                "image_id": str(image_id),
                "width": image.width,
                "height": image.height,
                "captions": [region["text"] for region in regions],
                "caption_ids": [region["region_id"] for region in regions],
                "phrases": [whole_text(each["text"], each["box"], number) for number, each in enumerate(regions)],
            },
        )
    refuse_if(not ids, "no images", file=path, expected="a list of images with regions", hint=WHERE_TO_GET)


def _regions(parent: Record, image_id: int, image: ImageData, report: BuildReport) -> list[Fields]:
    regions: dict[int, Fields | None] = {}
    for record in parent.records("regions", "region"):
        region_id = record.integer("region_id", "id")
        record.refuse_if(region_id in regions, "the region occurs twice", found=region_id)
        record.refuse_if(
            record.integer("image_id", "image") != image_id,
            "the region belongs to another image",
            found=record.values,
            expected=f"image_id {image_id}",
        )
        regions[region_id] = _region(record, region_id, image, report)
    return [region for region in regions.values() if region is not None]


def _region(record: Record, region_id: int, image: ImageData, report: BuildReport) -> Fields | None:
    """Returns a region, or None if no part of it is in the image or its description has no words."""
    text = " ".join(record.text("phrase").split())
    bbox = [record.number(*names) for names in (("x",), ("y",), ("width", "w"), ("height", "h"))]
    sides, is_clipped = clipped_corners(record, bbox, image.width, image.height)
    if sides is None:
        report.add("regions_without_area", str(region_id))
    elif not text:
        report.add("regions_without_words", str(region_id))
    else:
        if is_clipped:
            report.add("regions_clipped")
        return {"region_id": str(region_id), "text": text, "box": sides}
    return None
