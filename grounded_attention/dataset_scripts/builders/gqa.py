# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GQA: compositional questions about images with one answer each, and the official file format of predictions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import List, Value

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.files.records import Record, are_numbers, json_members, listed
from grounded_attention.dataset_scripts.licences import UNCLEAR, Licence
from grounded_attention.utils.named_types import Fields

from .local_builder import (
    TEXTS,
    BuildReport,
    LocalBuilder,
    LocalConfig,
    named_splits,
    normalised_corners,
    phrase_column,
    read_size,
    texts,
)

BALANCED = "balanced"
ALL = "all"
# Split on disk -> whether its answers are published. "submission" has the questions of the evaluation server; it
# exists only among all questions.
SPLITS = {"train": True, "val": True, "testdev": True, "test": False, "challenge": False, "submission": False}
# The training questions are too many for one file: parts 0 to 9.
TRAIN_PARTS = 10
# Validity and plausibility are measured, and training questions are not.
WITH_CHOICES = ("val", "testdev")
FOLDERS = ("", "questions1.2", "gqa", "gqa/questions1.2")
CHOICES_FOLDERS = ("", "eval", "questions1.2", "gqa", "gqa/eval", "gqa/questions1.2")
HOMEPAGE = "https://cs.stanford.edu/people/dorarad/gqa/"
HINT = "get questions1.2.zip from https://cs.stanford.edu/people/dorarad/gqa/download.html and unpack it in the folder"
CHOICES_HINT = "get the choices from https://cs.stanford.edu/people/dorarad/gqa/evaluate.html, or remove the file"
LICENCE = Licence(
    "unknown",
    UNCLEAR,
    "Public copies of the questions name CC BY 4.0, but the files state no licence; the authors are at the homepage. "
    "The images are Visual Genome's, under Flickr's terms, and are not included.",
    HOMEPAGE,
)
CITATION = """Drew A. Hudson, Christopher D. Manning. GQA: A New Dataset for Real-World Visual Reasoning and
Compositional Question Answering. CVPR 2019."""
TYPES = ("structural", "semantic", "detailed")
CHOICES = ("valid", "plausible")
ANNOTATED = ("question", "answer", "fullAnswer")
GRAPH_FOLDERS = ("", "sceneGraphs", "gqa", "gqa/sceneGraphs", *FOLDERS[1:2])
GRAPHS_HINT = "get sceneGraphs.zip from https://cs.stanford.edu/people/dorarad/gqa/download.html, or remove the file"
FEATURES = {
    **texts("example_id", "image_id", "text", "answer"),
    "is_balanced": Value("bool"),
    **texts(*(f"{name}_type" for name in TYPES), "global_group"),
    **dict.fromkeys(("entailed", *CHOICES), TEXTS),
    # The objects that words of the question, the answer and the full answer mean; `tokens` counts the words. A box is
    # there with the scene graph of the image. Those of the question are its phrases too.
    "annotations": List({**texts("part", "tokens", "object"), "box": List(Value("float32"))}),
    "phrases": phrase_column(),
    # The steps of the reasoning program.
    "semantic": List({**texts("operation", "argument"), "dependencies": List(Value("int32"))}),
}
Choices = dict[str, tuple[list[str], list[str]]]
Graphs = dict[str, dict[str, list[float]]]  # image -> object -> its box


@dataclass
class GQAConfig(LocalConfig):
    """The balanced questions, or all of them; see [`GQA`]."""

    LICENCE = LICENCE
    WHERE = HINT
    SPLIT_NAMES = named_splits(*SPLITS)
    REQUIRED = ("train", "val")

    def sources(self) -> list[Path]:
        others: list[Path] = []
        for split in SPLITS:
            others += (self.choices_file(split), self.graphs_file(split))
        if self.data_dir:
            return [*super().sources(), *others]
        return []

    def choices_file(self, split: str) -> Path:
        """Returns the optional file of valid and plausible answers of a split."""
        return self.find(f"{split}_choices.json", folders=CHOICES_FOLDERS)

    def graphs_file(self, split: str) -> Path:
        """Returns the optional file of scene graphs of a split, with the boxes of objects."""
        return self.find(f"{split}_sceneGraphs.json", folders=GRAPH_FOLDERS)

    def needed_files(self, split: str) -> list[Path]:
        if split == "train" and self.name == ALL:
            names = [f"train_all_questions_{part}.json" for part in range(TRAIN_PARTS)]
            folders = [f"{folder}/train_all_questions".lstrip("/") for folder in FOLDERS]
            return [self.find(name, folders=(*folders, *FOLDERS)) for name in names]
        return [self.find(f"{split}_{self.name}_questions.json", folders=FOLDERS)]


class GQA(LocalBuilder):
    """One row a question: ids, the question, its answer, and what the official metrics read.

    The configurations are `balanced` (default) and `all`. The columns are `example_id` (the id of the question),
    `image_id`, `text` (the question), `answer`, `is_balanced`, `structural_type`, `semantic_type`, `detailed_type`,
    `global_group` (empty without a group), `entailed` (ids of questions), and `valid` and `plausible`: the answers
    that the file `{split}_choices.json` lists, of validation and testdev only; empty without this file.

    Splits are train, validation, and those of testdev, test, challenge and (`all`) submission whose files exist.
    `answer` is empty where it is not published, and so is every column that a record of such a split lacks.
    """

    config: GQAConfig
    BUILDER_CONFIG_CLASS = GQAConfig
    BUILDER_CONFIGS = [GQAConfig(name=name) for name in (BALANCED, ALL)]
    DEFAULT_CONFIG_NAME = BALANCED

    INFO = ("Compositional questions about images with one answer each.", FEATURES, HOMEPAGE, CITATION)

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        choices_file = self.config.choices_file(split)
        with_choices = split in WITH_CHOICES and choices_file.is_file()
        choices = read_choices(choices_file) if with_choices else None
        graphs_file = self.config.graphs_file(split)
        graphs = read_graphs(graphs_file) if graphs_file.is_file() else {}
        for path in self.config.needed_files(split):
            for row in read_questions(path, SPLITS[split]):
                question_id = row["example_id"]
                if choices is not None:
                    # The metrics read the choices of balanced questions only.
                    if row["is_balanced"] and question_id not in choices:
                        problem = "no choices of a balanced question"
                        expected = f"a member {question_id!r}"
                        raise DataError(problem, file=choices_file, expected=expected, hint=CHOICES_HINT)
                    row["valid"], row["plausible"] = choices.get(question_id, ([], []))
                boxes = graphs.get(row["image_id"], {})
                for each in row["annotations"]:
                    each["box"] = boxes.get(each["object"], [])
                report.add("questions")
                report.add("balanced", count=row["is_balanced"])
                yield with_phrases(row)


def read_questions(path: Path, has_answers: bool = True) -> Iterator[Fields]:
    """Reads the rows of a file of questions, one in memory at a time; `valid` and `plausible` are empty."""
    empty = True
    for question_id, values in json_members(path, HINT):
        empty = False
        record = Record(values, path, f"question {question_id!r}", HINT)
        record.refuse_if(not question_id.strip(), "an empty id of a question", expected="a text that is not empty")
        yield _row(question_id, record, has_answers)
    refuse_if(empty, "no questions", file=path, expected="an object with one member a question", hint=HINT)


def _row(question_id: str, record: Record, has_answers: bool) -> Fields:
    question = record.non_empty_text("question")

    def has(name: str) -> bool:
        return has_answers or name in record.values

    types = record.member("types") if has("types") else None
    groups = record.member("groups") if has("groups") else None
    of_types = {f"{name}_type": "" if types is None else types.non_empty_text(name) for name in TYPES}
    global_group = ""
    if groups is not None and groups.values.get("global", "") is not None:
        global_group = groups.text("global")
    annotations: list[Fields] = []
    if "annotations" in record.values:
        whole = record.member("annotations")
        for part in ANNOTATED:
            if part in whole.values:
                named = whole.member(part)
                for key in named.names():
                    annotations.append({"part": part, "tokens": key, "object": named.text(key), "box": []})
    return {
        "example_id": question_id,
        "image_id": record.non_empty_text("imageId"),
        "text": question,
        "answer": record.non_empty_text("answer") if has("answer") else "",
        "is_balanced": record.flag("isBalanced") if has("isBalanced") else False,
        **of_types,
        "global_group": global_group,
        "entailed": record.texts("entailed") if has("entailed") else [],
        **{name: [] for name in CHOICES},
        "annotations": annotations,
        "semantic": [*map(_step, record.records("semantic", "step"))] if "semantic" in record.values else [],
    }


def with_phrases(row: Fields) -> Fields:
    """Adds the words of the question that mean objects; `tokens` are one word, or the first and the end."""
    words = [*re.finditer(r"\S+", row["text"])]
    phrases = []
    for each in row["annotations"]:
        first, _, end = each["tokens"].partition(":")
        if each["part"] != "question" or not first.isdecimal() or not (end or "0").isdecimal():
            continue
        chosen = words[int(first) : int(end or int(first) + 1)]
        if not chosen:
            continue
        start = chosen[0].start()
        text = row["text"][start : chosen[-1].end()].rstrip("?,.")
        if text:
            boxes = [each["box"]] if each["box"] else []
            phrases.append({"text": text, "start": start, "end": start + len(text), "sentence": 0, "boxes": boxes})
    return {**row, "phrases": phrases}


def _step(inner: Record) -> Fields:
    dependencies = inner.items("dependencies")
    if not all(isinstance(each, int) for each in dependencies):
        raise inner.error("bad dependencies", found=dependencies, expected="numbers of steps")
    return {**{name: inner.text(name) for name in ("operation", "argument")}, "dependencies": dependencies}


def read_graphs(path: Path) -> Graphs:
    """Reads the boxes of the objects of images, divided by width and height."""
    graphs: Graphs = {}
    for image_id, values in json_members(path, GRAPHS_HINT):
        record = Record(values, path, f"image {image_id!r}", GRAPHS_HINT)
        size = read_size(record)
        objects = record.member("objects")
        graphs[image_id] = boxes = {}
        for name in objects.names():
            pixels = [objects.member(name).number(side) for side in "xywh"]
            boxes[name], _ = normalised_corners(pixels, *size)
    return graphs


def read_choices(path: Path) -> Choices:
    """Reads the valid and the plausible answers of questions."""
    known: dict[tuple[str, ...], list[str]] = {}
    choices: Choices = {}
    for question_id, values in json_members(path, CHOICES_HINT):
        record = Record(values, path, f"question {question_id!r}", CHOICES_HINT)
        valid, plausible = map(record.texts, CHOICES)
        valid = known.setdefault(tuple(valid), valid)
        plausible = known.setdefault(tuple(plausible), plausible)
        choices[question_id] = (valid, plausible)
    return choices


def read_attention(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Cells (K, 4) and attention (K,) of each question that has `attention` in a file of the official format.

    It is a grid whose first index is that of x, as the script reads it, or x1, y1, x2, y2, attention of each region.
    """
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    expected = "x1, y1, x2, y2, attention of each region, or a square of numbers"
    for record in listed(path, "entries are objects with questionId and attention"):
        if "attention" not in record.values:
            continue
        rows = record.items("attention")
        side = len(rows)
        regions = all(are_numbers(row, 5) for row in rows)
        record.refuse_if(
            not rows or not (regions or all(are_numbers(row, side) for row in rows)),
            "bad attention",
            found=rows,
            expected=expected,
        )
        values = np.asarray(rows, dtype=float)
        if not regions:
            low = np.moveaxis(np.indices(values.shape), 0, -1).reshape(-1, 2) / side
            values = np.concatenate([low, low + 1 / side, values.reshape(-1, 1)], 1)
        record.refuse_if((values[:, 2:4] <= values[:, :2]).any(), "a region without area", found=rows)
        found[record.text("questionId")] = values[:, :4], values[:, 4]
    return found
