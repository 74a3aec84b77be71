# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions and questions of scenes in the format of LXMERT's pre-training data: one object an image.

The sentences are those of the folder's COCO, VQA and GQA files; as in the real data, no image of test is in them. The
real files divide their images among COCO's parts and Visual Genome. Here a tenth of the training images is in each of
`mscoco_nominival.json` and `vgnococo.json`, whose captions have the source `vg`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from .drawn import DrawnImage
from .writers import numbered_captions

FOLDER = "lxmert"
# The public code's score of an answer that a human gave; at most 1.
SCORE_OF_ONE = 0.3


def files(train: Sequence[DrawnImage], val: Sequence[DrawnImage]) -> dict[str, str | bytes]:
    """Returns path and text of all files."""
    images = list(map(_image, train))
    tenth = max(1, len(train) // 10)
    parts = {
        "mscoco_train": images[: -2 * tenth],
        "mscoco_nominival": images[-2 * tenth : -tenth],
        "vgnococo": [_renamed(image) for image in images[-tenth:]],
        "mscoco_minival": list(map(_image, val)),
    }
    return {f"{FOLDER}/{name}.json": json.dumps(images) + "\n" for name, images in parts.items()}


def count_sentences(images: Iterable[DrawnImage]) -> int:
    """Returns the number of sentences about images."""
    return sum(len(texts) for image in images for texts in _image(image)["sentf"].values())


def _image(image: DrawnImage) -> dict[str, Any]:
    captions = [text for _, text in numbered_captions(image.record)]
    asked = [each.text for each in image.questions]
    composed = [each.text for each in image.composed]
    answers = [_scores(each.answers) for each in image.questions]
    return {
        "img_id": image.image_id,
        "sentf": {"mscoco": captions, "vqa": asked, "gqa": composed},
        "labelf": {"vqa": answers, "gqa": [{each.answer: 1.0} for each in image.composed]},
    }


def _scores(answers: Iterable[str]) -> dict[str, float]:
    """Answer -> its score."""
    return {answer: min(1.0, round(SCORE_OF_ONE * number, 1)) for answer, number in Counter(answers).items()}


def _renamed(image: dict[str, Any]) -> dict[str, Any]:
    """The image as one of Visual Genome."""
    sentences = {"vg" if source == "mscoco" else source: texts for source, texts in image["sentf"].items()}
    return {**image, "sentf": sentences}
