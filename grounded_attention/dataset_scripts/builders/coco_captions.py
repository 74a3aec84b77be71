# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""COCO captions, with the official annotation files or the Karpathy splits.

The official files (https://cocodataset.org/#download) are `annotations/captions_{train,val}2014.json`, or of another
year. Karpathy's `dataset_coco.json` splits the images of 2014 differently: train (82,783), restval (30,504), val and
test (5,000 each). restval is usually part of training.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from datasets import Value

from grounded_attention.dataset_scripts.files.errors import DataError, check_folder, refuse_if
from grounded_attention.dataset_scripts.files.records import Record
from grounded_attention.dataset_scripts.licences import ALLOWED, UNCLEAR, Licence
from grounded_attention.utils.named_types import Fields

from .local_builder import SIZE, SPLITS, TEXTS, BuildReport, LocalBuilder, LocalConfig, member_records, read_size

ImageIdFormat = Literal["number", "file_stem"]


class ImageNames:
    """Reads number, id and file name of the images of a file in COCO's format; each of an image's names is its own.
    `fields` are those with number and file name.
    """

    def __init__(self, by_stem: bool, fields: tuple[str, str] = ("id", "file_name")) -> None:
        self._by_stem = by_stem
        self._fields = fields
        self._numbers: set[int] = set()
        self._ids: set[str] = set()

    def read(self, record: Record) -> tuple[int, str, str]:
        """Returns number, id and file name of an image."""
        number = record.integer(self._fields[0])
        name = record.non_empty_text(self._fields[1])
        image_id = PurePosixPath(name).stem if self._by_stem else str(number)
        record.add_once(number, self._numbers, "the image occurs twice")
        expected = "file names with stems of their own, or the image id format number"
        record.add_once(image_id, self._ids, "two images have the same id", expected)
        return number, image_id, name


OFFICIAL = "official"
KARPATHY = "karpathy"
HOMEPAGE = "https://cocodataset.org"
WHERE_TO_GET = {
    OFFICIAL: "get annotations_trainval2014.zip, or that of your year, from https://cocodataset.org/#download and "
    "unpack it in the data folder",
    KARPATHY: "get https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip and unpack it in the "
    "data folder",
}
LICENCE = Licence(
    "cc-by-4.0",
    ALLOWED,
    "The annotations are CC BY 4.0 of the COCO Consortium; the images are under Flickr's terms and are not included.",
    "https://cocodataset.org/#termsofuse",
)
KARPATHY_LICENCE = Licence(
    "unknown",
    UNCLEAR,
    "The captions are CC BY 4.0 of the COCO Consortium; the splits have no licence: ask their authors.",
    "https://cs.stanford.edu/people/karpathy/deepimagesent/",
)
CITATION = """Xinlei Chen, Hao Fang, Tsung-Yi Lin, Ramakrishna Vedantam, Saurabh Gupta, Piotr Dollár, C. Lawrence
Zitnick. Microsoft COCO Captions: Data Collection and Evaluation Server. arXiv:1504.00325, 2015. The Karpathy splits:
Andrej Karpathy, Li Fei-Fei. Deep Visual-Semantic Alignments for Generating Image Descriptions. CVPR 2015."""
FEATURES = {
    "image_id": Value("string"),
    **SIZE,
    "file_name": Value("string"),
    "captions": TEXTS,
    "caption_ids": TEXTS,
}


@dataclass
class CocoCaptionsConfig(LocalConfig):
    """Options of [`CocoCaptions`]."""

    LICENCE = LICENCE

    year: str = "2014"
    image_id_format: ImageIdFormat = "number"

    def licence(self) -> Licence:
        if self.name == KARPATHY:
            return KARPATHY_LICENCE
        return LICENCE

    def available_splits(self) -> tuple[str, ...]:
        if self.name == KARPATHY:
            return tuple(SPLITS)
        return ("train", "val")

    def where_to_get(self) -> str:
        return WHERE_TO_GET[self.name]

    def needed_files(self, split: str) -> list[Path]:
        """The file in the data folder, in its folder `annotations`, or in its folder `coco`."""
        if self.name == KARPATHY:
            return [self.find("dataset_coco.json", folders=("", "coco"))]
        folders = ("annotations", "", "coco/annotations", "coco")
        return [self.find(f"captions_{split}{self.year}.json", folders=folders)]

    def check(self) -> None:
        super().check()
        check_folder(self.data_dir, self.where_to_get())
        refuse_if(
            self.name == KARPATHY and str(self.year) != "2014",
            "the Karpathy splits exist for 2014 only",
            found=f"year={self.year}",
        )


class CocoCaptions(LocalBuilder):
    """One row an image: `{image_id, width, height, file_name, captions, caption_ids}`.

    `data_dir` holds `annotations/captions_{train,val}2014.json` (no captions of the test images are published), or
    `dataset_coco.json` for the Karpathy splits, or has either in a folder `coco`. White space in captions, including
    line ends, becomes single spaces. Captions without words and images without captions are skipped and counted in
    `builder.report`. The Karpathy file does not contain the images' sizes: `width` and `height` are None.
    """

    config: CocoCaptionsConfig
    BUILDER_CONFIG_CLASS = CocoCaptionsConfig
    BUILDER_CONFIGS = [CocoCaptionsConfig(name=name) for name in (OFFICIAL, KARPATHY)]
    DEFAULT_CONFIG_NAME = OFFICIAL

    INFO = ("Images with five captions or so each.", FEATURES, HOMEPAGE, CITATION)

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        [path] = self.config.needed_files(split)
        by_stem = self.config.image_id_format == "file_stem"
        if self.config.name == KARPATHY:
            splits = (split, "restval") if split == "train" else (split,)
            rows = karpathy_rows(path, splits, by_stem, report)
        else:
            rows = official_rows(path, by_stem, report)
        for row in rows:
            if not row["captions"]:
                report.add("images_without_captions", row["image_id"])
                continue
            report.add("images")
            report.add("captions", count=len(row["captions"]))
            yield row


def official_rows(path: Path, by_stem: bool, report: BuildReport) -> Iterator[Fields]:
    """Reads the rows of an official annotation file, in the order of its images."""
    hint = "is it captions_*.json? instances and keypoints have no captions"
    images: dict[int, Fields] = {}
    names = ImageNames(by_stem)
    captions: dict[int, dict[str, str]] = defaultdict(dict)
    ids: set[int] = set()
    for member, record in member_records(path, hint, "images", "annotations"):
        if member == "images":
            number, image_id, name = names.read(record)
            width, height = read_size(record)
            images[number] = {"image_id": image_id, "width": width, "height": height, "file_name": name}
        else:
            caption_id = _new_id(record, "id", ids)
            text = record.text("caption")
            _add_caption(captions[record.integer("image_id")], caption_id, text, report)
    refuse_if(
        not images, "no images", file=path, expected="an object with the lists images and annotations", hint=hint
    )
    foreign = [image_id for image_id in captions if image_id not in images]
    if foreign:
        problem = f"captions of {len(foreign)} images that are not in the file's list of images"
        raise DataError(problem, file=path, found=foreign[0], hint=WHERE_TO_GET[OFFICIAL])
    for number, row in images.items():
        yield {**row, **_columns(captions.pop(number, {}))}


def karpathy_rows(path: Path, splits: Sequence[str], by_stem: bool, report: BuildReport) -> Iterator[Fields]:
    """Reads the rows of some splits of Karpathy's `dataset_coco.json`, in its order; checks the complete file."""
    names = ImageNames(by_stem, ("cocoid", "filename"))
    ids: set[int] = set()
    empty = True
    for _, record in member_records(path, WHERE_TO_GET[KARPATHY], "images"):
        empty = False
        _, image_id, name = names.read(record)
        split = record.text("split")
        record.refuse_if(
            split not in (*SPLITS, "restval"), "unknown split", found=split, expected="train, restval, val or test"
        )
        captions: dict[str, str] = {}
        counted = report if split in splits else BuildReport()
        for sentence in record.records("sentences", "sentence"):
            _add_caption(captions, _new_id(sentence, "sentid", ids), sentence.text("raw"), counted)
        if split in splits:
            yield {"image_id": image_id, "width": None, "height": None, "file_name": name, **_columns(captions)}
    refuse_if(empty, "no images", file=path, expected="an object with the list images", hint=WHERE_TO_GET[KARPATHY])


def _columns(captions: Mapping[str, str]) -> Fields:
    return {"captions": list(captions.values()), "caption_ids": list(captions)}


def _add_caption(captions: dict[str, str], caption_id: int, text: str, report: BuildReport) -> None:
    words = " ".join(text.split())
    if words:
        captions[str(caption_id)] = words
    else:
        report.add("captions_without_words", str(caption_id))


def _new_id(record: Record, name: str, ids: set[int]) -> int:
    number = record.integer(name)
    record.add_once(number, ids, f"{name} occurs twice", "unique ids")
    return number
