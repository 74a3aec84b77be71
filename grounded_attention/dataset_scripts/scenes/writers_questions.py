# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Questions and statements in the formats of VQA v2, NLVR2, GQA and LXMERT's pre-training data.

VQA: train and val have answers; the ids of questions start at 1000 times the image's id, as in the real data.

GQA: the balanced questions have files of their own; all training questions are in ten files. As in the real data,
testdev has answers and test has none; here each has every second image of the test split. Graphs of the scenes have
the boxes of objects, as of train and val in the real data; reasoning programs and full answers are left out.

LXMERT: the sentences are those of the folder's COCO, VQA and GQA files; as in the real data, no image of test is in
them. The real files divide their images among COCO's parts and Visual Genome. Here a tenth of the training images is
in each of `mscoco_nominival.json` and `vgnococo.json`, whose captions have the source `vg`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from grounded_attention.utils.named_types import Fields

from . import compositional_questions as composition
from .drawn import DrawnImage, Files, Splits
from .questions import Question
from .statements import Statement
from .writers import related_texts

# VQA v2
YEARS = {"train": "train2014", "val": "val2014", "test": "test2015"}
VQA_QUESTIONS_PER_IMAGE = 1000


def usual_answer(question: Question) -> str:
    """Returns the answer that most humans gave."""
    return Counter(question.answers).most_common(1)[0][0]


def vqa_files(splits: Splits) -> Files:
    """The files of questions and of annotations."""
    written: Files = {}
    for split, images in splits.items():
        questions = []
        annotations = []
        for image in images:
            for number, question in enumerate(image.questions, VQA_QUESTIONS_PER_IMAGE * int(image.image_id)):
                about = {"image_id": int(image.image_id)}
                questions.append({**about, "question": question.text, "question_id": number})
                annotations.append({"question_id": number, **about, **_answers(question)})
        name = f"vqa/v2_OpenEnded_mscoco_{YEARS[split]}_questions.json"
        written[name] = {"task_type": "Open-Ended", "data_type": "scenes", "questions": questions}
        if split != "test":
            name = f"vqa/v2_mscoco_{YEARS[split]}_annotations.json"
            written[name] = {"data_type": "scenes", "annotations": annotations}
    return written


def _answers(question: Question) -> Fields:
    answers = []
    for number, answer in enumerate(question.answers, start=1):
        answers.append({"answer": answer, "answer_confidence": "yes", "answer_id": number})
    return {
        "question_type": question.question_type,
        "answer_type": question.answer_type,
        "multiple_choice_answer": usual_answer(question),
        "answers": answers,
    }


# NLVR2
NLVR2_NAMES = {"train": "train", "val": "dev", "test": "test1"}


def nlvr2_files(statements: Mapping[str, Iterable[Statement]]) -> Files:
    """The files of the splits; an identifier is `<split>-<set>-<pair>-<sentence>`, a set a statement."""
    written: Files = {}
    for split, listed in statements.items():
        name = NLVR2_NAMES[split]
        lines = []
        for number, statement in enumerate(listed):
            for place, ((left, right), label) in enumerate(statement.pairs):
                lines.append(
                    {
                        "sentence": statement.text,
                        "left_url": f"flickr30k-images/{left}.jpg",
                        "right_url": f"flickr30k-images/{right}.jpg",
                        "label": str(label),
                        "identifier": f"{name}-{number}-{place}-0",
                    }
                )
        written[f"nlvr2/{name}.json"] = "".join(f"{json.dumps(line)}\n" for line in lines)
    return written


# GQA
TRAIN_PARTS = 10
GQA_QUESTIONS_PER_IMAGE = 100


def gqa_files(splits: Splits) -> Files:
    """The files of questions, graphs and choices; a split without images has none."""
    images = {"train": splits["train"], "val": splits["val"]}
    images |= {"testdev": splits["test"][::2], "test": splits["test"][1::2]}
    written: Files = {}
    for split, listed in images.items():
        if not listed:
            continue
        records = _gqa_records(listed, with_answers=split != "test")
        balanced = {question_id: record for question_id, record in records.items() if record["isBalanced"]}
        written[f"gqa/{split}_balanced_questions.json"] = balanced
        if split == "train":
            numbered = list(records.items())
            for part in range(TRAIN_PARTS):
                name = f"gqa/train_all_questions/train_all_questions_{part}.json"
                written[name] = dict(numbered[part::TRAIN_PARTS])
        else:
            written[f"gqa/{split}_all_questions.json"] = records
        if split in ("train", "val"):
            written[f"gqa/{split}_sceneGraphs.json"] = {image.image_id: _graph(image) for image in listed}
        if split in ("val", "testdev"):
            choices = {}
            for image in listed:
                for question_id, question, _ in _identified(image):
                    choices[question_id] = {"valid": list(question.valid), "plausible": list(question.plausible)}
            written[f"gqa/{split}_choices.json"] = choices
    return written


def _identified(image: DrawnImage) -> Iterator[tuple[str, composition.Question, bool]]:
    """Yields id, question, and whether it is balanced; ids have leading zeros, as in the real data."""
    for place, question in enumerate((*image.composed, *image.entailed)):
        yield f"{GQA_QUESTIONS_PER_IMAGE * int(image.image_id) + place:09}", question, place < len(image.composed)


def _gqa_records(images: Iterable[DrawnImage], with_answers: bool) -> dict[str, Fields]:
    """Returns question id -> record."""
    records = {}
    for image in images:
        ids = {question.text: question_id for question_id, question, _ in _identified(image)}
        for question_id, question, balanced in _identified(image):
            record = {"question": question.text, "imageId": image.image_id, "isBalanced": balanced}
            if with_answers:
                record |= _answered(question_id, question, ids)
            records[question_id] = record
    return records


def _answered(question_id: str, question: composition.Question, ids: Mapping[str, str]) -> Fields:
    structural, semantic, detailed = question.types
    # Words of a question that mean an object: the first and the end, as GQA counts them.
    text = question.text.rstrip("?").replace(",", "")
    marks = {}
    for phrase, number in question.meant:
        before, _, _ = f"{text} ".partition(f"{phrase} ")
        first = len(before.split())
        marks[f"{first}:{first + len(phrase.split())}"] = str(number)
    local_group = f"{detailed}-{question.group}" if question.group else None
    entailed = [ids[other.text] for other in question.entailed]
    equivalent = [ids[other.text] for other in question.equivalent]
    return {
        "answer": question.answer,
        "types": {"structural": structural, "semantic": semantic, "detailed": detailed},
        "groups": {"global": question.group, "local": local_group},
        # As in the real data, a question entails itself.
        "entailed": [question_id, *entailed],
        "equivalent": [question_id, *equivalent],
        "annotations": {"question": marks, "answer": {}, "fullAnswer": {}},
    }


def _graph(image: DrawnImage) -> Fields:
    """The size of an image, and its objects by number."""
    objects = {}
    for number, (x1, y1, x2, y2) in enumerate(image.boxes):
        objects[str(number)] = {"x": x1, "y": y1, "w": x2 - x1, "h": y2 - y1}
    return {"width": image.scene.width, "height": image.scene.height, "objects": objects}


# LXMERT
# The public code's score of an answer that a human gave; at most 1.
SCORE_OF_ONE = 0.3


def lxmert_files(train: Sequence[DrawnImage], val: Sequence[DrawnImage]) -> Files:
    """The lists of images with their sentences."""
    tenth = max(1, len(train) // 10)
    own = [_lxmert_image(image) for image in train[:-tenth]]
    return {
        "lxmert/mscoco_train.json": own[:-tenth],
        "lxmert/mscoco_nominival.json": own[-tenth:],
        "lxmert/vgnococo.json": [_lxmert_image(image, "vg") for image in train[-tenth:]],
        "lxmert/mscoco_minival.json": [_lxmert_image(image) for image in val],
    }


def _lxmert_image(image: DrawnImage, source: str = "mscoco") -> Fields:
    asked = []
    answers = []
    for question in image.questions:
        scores = {}
        for answer, count in Counter(question.answers).items():
            scores[answer] = min(1.0, round(SCORE_OF_ONE * count, 1))
        asked.append(question.text)
        answers.append(scores)
    composed = [question.text for question in image.composed]
    composed_answers = [{question.answer: 1.0} for question in image.composed]
    return {
        "img_id": image.image_id,
        "sentf": {source: related_texts(image), "vqa": asked, "gqa": composed},
        "labelf": {"vqa": answers, "gqa": composed_answers},
    }
