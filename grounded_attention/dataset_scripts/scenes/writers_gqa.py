# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Questions about scenes in the format of GQA: an object with one member a question, and files of choices.

The balanced questions have files of their own; all training questions are in ten files. As in the real data, testdev
has answers and test has none; here each has every second image of the test split. Graphs of the scenes have the boxes
of objects, as of train and val in the real data; the reasoning program is left out.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

from .compositional_questions import Question
from .drawn import DrawnImage

TRAIN_PARTS = 10
QUESTIONS_PER_IMAGE = 100
Records = dict[str, dict[str, object]]


def identified(image: DrawnImage) -> Iterator[tuple[str, Question, bool]]:
    """Yields id, question, and whether it is balanced; ids have leading zeros, as in the real data."""
    for place, question in enumerate((*image.composed, *image.entailed)):
        yield f"{QUESTIONS_PER_IMAGE * int(image.image_id) + place:09}", question, place < len(image.composed)


def files(images: Mapping[str, list[DrawnImage]]) -> dict[str, str | bytes]:
    """Returns path and text of all files; a split without images has none."""
    splits = {"train": images["train"], "val": images["val"]}
    splits |= {"testdev": images["test"][::2], "test": images["test"][1::2]}
    written: dict[str, str | bytes] = {}
    for split, listed in splits.items():
        if not listed:
            continue
        records = question_records(listed, with_answers=split != "test")
        balanced = {question_id: record for question_id, record in records.items() if record["isBalanced"]}
        written[f"gqa/{split}_balanced_questions.json"] = _json(balanced)
        if split == "train":
            written |= _parts(records)
        else:
            written[f"gqa/{split}_all_questions.json"] = _json(records)
        if split in ("train", "val"):
            written[f"gqa/{split}_sceneGraphs.json"] = _json({each.image_id: _graph(each) for each in listed})
        if split in ("val", "testdev"):
            written[f"gqa/{split}_choices.json"] = _json(choices(listed))
    return written


def _parts(records: Records) -> dict[str, str | bytes]:
    numbered = list(records.items())
    return {
        f"gqa/train_all_questions/train_all_questions_{part}.json": _json(dict(numbered[part::TRAIN_PARTS]))
        for part in range(TRAIN_PARTS)
    }


def question_records(images: Iterable[DrawnImage], with_answers: bool = True) -> Records:
    """Returns question id -> record."""
    records: Records = {}
    for image in images:
        ids = {question.text: question_id for question_id, question, _ in identified(image)}
        for question_id, question, balanced in identified(image):
            record = {"question": question.text, "imageId": image.image_id, "isBalanced": balanced}
            records[question_id] = record | (_answered(question_id, question, ids) if with_answers else {})
    return records


def _answered(question_id: str, question: Question, ids: Mapping[str, str]) -> dict[str, object]:
    structural, semantic, detailed = question.types
    return {
        "answer": question.answer,
        "fullAnswer": question.full_answer,
        "types": {"structural": structural, "semantic": semantic, "detailed": detailed},
        "groups": {"global": question.group, "local": f"{detailed}-{question.group}" if question.group else None},
        # As in the real data, a question entails itself.
        "entailed": [question_id, *(ids[each.text] for each in question.entailed)],
        "equivalent": [question_id, *(ids[each.text] for each in question.equivalent)],
        "annotations": {"question": _marks(question), "answer": {}, "fullAnswer": {}},
    }


def _graph(image: DrawnImage) -> dict[str, object]:
    """The size of an image, and its objects by number."""
    corners = [dict(zip("xywh", (x1, y1, x2 - x1, y2 - y1), strict=True)) for x1, y1, x2, y2 in image.boxes]
    return {
        "width": image.record.scene.width,
        "height": image.record.scene.height,
        "objects": dict(zip(map(str, range(len(corners))), corners, strict=True)),
    }


def _marks(question: Question) -> dict[str, str]:
    """Words of a question that mean an object: the first and the end, as GQA counts them."""
    words = question.text.rstrip("?").replace(",", "").split()
    marks = {}
    for phrase, number in question.meant:
        asked = phrase.split()
        first = next(place for place in range(len(words)) if words[place : place + len(asked)] == asked)
        marks[f"{first}:{first + len(asked)}"] = str(number)
    return marks


def choices(images: Iterable[DrawnImage]) -> Records:
    """Returns question id -> valid and plausible answers."""
    return {
        question_id: {"valid": list(question.valid), "plausible": list(question.plausible)}
        for image in images
        for question_id, question, _ in identified(image)
    }


def _json(content: object) -> str:
    return json.dumps(content) + "\n"
