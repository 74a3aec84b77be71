# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Questions about scenes in the format of VQA v2, train and val with answers; statements in that of NLVR2."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from .drawn import DrawnImage
from .questions import Question
from .statements import Statement

YEARS = {"train": "train2014", "val": "val2014", "test": "test2015"}
QUESTIONS_PER_IMAGE = 1000


def numbered_questions(image: DrawnImage) -> Iterator[tuple[int, Question]]:
    """Yields the questions with their ids, which start at 1000 times the image's id, as in the real data."""
    return enumerate(image.questions, QUESTIONS_PER_IMAGE * int(image.image_id))


def usual_answer(question: Question) -> str:
    """Returns the answer that most humans gave."""
    return Counter(question.answers).most_common(1)[0][0]


def file_names(split: str) -> tuple[str, str]:
    """Returns the names of the files of questions and of annotations of a split: train, val or test."""
    return f"v2_OpenEnded_mscoco_{YEARS[split]}_questions.json", f"v2_mscoco_{YEARS[split]}_annotations.json"


def questions_file(images: Iterable[DrawnImage]) -> str:
    """Returns the text of the file of questions of a split."""
    questions = [
        {"image_id": int(image.image_id), "question": question.text, "question_id": question_id}
        for image in images
        for question_id, question in numbered_questions(image)
    ]
    return json.dumps({"task_type": "Open-Ended", "data_type": "scenes", "questions": questions}) + "\n"


def annotations_file(images: Iterable[DrawnImage]) -> str:
    """Returns the text of the file of answers of a split."""
    annotations = [
        {
            "question_id": question_id,
            "image_id": int(image.image_id),
            "question_type": question.question_type,
            "answer_type": question.answer_type,
            "multiple_choice_answer": usual_answer(question),
            "answers": [
                {"answer": answer, "answer_confidence": "yes", "answer_id": number}
                for number, answer in enumerate(question.answers, start=1)
            ],
        }
        for image in images
        for question_id, question in numbered_questions(image)
    ]
    return json.dumps({"data_type": "scenes", "annotations": annotations}) + "\n"


# The names of NLVR2's splits.
NAMES = {"train": "train", "val": "dev", "test": "test1"}


def files(statements: Mapping[str, Iterable[Statement]]) -> dict[str, str | bytes]:
    """Returns path and text of the files of the splits train, val and test."""
    return {f"nlvr2/{NAMES[split]}.json": statements_file(NAMES[split], made) for split, made in statements.items()}


def statements_file(name: str, statements: Iterable[Statement]) -> str:
    """The text of the file of a split; an identifier is `<split>-<set>-<pair>-<sentence>`, a set a statement."""
    lines = [
        {
            "sentence": statement.text,
            "left_url": f"flickr30k-images/{left}.jpg",
            "right_url": f"flickr30k-images/{right}.jpg",
            "label": str(label),
            "identifier": f"{name}-{number}-{place}-0",
        }
        for number, statement in enumerate(statements)
        for place, ((left, right), label) in enumerate(statement.pairs)
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines)
