# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VCR: questions about scenes of movies with four answers, and four reasons for the right one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import datasets
from datasets import List, Value

from grounded_attention.dataset_scripts.files.errors import MissingFileError
from grounded_attention.dataset_scripts.files.records import Record
from grounded_attention.dataset_scripts.licences import FORBIDDEN, Licence

from .local_builder import SPLITS, LocalBuilder, LocalConfig, Report
from .vcr_files import HINT, HOMEPAGE, ImageObjects, read_objects, read_questions
from .vcr_words import object_words, render

LICENCE = Licence(
    "other",
    FORBIDDEN,
    "Given out for non-commercial use to those who fill in a form, and not to be passed on; ask its authors.",
    HOMEPAGE,
)
CITATION = """Rowan Zellers, Yonatan Bisk, Ali Farhadi, Yejin Choi. From Recognition to Cognition: Visual Commonsense
Reasoning. CVPR 2019."""
CHOICES = 4
OPTIONS = {
    "mode": ("answer", "rationale"),
    "names": ("neutral", "category"),
    "image_id_format": ("file_stem", "img_id", "number"),
}
# What ViLBERT's feature files add to the number of an image, so that the splits share a table.
NUMBERS_FROM = {"train": 0, "val": 1_000_000, "test": 2_000_000}
TEXT = {
    "text": Value("string"),
    "tags": List({"start": Value("int32"), "end": Value("int32"), "objects": List(Value("int32"))}),
}
FEATURES = {
    "example_id": Value("string"),
    "image_id": Value("string"),
    "file_name": Value("string"),
    "width": Value("int32"),
    "height": Value("int32"),
    "objects": List(Value("string")),
    "boxes": List(List(Value("float32"), length=4)),
    "mode": Value("string"),
    "answer": Value("int32"),
    "question": TEXT,
    "choices": List(TEXT, length=CHOICES),
    "label": Value("int32"),
}
Row = dict[str, Any]


@dataclass
class VCRConfig(LocalConfig):
    """Options of [`VCR`].

    Args:
        mode: `"answer"` (Q→A), or `"rationale"` (QA→R: the right answer is part of the question).
        names: What persons are called: `"neutral"`, one of 13 gender-neutral names, or `"category"`, "person".
        image_id_format: `"file_stem"` of the image, `"img_id"` (`train-0`), or `"number"` as in ViLBERT's features
            (`train-7` is 7, `val-7` 1000007, `test-7` 2000007).
    """

    LICENCE: ClassVar[Licence] = LICENCE

    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = OPTIONS

    mode: str = "answer"
    names: str = "neutral"
    image_id_format: str = "file_stem"

    def sources(self) -> list[Path]:
        # Not the folder of images: to look at 200,000 files takes longer than to use the data.
        return [self.questions(split) for split in SPLITS] if self.data_dir else []

    def questions(self, split: str) -> Path:
        """The file of questions of a split."""
        return self._folder("vcr1annots") / f"{split}.jsonl"

    @property
    def images(self) -> Path:
        """The folder of images and their files of boxes."""
        return self._folder("vcr1images")

    def _folder(self, name: str) -> Path:
        root = Path(self.data_dir or ".")
        return next((place / name for place in (root, root / "vcr") if (place / name).is_dir()), root / name)

    def existing(self) -> tuple[str, ...]:
        """train, val, and test if its file lies in the folder."""
        return tuple(split for split in SPLITS if split != "test" or self.questions(split).is_file())

    def where_to_get(self) -> str:
        return HINT

    def needed_files(self, split: str) -> list[Path]:
        return [self.questions(split)]

    def check(self) -> None:
        """Checks the options, and that the folder of images is there.

        Raises:
            DataError: No folder was given, or an option has an impossible value.
            MissingFileError: There is no folder of images.
        """
        super().check()
        if any(self.questions(split).is_file() for split in SPLITS) and not self.images.is_dir():
            raise MissingFileError("the folder is missing", file=self.images, hint=HINT)


class VCR(LocalBuilder):
    """One row a question: `{example_id, image_id, file_name, width, height, objects, boxes, mode, answer, question,
    choices, label}`.

    `question` and each of the four `choices` are `{text, tags}`; a tag `{start, end, objects}` says which object a
    span of characters names. Objects in the text are written as their category, persons as gender-neutral names (see
    [`object_words`]), several as "a and b". `boxes` are those of the `objects`, divided by the image's size; an object
    without a box (or one that holds no pixel) has that of the whole image, and is counted in `builder.report`.

    `label` is the right choice. In mode `"rationale"` the question ends in the right answer, number `answer` of the
    four (-1 in mode `"answer"`). The labels of test are not published: `label` is -1, and mode `"rationale"` gives
    four rows a question, one for each answer, `example_id` then ending in `_a0` to `_a3`, as its leaderboard asks.

    Example:

    ```python
    builder = VCR(data_dir="data/vcr", mode="rationale")
    builder.download_and_prepare()
    validation = builder.as_dataset("validation")
    ```

    Raises:
        DataError: A line, an image's boxes or an option is wrong; the message names file and line.
        MissingFileError: A file is missing; the message names it and where to get it.
    """

    config: VCRConfig
    BUILDER_CONFIG_CLASS = VCRConfig
    BUILDER_CONFIGS = [VCRConfig(name="default")]

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(
            description="Questions about scenes of movies with four answers and four reasons.",
            features=datasets.Features(FEATURES),
            homepage=HOMEPAGE,
            citation=CITATION,
        )

    def _generate_examples(self, split: str) -> Iterator[tuple[str, Row]]:
        report = Report()
        read = lru_cache(maxsize=64)(read_objects)  # questions about an image follow one another
        for record in read_questions(self.config.questions(split)):
            for row in _rows(record, split, self.config, read, report):
                yield row["example_id"], row
        self.report[str(SPLITS[split])] = report.as_dict()


def _rows(
    record: Record, split: str, config: VCRConfig, read: Callable[[Path], ImageObjects], report: Report
) -> Iterator[Row]:
    image, annot_id = objects_of(record, config, read), record.non_empty_text("annot_id")
    words = object_words(image.names, annot_id, config.names == "neutral")
    report.add("questions")
    _count_boxes(image, annot_id, report)
    sizes = (image.width, image.height) * 2
    common = {
        "image_id": named_image(record, split, config.image_id_format),
        "file_name": record.non_empty_text("img_fn"),
        "width": image.width,
        "height": image.height,
        "objects": image.names,
        "boxes": [[value / size for value, size in zip(box, sizes, strict=True)] for box in image.filled_boxes],
        "mode": config.mode,
    }
    choices = [render(record, name, tokens, words) for name, tokens in _choices(record, config.mode)]
    label = -1 if split == "test" else _label(record, config.mode)
    for example_id, answer, tokens in _questions(record, split, config.mode):
        question = render(record, "question", tokens, words)
        row = {"example_id": example_id, "answer": answer, "question": question, "choices": choices, "label": label}
        yield {**common, **row}


def objects_of(record: Record, config: VCRConfig, read: Callable[[Path], ImageObjects]) -> ImageObjects:
    """The boxes of a question's image, which must be of the objects that the question lists.

    Raises:
        DataError: The file of boxes is missing or damaged, or of other objects.
    """
    path = config.images / record.non_empty_text("metadata_fn")
    try:
        image = read(path)
    except MissingFileError:
        # No MissingFileError: what is an OSError, `datasets` words anew while it builds.
        raise record.error("the boxes of its image are missing", expected=f"a file {path}") from None
    if image.names != record.items("objects"):
        found, expected = record.items("objects"), str(image.names)
        raise record.error("objects are not those of its image", found=found, expected=expected)
    return image


def named_image(record: Record, split: str, image_id_format: str) -> str:
    """The id of a question's image in one of the formats of [`VCRConfig`].

    Raises:
        DataError: The record has no such id.
    """
    if image_id_format == "file_stem":
        return PurePosixPath(record.non_empty_text("img_fn")).stem
    img_id = record.non_empty_text("img_id")
    if image_id_format == "img_id":
        return img_id
    number = img_id.removeprefix(f"{split}-")
    if not (number.isascii() and number.isdigit()):
        raise record.error("bad img_id", found=img_id, expected=f"{split}- and a number")
    return str(NUMBERS_FROM[split] + int(number))


def _choices(record: Record, mode: str) -> list[tuple[str, Any]]:
    """What each of the four choices is called in errors, and its tokens."""
    name = f"{mode}_choices"
    choices = record.items(name)
    if len(choices) != CHOICES:
        raise record.error(f"not {CHOICES} {name}", found=len(choices), expected=str(CHOICES))
    return [(f"{name} {place}", tokens) for place, tokens in enumerate(choices)]


def _label(record: Record, mode: str) -> int:
    label = record.integer(f"{mode}_label")
    if not 0 <= label < CHOICES:
        raise record.error(f"impossible {mode}_label", found=label, expected=f"0 to {CHOICES - 1}")
    return label


def _questions(record: Record, split: str, mode: str) -> list[tuple[str, int, list[Any]]]:
    """The rows of a question: id, the answer that is given, and the tokens with it."""
    annot_id, asked = record.non_empty_text("annot_id"), record.items("question")
    if mode == "answer":
        return [(annot_id, -1, asked)]
    answers = [tokens for _, tokens in _choices(record, "answer")]
    for place, tokens in enumerate(answers):
        if not isinstance(tokens, list):
            raise record.error(f"bad answer_choices {place}", found=tokens, expected="a list")
    if split == "test":
        return [(f"{annot_id}_a{place}", place, asked + tokens) for place, tokens in enumerate(answers)]
    right = _label(record, "answer")
    return [(annot_id, right, asked + answers[right])]


def _count_boxes(image: ImageObjects, annot_id: str, report: Report) -> None:
    missing = sum(box is None for box in image.boxes)
    if missing:
        report.add("objects_without_boxes", annot_id, missing)
    if image.clipped:
        report.add("boxes_clipped", annot_id, image.clipped)
