# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VCR: questions about movie scenes with four answers, and four rationales for the right answer."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from datasets import List, Value

from grounded_attention.dataset_scripts.files.errors import MissingFileError, data_file, refuse_if
from grounded_attention.dataset_scripts.files.records import Record, are_numbers, json_lines, refuse_constant
from grounded_attention.dataset_scripts.licences import FORBIDDEN, Licence
from grounded_attention.utils.bounded_files import parse_json, read_text
from grounded_attention.utils.boxes import clip_box, in_shares, look_normalised
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.plain_text import has_surrogates
from grounded_attention.utils.safe_paths import path_below

from .local_builder import BOXES, SIZE, SPLITS, TEXTS, BuildReport, LocalBuilder, LocalConfig, read_size, texts

HOMEPAGE = "https://visualcommonsense.com"
HINT = (
    "get annotations and images through the form on https://visualcommonsense.com/download; unpack both in one folder"
)


@dataclass(frozen=True)
class ImageObjects:
    """The content of the file that belongs to an image."""

    width: int
    height: int
    names: list[str]
    boxes: list[list[float] | None]
    clipped: int

    @property
    def filled_boxes(self) -> list[list[float]]:
        """The boxes; an object without one has the box of the whole image."""
        return [[0.0, 0.0, self.width, self.height] if box is None else box for box in self.boxes]


def read_questions(path: Path) -> Iterator[Record]:
    """Reads the records of a file of questions, one a line."""
    ids: set[str] = set()
    for record in json_lines(path, HINT, _decode):
        annot_id = record.non_empty_text("annot_id")
        record.add_once(annot_id, ids, "the question occurs twice", "unique values of annot_id")
        yield record
    refuse_if(not ids, "no questions", file=path, expected="a question a line", hint=HINT)


def read_objects(path: Path) -> ImageObjects:
    """Reads the boxes and categories of an image's objects; ignores the fifth number, the score."""
    with data_file(path, HINT, "the file with the boxes of an image is missing"):
        record = Record(_decode(read_text(path), path), path, "image", HINT)
    width, height = read_size(record)
    names = record.texts("names")
    record.refuse_if(
        not all(name.strip() for name in names), "bad names", found=names, expected="the category of each object"
    )
    boxes_in_file = record.items("boxes")
    record.refuse_if(
        len(boxes_in_file) > len(names), "more boxes than names", found=len(boxes_in_file), expected=str(len(names))
    )
    boxes = [_corners(record, place, box) for place, box in enumerate(boxes_in_file)]
    if look_normalised([box for box in boxes if box is not None], width, height):
        raise record.error("the boxes look normalised", found=boxes[:2], expected="x1, y1, x2, y2 in pixels")
    inside = []
    for box in boxes:
        inside.append(None if box is None else _inside(box, width, height))
    clipped = sum(after is not None and before != after for before, after in zip(boxes, inside, strict=True))
    return ImageObjects(width, height, names, inside + [None] * (len(names) - len(inside)), clipped)


def _inside(box: list[float], width: int, height: int) -> list[float] | None:
    clipped = clip_box(box, width, height)
    if clipped[2] - clipped[0] >= 1 and clipped[3] - clipped[1] >= 1:
        return clipped
    return None


def _corners(record: Record, place: int, box: Any) -> list[float] | None:
    """Returns the four corners; None without a box."""
    if box is None or box == []:
        return None
    expected = "x1, y1, x2, y2 in pixels, and optionally a score"
    record.refuse_if(not are_numbers(box, 4, 5), f"bad box {place}", found=box, expected=expected)
    record.refuse_if(box[2] < box[0] or box[3] < box[1], f"box {place} is inverted", found=box, expected=expected)
    return box[:4]


def _decode(text: str, place: object) -> Any:
    return parse_json(text, place, parse_constant=refuse_constant)


PERSON = "person"
# The names of the VL-BERT public code, in its order; none of them reveals a gender.
NEUTRAL_NAMES = (
    "Casey",
    "Riley",
    "Jessie",
    "Jackie",
    "Avery",
    "Jaime",
    "Peyton",
    "Kerry",
    "Jody",
    "Kendall",
    "Frankie",
    "Pat",
    "Quinn",
)
_EXPECTED = "words and lists of object indices"


def object_words(objects: Sequence[str], example_id: str, neutral: bool) -> list[str]:
    """Returns the word for each object: its category, or a gender-neutral name for a person if `neutral` is set.

    Persons get the names in turn, in the order of the objects. The VL-BERT public code continues with the next name at
    the next item. Here an item starts at a name drawn by its id (CRC-32), so that a row depends only on itself and
    names reveal little about the position of an object. A fourteenth person gets the name of the first.
    """
    start = zlib.crc32(example_id.encode())
    words = []
    persons = 0
    for category in objects:
        if neutral and category == PERSON:
            words.append(NEUTRAL_NAMES[(start + persons) % len(NEUTRAL_NAMES)])
            persons += 1
        else:
            words.append(category)
    return words


def render(
    record: Record, what: str, tokens: Any, words: Sequence[str], sentence: int = 0
) -> tuple[str, list[Fields]]:
    """Converts mixed tokens to a text, tokens joined by spaces, and phrases of this sentence for its objects.

    A list of several objects is written as "a and b". Each name is its own phrase, so that its word pieces can see its
    region; "and" is none (VL-BERT public code).
    """
    if not isinstance(tokens, list):
        raise record.error(f"bad {what}", found=tokens, expected=_EXPECTED)
    text = ""
    phrases = []
    for word, index in _words_with_objects(record, what, tokens, words):
        start = len(text) + bool(text)
        text = f"{text} {word}" if text else word
        if index is not None:
            place = {"start": start, "end": len(text), "sentence": sentence}
            phrases.append({"text": word, **place, "regions": [index]})
    record.refuse_if(not text, f"no words in {what}", found=tokens, expected=_EXPECTED)
    record.refuse_if(has_surrogates(text), f"bad {what}", found=text, expected="words without unpaired surrogates")
    return text, phrases


def _words_with_objects(
    record: Record, what: str, tokens: list[Any], words: Sequence[str]
) -> list[tuple[str, int | None]]:
    """Returns the words in order, each with the index of its object, or None."""
    words_with_objects: list[tuple[str, int | None]] = []
    for token in tokens:
        if isinstance(token, str):
            words_with_objects += [(" ".join(token.split()), None)] if token.strip() else []
            continue
        if not isinstance(token, list) or not token:
            raise record.error(f"bad {what}", found=token, expected=_EXPECTED)
        for place, index in enumerate(token):
            if type(index) is not int or not 0 <= index < len(words):
                expected = f"an index into its {len(words)} objects, from 0"
                raise record.error(f"{what} refers to an object that does not exist", found=index, expected=expected)
            words_with_objects += [("and", None)] if place else []
            words_with_objects.append((words[index], index))
    return words_with_objects


LICENCE = Licence(
    "other",
    FORBIDDEN,
    "Available by form for non-commercial use; redistribution is not permitted. Ask its authors.",
    HOMEPAGE,
)
CITATION = """Rowan Zellers, Yonatan Bisk, Ali Farhadi, Yejin Choi. From Recognition to Cognition: Visual Commonsense
Reasoning. CVPR 2019."""
CHOICES = 4
# Numbers that ViLBERT's feature files add to those of the images, so that one table holds all splits.
FIRST_NUMBERS = {"train": 0, "val": 1_000_000, "test": 2_000_000}
FEATURES = {
    **texts("example_id", "image_id", "file_name"),
    **SIZE,
    "objects": TEXTS,
    "boxes": BOXES,
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


@dataclass
class VCRConfig(LocalConfig):
    """Options of [`VCR`]."""

    LICENCE = LICENCE
    WHERE = HINT
    REQUIRED = ("train", "val")

    mode: Literal["answer", "rationale"] = "answer"
    names: Literal["neutral", "category"] = "neutral"
    image_id_format: Literal["file_stem", "img_id", "number"] = "file_stem"

    def questions(self, split: str) -> Path:
        """Returns the file of questions of a split."""
        return self._folder("vcr1annots") / f"{split}.jsonl"

    @property
    def images(self) -> Path:
        """The folder of images and their files of boxes."""
        return self._folder("vcr1images")

    def _folder(self, name: str) -> Path:
        inner = self.root / "vcr" / name
        if inner.is_dir() and not (self.root / name).is_dir():
            return inner
        return self.root / name

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

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        read = lru_cache(maxsize=64)(read_objects)  # questions about an image are consecutive
        for record in read_questions(self.config.questions(split)):
            yield from _rows(record, split, self.config, read, report)


def _rows(
    record: Record, split: str, config: VCRConfig, read: Callable[[Path], ImageObjects], report: BuildReport
) -> Iterator[Fields]:
    image = read_image_objects(record, config, read)
    annot_id = record.non_empty_text("annot_id")
    words = object_words(image.names, annot_id, config.names == "neutral")
    report.add("questions")
    missing = sum(box is None for box in image.boxes)
    if missing:
        report.add("objects_without_boxes", annot_id, missing)
    if image.clipped:
        report.add("boxes_clipped", annot_id, image.clipped)
    boxes = [in_shares(box, image.width, image.height) for box in image.filled_boxes]
    common = {
        "image_id": image_id_of(record, split, config.image_id_format),
        "file_name": record.non_empty_text("img_fn"),
        "width": image.width,
        "height": image.height,
        "objects": image.names,
        "boxes": boxes,
        "mode": config.mode,
    }
    choices = []
    choice_phrases = []
    for number, (name, tokens) in enumerate(_choices(record, config.mode), 1):
        choice, phrases = render(record, name, tokens, words, number)
        choices.append(choice)
        choice_phrases += phrases
    label = -1 if split == "test" else _label(record, config.mode)
    for example_id, answer, tokens in _questions(record, split, config.mode):
        text, phrases = render(record, "question", tokens, words)
        yield {
            **common,
            "example_id": example_id,
            "answer": answer,
            "text": text,
            "choices": choices,
            "phrases": [*phrases, *choice_phrases],
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
    record.refuse_if(
        not (number.isascii() and number.isdigit()), "bad img_id", found=img_id, expected=f"{split}- and a number"
    )
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
