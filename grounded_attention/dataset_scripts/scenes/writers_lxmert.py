# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions and questions of scenes in the format of LXMERT's pre-training data: one object an image.

The sentences are those of the folder's COCO, VQA and GQA files, which are read again; as in the real data, no image of
test is in them. The real files divide their images among COCO's parts and Visual Genome. Here a tenth of the training
images is in each of `mscoco_nominival.json` and `vgnococo.json`, whose captions have the source `vg`.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.utils.bounded_files import read_json

from .writers_vqa import file_names

FOLDER = "lxmert"
# The public code's score of an answer that a human gave; at most 1.
SCORE_OF_ONE = 0.3


def files(root: Path) -> dict[str, str | bytes]:
    """Returns path and text of all files."""
    train, val = (_images(root, split) for split in ("train", "val"))
    tenth = max(1, len(train) // 10)
    parts = {
        "mscoco_train": train[: -2 * tenth],
        "mscoco_nominival": train[-2 * tenth : -tenth],
        "vgnococo": [_renamed(image) for image in train[-tenth:]],
        "mscoco_minival": val,
    }
    return {f"{FOLDER}/{name}.json": json.dumps(images) + "\n" for name, images in parts.items()}


def count_sentences(written: Mapping[str, str | bytes]) -> int:
    """Returns the number of sentences in the files."""
    images = [image for text in written.values() for image in json.loads(text)]
    return sum(len(sentences) for image in images for sentences in image["sentf"].values())


def _images(root: Path, split: str) -> list[dict[str, Any]]:
    captions = read_json(root / "coco" / "annotations" / f"captions_{split}2014.json")
    sentences: dict[str, dict[str, list[str]]] = {
        str(image["id"]): {"mscoco": [], "vqa": [], "gqa": []} for image in captions["images"]
    }
    labels: dict[str, dict[str, list[dict[str, float]]]] = {image: {"vqa": [], "gqa": []} for image in sentences}
    for each in captions["annotations"]:
        sentences[str(each["image_id"])]["mscoco"].append(each["caption"])
    questions, annotations = (read_json(root / "vqa" / name) for name in file_names(split))
    answers = {each["question_id"]: each["answers"] for each in annotations["annotations"]}
    for each in questions["questions"]:
        image = str(each["image_id"])
        sentences[image]["vqa"].append(each["question"])
        labels[image]["vqa"].append(_scores(answers[each["question_id"]]))
    for each in read_json(root / "gqa" / f"{split}_balanced_questions.json").values():
        sentences[each["imageId"]]["gqa"].append(each["question"])
        labels[each["imageId"]]["gqa"].append({each["answer"]: 1.0})
    return [{"img_id": image, "sentf": sentences[image], "labelf": labels[image]} for image in sentences]


def _scores(answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Answer -> its score."""
    counts = Counter(each["answer"] for each in answers)
    return {answer: min(1.0, round(SCORE_OF_ONE * number, 1)) for answer, number in counts.items()}


def _renamed(image: dict[str, Any]) -> dict[str, Any]:
    """The image as one of Visual Genome."""
    sentences = {"vg" if source == "mscoco" else source: texts for source, texts in image["sentf"].items()}
    return {**image, "sentf": sentences}
