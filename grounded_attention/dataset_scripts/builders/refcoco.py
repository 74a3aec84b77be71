# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""RefCOCO, RefCOCO+ and RefCOCOg: sentences that identify one object of an image.

A data set is a folder with `instances.json` (COCO's instances of its images) and `refs(<split_by>).p`, a pickle of
Python 2. The reader uses an allow-list and never executes the pickle; it also reads `refs(<split_by>).json`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from grounded_attention.dataset_scripts.files.errors import (
    DataError,
    data_file,
    refuse_if,
    require_file,
)
from grounded_attention.dataset_scripts.files.records import Record, plain
from grounded_attention.dataset_scripts.files.safe_pickle import load_pickle
from grounded_attention.dataset_scripts.licences import UNCLEAR, Licence
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Fields

from .coco_captions import ImageIdFormat, ImageNames
from .local_builder import (
    SIZE,
    BuildReport,
    LocalBuilder,
    LocalConfig,
    clipped_corners,
    member_records,
    named_splits,
    phrase_column,
    read_size,
    texts,
    whole_text,
)

# Data set -> the groups that published its splits; the first is the usual one.
SPLITS_BY = {"refcoco": ("unc", "google"), "refcoco+": ("unc",), "refcocog": ("umd", "google")}
TEST_SPLITS = {"unc": ("testA", "testB"), "umd": ("test",), "google": ("test",)}
HOMEPAGE = "https://github.com/lichengunc/refer"
HINT = "get the annotations from the links in https://github.com/lichengunc/refer (if they are dead, see its issue 14)"
LICENCE = Licence(
    "unknown",
    UNCLEAR,
    "The code of the repository is Apache-2.0, the expressions have no licence: ask their authors. The boxes are "
    "COCO's, CC BY 4.0; the images are under Flickr's terms and are not included.",
    HOMEPAGE,
)
CITATION = """Sahar Kazemzadeh, Vicente Ordonez, Mark Matten, Tamara L. Berg. ReferItGame: Referring to Objects in
Photographs of Natural Scenes. EMNLP 2014. Licheng Yu, Patrick Poirson, Shan Yang, Alexander C. Berg, Tamara L. Berg.
Modeling Context in Referring Expressions. ECCV 2016. RefCOCOg: Junhua Mao, Jonathan Huang, Alexander Toshev, Oana
Camburu, Alan Yuille, Kevin Murphy. Generation and Comprehension of Unambiguous Object Descriptions. CVPR 2016."""
FEATURES = {
    **texts("example_id", "image_id", "text"),
    **SIZE,
    "phrases": phrase_column(),
}


@dataclass
class RefCOCOConfig(LocalConfig):
    """Options of [`RefCOCO`]."""

    LICENCE = LICENCE
    WHERE = HINT
    SPLIT_NAMES = named_splits("train", "val", "testA", "testB", "test")
    split_by: str | None = None
    image_id_format: ImageIdFormat = "number"

    @property
    def split_source(self) -> str:
        """`split_by`, or the usual group."""
        return self.split_by or SPLITS_BY[self.name][0]

    @property
    def folder(self) -> Path:
        """The folder of the data set: the data folder, or its folder with the data set's name."""
        if (self.root / self.name).is_dir():
            return self.root / self.name
        return self.root

    @property
    def refs_file(self) -> Path:
        """The file of references, a pickle or JSON."""
        pickled = self.folder / f"refs({self.split_source}).p"
        if pickled.is_file():
            return pickled
        return pickled.with_suffix(".json")

    @property
    def instances_file(self) -> Path:
        """The file of annotated objects."""
        return self.folder / "instances.json"

    def available_splits(self) -> tuple[str, ...]:
        return ("train", "val", *TEST_SPLITS[self.split_source])

    def needed_files(self, split: str) -> list[Path]:
        return [self.refs_file, self.instances_file]

    def check(self) -> None:
        super().check()
        if self.split_source not in SPLITS_BY[self.name]:
            expected = " or ".join(SPLITS_BY[self.name])
            raise DataError(f"unknown option split_by of {self.name}", found=self.split_source, expected=expected)
        expected = f"refs({self.split_source}).p or refs({self.split_source}).json"
        require_file(self.refs_file, "the file is missing", expected=expected, hint=HINT)


class RefCOCO(LocalBuilder):
    """One row a sentence: `{example_id, image_id, text, width, height, phrases}`.

    `text` joins the tokens of the official files by spaces, and is the only phrase, with one box: x1, y1, x2, y2
    divided by the image's size and clipped to it (`builder.report` counts clipped boxes). Splits are train,
    validation, and testA and testB (`split_by` `unc`) or test. `example_id` is the id of the sentence.
    """

    config: RefCOCOConfig
    BUILDER_CONFIG_CLASS = RefCOCOConfig
    BUILDER_CONFIGS = [RefCOCOConfig(name=name) for name in SPLITS_BY]
    DEFAULT_CONFIG_NAME = "refcoco+"

    INFO = ("Sentences that identify one object of an image.", FEATURES, HOMEPAGE, CITATION)

    # Read once for all splits, because RefCOCO takes seconds to read.
    @cached_property
    def _refs(self) -> list[Record]:
        return list(read_refs(self.config.refs_file))

    @cached_property
    def _objects(self) -> dict[int, Fields]:
        return read_instances(self.config.instances_file, self.config.image_id_format == "file_stem").objects

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        ids: set[str] = set()
        for ref in self._refs:
            own_report = report if _is_in_split(ref, split) else BuildReport()
            for row in _rows(ref, self._objects, self.config.instances_file, own_report):
                ref.add_once(row["example_id"], ids, "the sentence occurs twice", "unique ids")
                if _is_in_split(ref, split):
                    report.add("sentences")
                    yield row


def read_refs(path: Path) -> Iterator[Record]:
    """Reads the references of a file; each describes one object of an image."""
    with data_file(path, HINT):
        if path.suffix == ".json":
            refs = read_json(path)
        else:
            refs = plain(load_pickle(path))
    if not isinstance(refs, list):
        raise DataError("not a list of references", file=path, found=type(refs).__name__, expected="list", hint=HINT)
    refuse_if(not refs, "no references", file=path, expected="a list with one object a reference", hint=HINT)
    for number, ref in enumerate(refs):
        yield Record(ref, path, f"reference {number + 1}", HINT)


class Instances(NamedTuple):
    """The content of a file in COCO's format, by the numbers in it."""

    images: dict[int, Fields]  # image_id, width, height, file_name
    objects: dict[int, Fields]  # bbox, the number of the category, and all of the image, whose number is `image`
    categories: dict[int, str]


def read_instances(path: Path, by_stem: bool = False, hint: str = HINT) -> Instances:
    """Reads images, objects and names of categories of such a file."""
    names = ImageNames(by_stem)
    found = Instances({}, {}, {})
    for member, record in member_records(path, hint, "images", "categories", "annotations"):
        if member == "images":
            number, image_id, file_name = names.read(record)
            size = dict(zip(SIZE, read_size(record), strict=True))
            found.images[number] = {"image_id": image_id, **size, "file_name": file_name}
            continue
        number = record.integer("id")
        known = found.categories if member == "categories" else found.objects
        record.refuse_if(number in known, "the id occurs twice", found=number, expected="unique ids")
        if member == "categories":
            found.categories[number] = record.non_empty_text("name")
        else:
            category = record.integer("category_id")
            image = record.integer("image_id")
            found.objects[number] = {"image": image, "category": category, "bbox": record.box("bbox")}
    for ann_id, item in found.objects.items():
        if item["image"] not in found.images:
            problem = "the object belongs to an image that is not in the file's list of images"
            raise DataError(problem, file=path, where=f"annotation {ann_id}", found=item["image"], hint=hint)
        item.update(found.images[item["image"]])
    return found


def _rows(ref: Record, objects: dict[int, Fields], instances: Path, report: BuildReport) -> Iterator[Fields]:
    ann_id = ref.integer("ann_id")
    ref.refuse_if(
        ann_id not in objects,
        "the annotation of its object is missing",
        found=ann_id,
        expected=f"an annotation of {instances}",
    )
    item = objects[ann_id]
    if item["image"] != ref.integer("image_id"):
        raise ref.error("its object is in another image", found=ref.integer("image_id"), expected=str(item["image"]))
    owner = Record(item, instances, f"annotation {ann_id}", HINT)
    box, clipped = clipped_corners(owner, item["bbox"], item["width"], item["height"])
    if box is None:
        raise owner.error("no part of the box is in its image", item["bbox"], f"{item['width']} x {item['height']}")
    if clipped:
        report.add("boxes_clipped", str(ann_id))
    for sentence in ref.records("sentences", "sentence"):
        text = " ".join(sentence.texts("tokens"))
        sentence.refuse_if(not text.strip(), "bad tokens", found=text, expected="words")
        yield {
            "example_id": str(sentence.integer("sent_id")),
            "image_id": item["image_id"],
            "text": text,
            "width": item["width"],
            "height": item["height"],
            "phrases": [whole_text(text, box)],
        }


def _is_in_split(ref: Record, split: str) -> bool:
    return ref.non_empty_text("split") == split
