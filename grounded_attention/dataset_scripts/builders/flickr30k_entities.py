# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Flickr30K Entities: captions whose phrases are linked to coreference chains, and boxes of those chains.

Reads the official download (https://github.com/BryanPlummer/flickr30k_entities with `annotations.zip` unpacked):
`Sentences/<id>.txt`, `Annotations/<id>.xml`, `train.txt`, `val.txt`, `test.txt`, `UNRELATED_CAPTIONS`. The code of the
VGP paper stores the sentences in `{train,val,test}_captions/` instead; the builder reads that layout too.

Boxes: the XML counts pixels from 1 and includes the last one. As the official utilities do, 1 is subtracted from all
four numbers; they are then divided by the image's width and height. Some tools write such boxes from 0 or with an
exclusive end: up to one pixel outside the image is clipped to [0, 1], more is an error. A box one pixel wide is valid.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar
from xml.etree.ElementTree import Element, ParseError

import datasets
from annotated_types import Ge
from datasets import Value
from defusedxml.ElementTree import parse as parse_xml

from grounded_attention.dataset_scripts.files.errors import (
    DataError,
    MissingFileError,
    check_folder,
    data_file,
    refuse_if,
)
from grounded_attention.dataset_scripts.files.image_files import image_key
from grounded_attention.dataset_scripts.files.records import MAX_INT32, text_lines
from grounded_attention.dataset_scripts.licences import UNCLEAR, Licence
from grounded_attention.dataset_scripts.rows.captions import CHAIN, parse_sentence
from grounded_attention.utils import bounded_files
from grounded_attention.utils.boxes import clip_box, in_shares, look_normalised
from grounded_attention.utils.named_types import AnyPath, Fields
from grounded_attention.utils.safe_paths import path_below

from .local_builder import (
    BOXES,
    SIZE,
    SPLITS,
    TEXTS,
    BuildReport,
    LocalBuilder,
    LocalConfig,
    caption_columns,
    logger,
    phrase_column,
)

HOMEPAGE = "https://github.com/BryanPlummer/flickr30k_entities"
WHERE_TO_GET = f"get Flickr30K Entities from {HOMEPAGE} and unpack its annotations.zip beside the split lists"
SENTENCE_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
NOT_GROUNDED = "0"  # the chain of phrases that describe nothing visible


def read_text(path: Path) -> str:
    """Reads a UTF-8 file."""
    with data_file(path, WHERE_TO_GET):
        return bounded_files.read_text(path)


def parse_unrelated(path: Path) -> set[tuple[str, int]]:
    """Reads UNRELATED_CAPTIONS: a header, then `<image id> <sentence number counted from 1>` a line."""
    listed = set()
    for number, line in enumerate(read_text(path).split("\n"), 1):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        refuse_if(
            len(fields) != 2 or not SENTENCE_NUMBER.fullmatch(fields[1]),
            "not an unrelated caption",
            file=path,
            where=f"line {number}",
            found=line,
            expected="an image id and a sentence number from 1",
        )
        listed.add((image_key(fields[0]), int(fields[1]) - 1))
    return listed


def parse_annotation(path: Path) -> tuple[int, int, dict[str, list[list[float]]]]:
    """Reads width and height of an image, and chain -> its boxes.

    An object may have several names (its boxes then belong to every named chain), and a chain may have several
    objects.
    """
    root = _parse_xml(path)
    width = _number(root.find("size/width"), "width", path, "size")
    height = _number(root.find("size/height"), "height", path, "size")
    if not (1 <= width <= MAX_INT32 and 1 <= height <= MAX_INT32) or width % 1 or height % 1:
        expected = "whole numbers from 1 of 32 bits"
        raise DataError("impossible image size", file=path, found=(width, height), expected=expected)
    chains: dict[str, list[list[float]]] = {}
    for index, item in enumerate(root.iterfind("object"), 1):
        names = list(dict.fromkeys((name.text or "").strip() for name in item.iterfind("name")))
        where = f"object {index} (name {', '.join(names)})"
        refuse_if(not names or "" in names, "an object has no name", file=path, where=where)
        unknown = [name for name in names if not CHAIN.fullmatch(name)]
        if unknown:
            expected = "the number of a chain, as in the captions"
            raise DataError("an object has another name", file=path, where=where, found=unknown[0], expected=expected)
        boxes = [_parse_box(box, width, height, path, where) for box in item.iterfind("bndbox")]
        for name in names:
            chains.setdefault(name, []).extend(boxes)
    chains.pop(NOT_GROUNDED, None)
    return int(width), int(height), chains


def _parse_xml(path: Path) -> Element:
    try:
        with data_file(path, WHERE_TO_GET), bounded_files.open_data(path) as file:
            return parse_xml(file, forbid_dtd=True).getroot()
    except DataError:
        raise
    except (ParseError, ValueError, LookupError) as error:  # an encoding that cannot be read, a declared entity
        problem = f"not well-formed XML without declarations (a truncated or damaged file): {error}"
        raise DataError(problem, file=path, hint="get the file again from a trusted source") from None


def _number(element: Element | None, name: str, path: Path, where: str) -> float:
    text = "" if element is None else (element.text or "").strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    refuse_if(
        not math.isfinite(number),
        f"{name} is not a finite number",
        file=path,
        where=where,
        found=text,
        expected="a number",
    )
    return number


def _parse_box(box: Element, width: float, height: float, path: Path, where: str) -> list[float]:
    sides = ("xmin", "ymin", "xmax", "ymax")
    x1, y1, x2, y2 = pixels = [_number(box.find(side), side, path, where) for side in sides]
    inside = 0 <= x1 <= x2 <= width + 1 and 0 <= y1 <= y2 <= height + 1
    refuse_if(
        not inside or look_normalised([pixels], width, height),
        "the box is inverted, outside the image, or normalised",
        file=path,
        where=where,
        found=pixels,
        expected=f"pixels, x from 1 to {width:g} and y from 1 to {height:g}, at most 1 pixel outside",
    )
    return clip_box(in_shares([pixel - 1 for pixel in pixels], width, height))


LICENCE = Licence(
    "unknown",
    UNCLEAR,
    "The annotations have no licence; ask their authors. The images are available on request, for research only, and "
    "may not be redistributed; they are not included.",
    HOMEPAGE,
)
CITATION = """Bryan A. Plummer, Liwei Wang, Chris M. Cervantes, Juan C. Caicedo, Julia Hockenmaier, Svetlana Lazebnik.
Flickr30k Entities: Collecting Region-to-Phrase Correspondences for Richer Image-to-Sentence Models. ICCV 2015. Peter
Young, Alice Lai, Micah Hodosh, Julia Hockenmaier. From image descriptions to visual denotations. TACL 2014."""
FEATURES = {
    "image_id": Value("string"),
    **SIZE,
    **caption_columns(),
    "phrases": phrase_column(entity=Value("string"), types=TEXTS),
    "objects": BOXES,
}


@dataclass
class Flickr30kEntitiesConfig(LocalConfig):
    """Options of [`Flickr30kEntities`]."""

    LICENCE = LICENCE
    WHERE = WHERE_TO_GET

    captions_per_image: Annotated[int, Ge(0)] = 5

    def sources(self) -> list[Path]:
        if self.data_dir:
            return EntitiesFiles.locate(self.data_dir).sources()
        return []

    def needed_files(self, split: str) -> list[Path]:
        files = EntitiesFiles.locate(self.data_dir)
        if files.split_folders:
            return []
        return [files.root / f"{split}.txt", files.root / "UNRELATED_CAPTIONS"]


class Flickr30kEntities(LocalBuilder):
    """One row an image: its five captions, their tagged phrases with boxes, and the boxes of all objects.

    `data_dir` is the official folder, or a folder that contains it as `flickr30k_entities`. A row is `{image_id,
    width, height, captions, caption_ids, related, phrases, objects}`. `caption_ids` are `<image_id>#<k>` with k
    counted from 0 in file order. `related` is False for the captions listed in UNRELATED_CAPTIONS, whose phrases have
    no boxes. A phrase is `{text, start, end, sentence, boxes, entity, types}`: characters of the caption `sentence`,
    boxes (x1, y1, x2, y2) in [0, 1], of which a phrase without annotation has none, and the id of its chain, `"0"` for
    phrases that describe nothing visible.
    """

    config: Flickr30kEntitiesConfig
    BUILDER_CONFIG_CLASS = Flickr30kEntitiesConfig
    BUILDER_CONFIGS = [Flickr30kEntitiesConfig(name="default")]

    INFO: ClassVar[tuple[str, Any, str, str]] = (
        "Phrases of image captions linked to each other and to boxes in the image.",
        FEATURES,
        HOMEPAGE,
        CITATION,
    )

    @cached_property
    def files(self) -> "EntitiesFiles":
        """The files of `data_dir`."""
        return EntitiesFiles.locate(self.config.data_dir)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        generators = super()._split_generators(dl_manager)
        self.files.check([each.gen_kwargs["split"] for each in generators], self.config.splits is not None)
        return generators

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        for image_id in self.files.image_ids(split):
            width, height, boxes = parse_annotation(self.files.annotation(image_id))
            captions = self.files.captions(split, image_id, self.config.captions_per_image)
            phrases: list[Fields] = []
            for number, caption in enumerate(captions):
                for phrase in caption["phrases"]:
                    if caption["related"]:
                        gold = boxes.get(phrase["entity"], [])
                    else:
                        gold = []
                    phrases.append({**phrase, "sentence": number, "boxes": gold})
            yield {
                "image_id": image_id,
                "width": width,
                "height": height,
                "captions": [caption["text"] for caption in captions],
                "caption_ids": [caption["caption_id"] for caption in captions],
                "related": [caption["related"] for caption in captions],
                "phrases": phrases,
                "objects": list(dict.fromkeys(tuple(box) for of_chain in boxes.values() for box in of_chain)),
            }


@dataclass
class EntitiesFiles:
    """Paths of the files of Flickr30K Entities."""

    root: Path
    split_folders: bool = False

    @classmethod
    def locate(cls, data_dir: AnyPath | None) -> "EntitiesFiles":
        """Finds the files in `data_dir` or in its folder `flickr30k_entities`."""
        check_folder(data_dir, WHERE_TO_GET)
        folder = Path(str(data_dir))
        candidates = [folder / "flickr30k_entities", folder]
        for root in candidates:
            if (root / "Sentences").is_dir() or any((root / f"{split}.txt").is_file() for split in SPLITS):
                return cls(root)
        if any((folder / f"{split}_captions").is_dir() for split in SPLITS):
            return cls(folder, split_folders=True)
        return cls(next(root for root in candidates if root.is_dir()))

    def sources(self) -> list[Path]:
        """Returns all files and folders that are read."""
        names = []
        for split in SPLITS:
            names.append(f"{split}_captions" if self.split_folders else f"{split}.txt")
        return [self.root / name for name in [*names, "Sentences", "Annotations", "UNRELATED_CAPTIONS"]]

    def sentences(self, split: str, image_id: str) -> Path:
        """Returns the sentence file of an image."""
        folder = self.root / (f"{split}_captions" if self.split_folders else "Sentences")
        return path_below(folder, f"{image_id}.txt")

    def annotation(self, image_id: str) -> Path:
        """Returns the annotation file of an image."""
        return path_below(self.root / "Annotations", f"{image_id}.xml")

    def image_ids(self, split: str) -> list[str]:
        """Returns the image ids of a split, in the order of its list (sorted as text if there is only a folder)."""
        if self.split_folders:
            folder = self.sentences(split, "").parent
            if not folder.is_dir():
                raise MissingFileError("the folder is missing", file=folder, hint=WHERE_TO_GET)
            return sorted(path.stem for path in folder.glob("*.txt"))
        first_lines: dict[str, int] = {}
        for number, line in text_lines(self._list(split), WHERE_TO_GET):
            image_id = line.strip()
            if image_id in first_lines:
                where = f"line {number}"
                first = f"unique ids; the first is line {first_lines[image_id]}"
                raise DataError(
                    "the image occurs twice", file=self._list(split), where=where, found=image_id, expected=first
                )
            if image_id:
                first_lines[image_id] = number
        return list(first_lines)

    def split_images(self, splits: Sequence[str]) -> dict[str, list[str]]:
        """Returns split -> its image ids, as `image_ids`."""
        of_split = {split: self.image_ids(split) for split in splits}
        first: dict[str, str] = {}
        for split, image_ids in of_split.items():
            shared = [image_id for image_id in image_ids if image_id in first]
            if shared:
                other = f"images of this split alone, but {self._list(first[shared[0]])} has it too"
                problem = f"{len(shared)} images are in two splits"
                hint = f"remove them from one; {WHERE_TO_GET}"
                raise DataError(problem, file=self._list(split), found=shared[0], expected=other, hint=hint)
            first.update(dict.fromkeys(image_ids, split))
        return of_split

    def _list(self, split: str) -> Path:
        """The list of a split, or its folder."""
        if self.split_folders:
            return self.sentences(split, "").parent
        return self.root / f"{split}.txt"

    def check(self, splits: Sequence[str], wanted: bool = False) -> None:
        """Checks that all files of some splits exist, before any work is done; a split that is `wanted` has images."""
        for split, image_ids in self.split_images(splits).items():
            if not image_ids and (wanted or split == "train"):
                expected = "image ids, one a line, or in a folder a file for each image"
                raise DataError("the split has no image", file=self._list(split), expected=expected, hint=WHERE_TO_GET)
            sentences = [self.sentences(split, image_id) for image_id in image_ids]
            annotations = [self.annotation(image_id) for image_id in image_ids]
            for paths in (sentences, annotations):
                missing = [path for path in paths if not path.is_file()]
                if missing:
                    raise MissingFileError(
                        f"the file is missing ({len(missing)} of the {len(image_ids)} like it for {split})",
                        file=missing[0],
                        hint=WHERE_TO_GET,
                    )

    @cached_property
    def unrelated(self) -> set[tuple[str, int]]:
        """The captions that do not belong to their image, as (`image_key`, caption index counted from 0)."""
        path = self.root / "UNRELATED_CAPTIONS"
        if self.split_folders and not path.is_file():
            logger.warning("%s is missing: captions that do not describe their image are not recognised", path)
            return set()
        return parse_unrelated(path)

    def captions(self, split: str, image_id: str, expected: int) -> list[Fields]:
        """Reads the captions of an image, each with its phrases; `expected` of them, or any number for 0."""
        path = self.sentences(split, image_id)
        lines = [(number, line) for number, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]
        if not lines or expected not in (0, len(lines)):
            raise DataError(
                "the sentence file looks truncated",
                file=path,
                found=f"{len(lines)} captions",
                expected=f"{expected or 'at least 1'}",
                hint="get the file again, or pass captions_per_image=0 if your copy really differs",
            )
        captions = []
        for index, (number, line) in enumerate(lines):
            text, phrases = parse_sentence(line, file=path, where=f"line {number}")
            related = (image_key(image_id), index) not in self.unrelated
            captions.append(
                {"caption_id": f"{image_id}#{index}", "text": text, "related": related, "phrases": phrases}
            )
        return captions
