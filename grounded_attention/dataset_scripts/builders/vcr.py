# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VCR: questions about movie scenes with four answers, and four rationales for the right answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from datasets import List, Value

from grounded_attention.dataset_scripts.files.errors import MissingFileError
from grounded_attention.dataset_scripts.files.records import Record
from grounded_attention.dataset_scripts.licences import FORBIDDEN, Licence
from grounded_attention.utils.safe_paths import path_below

from .local_builder import SIZE, SPLITS, BuildReport, LocalBuilder, LocalConfig, texts
from .vcr_files import HINT, HOMEPAGE, ImageObjects, object_words, read_objects, read_questions, render

LICENCE = Licence(
    "other",
    FORBIDDEN,
    "Available by form for non-commercial use; redistribution is not permitted. Ask its authors.",
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
# Numbers that ViLBERT's feature files add to those of the images, so that one table holds all splits.
FIRST_NUMBERS = {"train": 0, "val": 1_000_000, "test": 2_000_000}
FEATURES = {
    **texts("example_id", "image_id", "file_name"),
    **SIZE,
    "objects": List(Value("string")),
    "boxes": List(List(Value("float32"), length=4)),
    "mode": Value("string"),
    "answer": Value("int32"),
    "text": Value("string"),
    "choices": List(Value("string"), length=CHOICES),
    "phrases": List(
        {
            "text": Value("string"),
            **dict.fromkeys(("start", "end", "sentence"), Value("int32")),
            "regions": List(Value("int32")),
        }
    ),
    "label": Value("int32"),
}
Row = dict[str, Any]


@dataclass
class VCRConfig(LocalConfig):
    """Options of [`VCR`]."""

    LICENCE: ClassVar[Licence] = LICENCE
    WHERE: ClassVar[str] = HINT
    REQUIRED: ClassVar[Sequence[str]] = ("train", "val")
    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = OPTIONS

    mode: str = "answer"
    names: str = "neutral"
    image_id_format: str = "file_stem"

    def questions(self, split: str) -> Path:
        """Returns the file of questions of a split."""
        return self._folder("vcr1annots") / f"{split}.jsonl"

    @property
    def images(self) -> Path:
        """The folder of images and their files of boxes."""
        return self._folder("vcr1images")

    def _folder(self, name: str) -> Path:
        root = Path(self.data_dir or ".")
        return next((place / name for place in (root, root / "vcr") if (place / name).is_dir()), root / name)

    def needed_files(self, split: str) -> list[Path]:
        # Without the folder of images: checking 200,000 files takes longer than using the data.
        return [self.questions(split)]

    def check(self) -> None:
        super().check()
        if any(self.questions(split).is_file() for split in SPLITS) and not self.images.is_dir():
            raise MissingFileError("the folder is missing", file=self.images, hint=HINT)


class VCR(LocalBuilder):
    """One row a question with four choices, the objects of its image and their boxes.

    A row is `{example_id, image_id, file_name, width, height, objects, boxes, mode, answer, text, choices, phrases,
    label}`. `text` is the question. `phrases` are the words that name objects: characters of the question (`sentence`
    0) or of a choice (1 to 4), and the index of the object as `regions`. In the text, an object is its category and a
    person a gender-neutral name (see [`object_words`]); several are written as "a and b". `boxes` are those of the
    `objects`, divided by the image's size. An object without a box (or with one that contains no pixel) gets the box
    of the whole image, and `builder.report` counts it.

    `label` is the right choice. In mode `"rationale"` the question ends in the right answer; `answer` is its number
    (-1 in mode `"answer"`). The labels of test are not published: `label` is -1, and mode `"rationale"` gives four
    rows a question, one for each answer; their `example_id` ends in `_a0` to `_a3`, as the leaderboard requires.
    """

    config: VCRConfig
    BUILDER_CONFIG_CLASS = VCRConfig
    BUILDER_CONFIGS = [VCRConfig(name="default")]

    INFO = ("Questions about movie scenes with four answers and four rationales.", FEATURES, HOMEPAGE, CITATION)

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Row]:
        read = lru_cache(maxsize=64)(read_objects)  # questions about an image are consecutive
        for record in read_questions(self.config.questions(split)):
            yield from _rows(record, split, self.config, read, report)


def _rows(
    record: Record, split: str, config: VCRConfig, read: Callable[[Path], ImageObjects], report: BuildReport
) -> Iterator[Row]:
    image = read_image_objects(record, config, read)
    annot_id = record.non_empty_text("annot_id")
    words = object_words(image.names, annot_id, config.names == "neutral")
    report.add("questions")
    _count_boxes(image, annot_id, report)
    sizes = (image.width, image.height) * 2
    common = {
        "image_id": image_id_of(record, split, config.image_id_format),
        "file_name": record.non_empty_text("img_fn"),
        "width": image.width,
        "height": image.height,
        "objects": image.names,
        "boxes": [[value / size for value, size in zip(box, sizes, strict=True)] for box in image.filled_boxes],
        "mode": config.mode,
    }
    choices = [
        render(record, name, tokens, words, number)
        for number, (name, tokens) in enumerate(_choices(record, config.mode), 1)
    ]
    label = -1 if split == "test" else _label(record, config.mode)
    for example_id, answer, tokens in _questions(record, split, config.mode):
        text, phrases = render(record, "question", tokens, words)
        yield {
            **common,
            "example_id": example_id,
            "answer": answer,
            "text": text,
            "choices": [choice for choice, _ in choices],
            "phrases": [*phrases, *chain.from_iterable(named for _, named in choices)],
            "label": label,
        }


def read_image_objects(record: Record, config: VCRConfig, read: Callable[[Path], ImageObjects]) -> ImageObjects:
    """Reads the boxes of a question's image and checks that their objects are those of the question."""
    path = path_below(config.images, record.non_empty_text("metadata_fn"))
    try:
        image = read(path)
    except MissingFileError:
        # Not a MissingFileError: `datasets` replaces the message of an OSError.
        raise record.error("the file with the boxes of its image is missing", expected=f"a file {path}") from None
    if image.names != record.items("objects"):
        found = record.items("objects")
        expected = str(image.names)
        raise record.error("objects differ from those of its image", found=found, expected=expected)
    return image


def image_id_of(record: Record, split: str, image_id_format: str) -> str:
    """Returns the id of a question's image."""
    if image_id_format == "file_stem":
        return PurePosixPath(record.non_empty_text("img_fn")).stem
    img_id = record.non_empty_text("img_id")
    if image_id_format == "img_id":
        return img_id
    number = img_id.removeprefix(f"{split}-")
    if not (number.isascii() and number.isdigit()):
        raise record.error("bad img_id", found=img_id, expected=f"{split}- and a number")
    return str(FIRST_NUMBERS[split] + int(number))


def _choices(record: Record, mode: str) -> list[tuple[str, Any]]:
    """Returns, for each of the four choices, its name in errors and its tokens."""
    name = f"{mode}_choices"
    choices = record.items(name)
    record.refuse_if(len(choices) != CHOICES, f"wrong number of {name}", found=len(choices), expected=str(CHOICES))
    return [(f"{name} {place}", tokens) for place, tokens in enumerate(choices)]


def _label(record: Record, mode: str) -> int:
    label = record.integer(f"{mode}_label")
    record.refuse_if(not 0 <= label < CHOICES, f"impossible {mode}_label", found=label, expected=f"0 to {CHOICES - 1}")
    return label


def _questions(record: Record, split: str, mode: str) -> list[tuple[str, int, list[Any]]]:
    """Returns the rows of a question: id, number of the given answer, and the tokens including that answer."""
    annot_id = record.non_empty_text("annot_id")
    question = record.items("question")
    if mode == "answer":
        return [(annot_id, -1, question)]
    answers = [tokens for _, tokens in _choices(record, "answer")]
    for place, tokens in enumerate(answers):
        if not isinstance(tokens, list):
            raise record.error(f"bad answer_choices {place}", found=tokens, expected="a list")
    if split == "test":
        return [(f"{annot_id}_a{place}", place, question + tokens) for place, tokens in enumerate(answers)]
    right = _label(record, "answer")
    return [(annot_id, right, question + answers[right])]


def _count_boxes(image: ImageObjects, annot_id: str, report: BuildReport) -> None:
    missing = sum(box is None for box in image.boxes)
    if missing:
        report.add("objects_without_boxes", annot_id, missing)
    if image.clipped:
        report.add("boxes_clipped", annot_id, image.clipped)
