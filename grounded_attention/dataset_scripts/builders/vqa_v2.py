# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VQA v2: questions about images, each with ten human answers, and the official file format of predictions."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.licences import ALLOWED, Licence
from grounded_attention.utils.named_types import Fields

from .coco_captions import ImageIdFormat
from .local_builder import TEXTS, BuildReport, LocalBuilder, LocalConfig, member_records, named_splits, texts

FOLDERS = ("", "vqa", "vqa_v2")
# Split on disk -> the images of its questions, and whether its answers are published.
SOURCES = {
    "train": ("train2014", True),
    "val": ("val2014", True),
    "minival": ("minival2014", True),
    "valminusminival": ("valminusminival2014", True),
    "test": ("test2015", False),
    "test_dev": ("test-dev2015", False),
}
# The test-dev questions are about images of test2015, the parts of val about images of val2014.
IMAGES_OF = {"test-dev2015": "test2015", "minival2014": "val2014", "valminusminival2014": "val2014"}
HOMEPAGE = "https://visualqa.org"
HINT = "get the questions and annotations from https://visualqa.org/download.html and unpack them in the data folder"
LICENCE = Licence(
    "cc-by-4.0",
    ALLOWED,
    "Questions and answers are CC BY 4.0; the images are COCO's, are under Flickr's terms and are not included.",
    "https://visualqa.org/terms.html",
)
CITATION = """Yash Goyal, Tejas Khot, Douglas Summers-Stay, Dhruv Batra, Devi Parikh. Making the V in VQA Matter:
Elevating the Role of Image Understanding in Visual Question Answering. CVPR 2017."""
FEATURES = {
    **texts("example_id", "image_id", "text", "question_type", "answer_type"),
    "answers": TEXTS,
}


@dataclass
class VQAv2Config(LocalConfig):
    """Options of [`VQAv2`]."""

    LICENCE = LICENCE
    WHERE = HINT
    SPLIT_NAMES = named_splits(*SOURCES)
    REQUIRED = ("train", "val")
    image_id_format: ImageIdFormat = "number"

    def needed_files(self, split: str) -> list[Path]:
        """The file of questions, and that of their answers if they are published."""
        images, has_answers = SOURCES[split]
        names = [f"v2_OpenEnded_mscoco_{images}_questions.json"]
        if has_answers:
            names.append(f"v2_mscoco_{images}_annotations.json")
        return [self.find(name, folders=FOLDERS) for name in names]


class VQAv2(LocalBuilder):
    """One row a question: `{example_id, image_id, text, question_type, answer_type, answers}`.

    `answers` are the ten human answers, unchanged; test and test_dev have none. Splits are train, validation, and
    those of minival, valminusminival, test and test_dev whose files exist. `example_id` is the id of the question.
    """

    config: VQAv2Config
    BUILDER_CONFIG_CLASS = VQAv2Config
    BUILDER_CONFIGS = [VQAv2Config(name="default")]

    INFO = ("Questions about images with the answers of ten humans.", FEATURES, HOMEPAGE, CITATION)

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        images, _ = SOURCES[split]
        path, *annotated = self.config.needed_files(split)
        answers = read_annotations(*annotated) if annotated else None
        for row in read_questions(path, answers):
            if self.config.image_id_format == "file_stem":
                row["image_id"] = f"COCO_{IMAGES_OF.get(images, images)}_{int(row['image_id']):012}"
            report.add("questions")
            yield row
        if answers:
            problem = f"answers to {len(answers)} questions that are not in the file of questions"
            raise DataError(
                problem, file=annotated[0], found=next(iter(answers)), expected="question ids of that file"
            )


def read_questions(path: Path, answers: dict[str, Fields] | None) -> Iterator[Fields]:
    """Reads the rows of a file of questions and removes their answers from `answers`."""
    ids: set[str] = set()
    for _, record in member_records(path, HINT, "questions"):
        question_id = str(record.integer("question_id"))
        record.add_once(question_id, ids, "the question occurs twice", "unique ids")
        row = {
            "example_id": question_id,
            "image_id": str(record.integer("image_id")),
            "text": record.non_empty_text("question"),
        }
        if answers is None:
            annotation: Fields = {"question_type": "", "answer_type": "", "answers": []}
        elif question_id in answers:
            annotation = answers.pop(question_id)
        else:
            raise record.error(
                "the question has no answers", found=question_id, expected="an annotation with this question_id"
            )
        yield {**row, **annotation}
    if not ids:
        expected = "an object with the list questions"
        raise DataError("no questions", file=path, expected=expected, hint=HINT)


def read_annotations(path: Path) -> dict[str, Fields]:
    """Reads a file of answers."""
    annotations: dict[str, Fields] = {}
    for _, record in member_records(path, HINT, "annotations"):
        question_id = str(record.integer("question_id"))
        record.refuse_if(question_id in annotations, "the question has two answers", found=question_id)
        annotations[question_id] = {
            "question_type": record.text("question_type"),
            "answer_type": record.text("answer_type"),
            "answers": [each.text("answer") for each in record.records("answers", "answer")],
        }
    return annotations
