# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Flickr30K Entities: captions whose phrases are linked to coreference chains, and boxes of those chains.

Reads the official download (https://github.com/BryanPlummer/flickr30k_entities with `annotations.zip` unpacked):
`Sentences/<id>.txt`, `Annotations/<id>.xml`, `train.txt`, `val.txt`, `test.txt`, `UNRELATED_CAPTIONS`. The code of the
VGP paper stores the sentences in `{train,val,test}_captions/` instead; the builder reads that layout too.

`flickr30k_parsing` describes the parsing of tags and boxes.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import datasets
from datasets import List, Value

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError, check_folder
from grounded_attention.dataset_scripts.files.image_files import image_key
from grounded_attention.dataset_scripts.files.streaming import text_lines
from grounded_attention.dataset_scripts.licences import UNCLEAR, Licence
from grounded_attention.utils.safe_paths import path_below

from .flickr30k_parsing import HOMEPAGE, WHERE_TO_GET, parse_annotation, parse_sentence, parse_unrelated, read_text
from .local_builder import SIZE, SPLITS, BuildReport, LocalBuilder, LocalConfig, caption_columns, logger, phrase_column

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
    "phrases": phrase_column(entity=Value("string"), types=List(Value("string"))),
    "objects": List(List(Value("float32"), length=4)),
}


@dataclass
class Flickr30kEntitiesConfig(LocalConfig):
    """Options of [`Flickr30kEntities`]."""

    LICENCE: ClassVar[Licence] = LICENCE
    WHERE: ClassVar[str] = WHERE_TO_GET

    captions_per_image: int = 5

    def sources(self) -> list[Path]:
        if self.data_dir:
            return EntitiesFiles.locate(self.data_dir).sources()
        return []

    def needed_files(self, split: str) -> list[Path]:
        files = EntitiesFiles.locate(self.data_dir)
        return [] if files.split_folders else [files.root / f"{split}.txt", files.root / "UNRELATED_CAPTIONS"]


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

    INFO = ("Phrases of image captions linked to each other and to boxes in the image.", FEATURES, HOMEPAGE, CITATION)

    @cached_property
    def files(self) -> "EntitiesFiles":
        """The files of `data_dir`."""
        return EntitiesFiles.locate(self.config.data_dir)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        generators = super()._split_generators(dl_manager)
        self.files.check([each.gen_kwargs["split"] for each in generators], self.config.splits is not None)
        return generators

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[dict[str, Any]]:
        for image_id in self.files.image_ids(split):
            width, height, boxes = parse_annotation(self.files.annotation(image_id))
            captions = self.files.captions(split, image_id, self.config.captions_per_image)
            phrases: list[dict[str, Any]] = []
            for number, caption in enumerate(captions):
                for phrase in caption["phrases"]:
                    gold = boxes.get(phrase["entity"], []) if caption["related"] else []
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
    def locate(cls, data_dir: str | os.PathLike[str] | None) -> "EntitiesFiles":
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
        names = [f"{split}_captions" if self.split_folders else f"{split}.txt" for split in SPLITS]
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
                if missing := [path for path in paths if not path.is_file()]:
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

    def captions(self, split: str, image_id: str, expected: int) -> list[dict[str, Any]]:
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
