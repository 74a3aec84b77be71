# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Referring expressions of scenes in the format of RefCOCO+: references, instances, and a detector's boxes.

Sentence numbers increase through the data set. As in the real data, the images of one test split show objects of one
kind: in testA most of the objects are solids, in testB figures.
"""

import pickle
import random
from collections.abc import Sequence
from itertools import product

from grounded_attention.utils.boxes import clip_box
from grounded_attention.utils.named_types import Fields

from . import shapes
from .annotators import RELATION_WORDS
from .captions import Caption, Content, Entity, Fact, Mention, allows, draw_habit, object_phrase, readings
from .language import SOLIDS, meaning_of, referents
from .records import DrawnImage, Files, Splits
from .world import SHAPES, Combinations, Scene, relation_holds
from .writers import listed_images

NAME = "refcoco+"
SPLIT_BY = "unc"
REFS_FILE = f"refs({SPLIT_BY}).p"
DETECTIONS_FILE = "detections/refcoco+_unc/res101_coco_minus_refer_notime_dets.json"
OBJECTS_PER_IMAGE = 8
SENTENCES_PER_IMAGE = 24
CATEGORIES = [{"id": number, "name": shape, "supercategory": "shape"} for number, shape in enumerate(SHAPES, start=1)]


def object_boxes(scene: Scene) -> tuple[tuple[float, ...], ...]:
    """Returns the boxes of all objects in pixels, clipped to the image."""
    return tuple(tuple(clip_box(shapes.box(item), scene.width, scene.height)) for item in scene.objects)


def files(everything: Sequence[DrawnImage], splits: Splits) -> Files:
    """The files of instances, references (a pickle of plain data) and detected boxes (of MAttNet's detector)."""
    annotations = []
    detected = []
    for image in everything:
        about = {"image_id": int(image.image_id)}
        for place, (x1, y1, x2, y2) in enumerate(image.boxes):
            area = round((x2 - x1) * (y2 - y1), 2)
            annotation = {"id": _annotation_id(image, place), **about, "bbox": _xywh(x1, y1, x2, y2), "area": area}
            annotations.append({**annotation, "category_id": _category(image, place), "iscrowd": 0})
        scored = zip(image.detections.boxes.tolist(), image.detections.scores.tolist(), strict=True)
        for number, (box, score) in enumerate(scored, start=32 * image.number):
            detected.append({**about, "box": _xywh(*box), "score": round(score, 4), "det_id": number})
    listed = listed_images(everything)
    return {
        f"{NAME}/instances.json": {"images": listed, "annotations": annotations, "categories": CATEGORIES},
        f"{NAME}/{REFS_FILE}": pickle.dumps(_references(splits), protocol=2),
        DETECTIONS_FILE: detected,
    }


def _references(splits: Splits) -> list[Fields]:
    references = []
    for split, images in splits.items():
        for image in images:
            name = split
            if split == "test":
                solids = sum(item.shapes[0] in SOLIDS for item in image.scene.objects)
                name = "testA" if 2 * solids >= len(image.boxes) else "testB"
            for place, texts in enumerate(image.expressions):
                if texts:
                    references.append(_reference(image, place, name))
    return references


def _reference(image: DrawnImage, place: int, split: str) -> Fields:
    first = SENTENCES_PER_IMAGE * image.number + 3 * place
    sentences = []
    for number, text in enumerate(image.expressions[place], start=first):
        sentences.append({"sent_id": number, "tokens": text.split(), "raw": text, "sent": text})
    object_id = _annotation_id(image, place)
    return {
        "ref_id": object_id,
        "ann_id": object_id,
        "image_id": int(image.image_id),
        "file_name": f"{image.image_id}_{place}.jpg",
        "category_id": _category(image, place),
        "split": split,
        "sent_ids": [sentence["sent_id"] for sentence in sentences],
        "sentences": sentences,
    }


def _annotation_id(image: DrawnImage, place: int) -> int:
    """The id of an object, unique in the data set."""
    return OBJECTS_PER_IMAGE * image.number + place + 1


def _category(image: DrawnImage, place: int) -> int:
    return SHAPES.index(image.scene.objects[place].shapes[0]) + 1


def _xywh(x1: float, y1: float, x2: float, y2: float) -> list[float]:
    return [round(value, 2) for value in (x1, y1, x2 - x1, y2 - y1)]


RELATIONS = ("next_to", "above", "below")
PER_OBJECT = 3
ATTEMPTS = 30
# Probability of a relation even if attributes alone are enough.
RELATION_RATE = 0.3
DETERMINERS = ("a", "an", "the", "one")
DROP_ARTICLE_RATE = 0.7


def refer(scene: Scene, number: int, rng: random.Random, combinations: Combinations = Combinations.ALL) -> list[str]:
    """Writes up to three different expressions for an object; none if the object cannot be identified."""
    habit = draw_habit(rng)
    expressions = dict[str, None]()
    for attempt in range(ATTEMPTS):
        phrase = object_phrase([scene.objects[number]], habit, attempt / ATTEMPTS, rng)
        is_unique = referents(scene, meaning_of(phrase)) == [frozenset((number,))]
        is_enough = is_unique and allows(combinations, Content((phrase,)))
        if rng.random() < RELATION_RATE or not is_enough:
            phrase = _related(scene, number, phrase, attempt / ATTEMPTS, rng, combinations) or ""
        if phrase:
            # Players drop the first article in most cases.
            first, _, rest = phrase.partition(" ")
            if first in DETERMINERS and rng.random() < DROP_ARTICLE_RATE:
                phrase = rest
            expressions[phrase] = None
        if len(expressions) == PER_OBJECT:
            break
    return list(expressions)


def _related(
    scene: Scene, number: int, phrase: str, detail: float, rng: random.Random, combinations: Combinations
) -> str | None:
    """Adds a relation to another object."""
    others = [other for other in range(len(scene.objects)) if other != number]
    pairs = []
    for relation, other in product(RELATIONS, others):
        if relation_holds(scene, relation, number, other):
            pairs.append((relation, other))
    if not pairs:
        return None
    relation, other = rng.choice(pairs)
    target = object_phrase([scene.objects[other]], draw_habit(rng), detail, rng)
    mentions = (
        Mention(phrase, Entity("object", frozenset((number,)))),
        Mention(target, Entity("object", frozenset((other,)))),
    )
    caption = Caption((0, rng.choice(RELATION_WORDS[relation]), 1), mentions, (Fact(relation, 0, 1),))
    if not allows(combinations, caption.content):
        return None
    ways = readings(scene, caption)
    if ways and all(way[0] == {number} for way in ways):
        return caption.text
    return None
