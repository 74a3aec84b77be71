# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Probes of the test images of scenes: captions with a foil, and questions with the box of their evidence.

The files are made of `scenes.json` when they are first asked for: `probes/composition.jsonl` has the columns of
SugarCrepe, `probes/evidence.jsonl` is in the form of own rows. The builders `pope` and `refcoco` make questions of
POPE and referring expressions of scenes.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.whole_files import make_folder, write_text

from .annotators import RELATION_WORDS
from .captions import Caption, caption_holds
from .compositional_questions import INVERSE, WORDS
from .language import COLOUR_WORDS
from .questions import single_object
from .records import HELD_OUT, MANIFEST, scene_record, split_numbers
from .writers import SceneRecord, caption_text
from .writers_refcoco import object_boxes

COMPOSITION, EVIDENCE = "composition", "evidence"
QUESTIONS = 3  # about each image
_ARTICLE = re.compile(r"\b(a|an) (?=([a-z]))")
Row = dict[str, Any]


def scene_probe(root: Path, kind: str) -> Path:
    """The file of a probe, written if it is not there."""
    path = root / "probes" / f"{kind}.jsonl"
    if not path.is_file():
        told = read_json(root / MANIFEST)
        seed, images, make = told["seed"], told["images"], {COMPOSITION: foils, EVIDENCE: evidence}[kind]
        rows: list[Row] = []
        for number in split_numbers(seed, images)["test"]:
            record = scene_record(seed, number, images, told.get(HELD_OUT, False))
            about = {"image": f"../flickr30k-images/{record.image_id}.jpg", "image_id": record.image_id}
            rows += [{**about, **row} for row in make(record, random.Random(f"{seed}/{kind}/{number}"))]
        make_folder(path.parent)
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def foils(record: SceneRecord, rng: random.Random) -> Iterator[Row]:
    """A foil of each caption and kind: two colours exchanged, or a relation turned round; it is false of the scene."""
    for number, caption in enumerate(record.captions):
        if number == record.unrelated:
            continue
        for group, made in (("colours", _other_colours(caption)), ("relations", _other_relations(caption))):
            false = [each for each in made if not caption_holds(record.scene, each)]
            if false:
                told = {"caption": caption_text(caption), "negative_caption": caption_text(rng.choice(false))}
                yield {**told, "group": group}


def _other_colours(caption: Caption) -> Iterator[Caption]:
    coloured = [
        (number, word)
        for number, mention in enumerate(caption.mentions)
        if mention.members
        for word in mention.text.split()
        if word in COLOUR_WORDS
    ]
    for (first, one), (second, other) in permutations(coloured, 2):
        if first < second and COLOUR_WORDS[one] != COLOUR_WORDS[other]:
            mentions = list(caption.mentions)
            for number, old, new in ((first, one, other), (second, other, one)):
                text = " ".join(new if word == old else word for word in mentions[number].text.split())
                mentions[number] = replace(mentions[number], text=_ARTICLE.sub(_article, text))
            yield replace(caption, mentions=tuple(mentions))


def _article(match: re.Match[str]) -> str:
    return "an " if match[2] in "aeiou" else "a "


def _other_relations(caption: Caption) -> Iterator[Caption]:
    relations = [fact.relation for fact in caption.facts]
    for place, fact in enumerate(caption.facts):
        other = INVERSE[fact.relation]
        if other == fact.relation or relations.count(fact.relation) > 1:
            continue
        for words, opposite in zip(RELATION_WORDS[fact.relation], RELATION_WORDS[other], strict=True):
            span, tokens = words.split(), list(caption.tokens)
            starts = [i for i in range(len(tokens)) if tokens[i : i + len(span)] == span]
            if starts:
                facts = [*caption.facts]
                facts[place] = replace(fact, relation=other)
                changed = [*tokens[: starts[0]], *opposite.split(), *tokens[starts[0] + len(span) :]]
                yield replace(caption, tokens=tuple(changed), facts=tuple(facts))
                break


def evidence(record: SceneRecord, rng: random.Random) -> Iterator[Row]:
    """Questions for the look of one object, which another phrase singles out, with its box."""
    scene = record.scene
    asked: set[str] = set()
    boxes = object_boxes(scene)
    sides = (scene.width, scene.height) * 2
    for _ in range(4 * QUESTIONS):
        attribute = rng.choice(list(WORDS))
        single = single_object(scene, rng, attribute)
        if single is None:
            continue
        number, phrase = single
        names, text = getattr(scene.objects[number], attribute), f"What {WORDS[attribute]} is {phrase}?"
        if len(names) > 1 or text in asked:
            continue
        asked.add(text)
        box = [round(edge / side, 6) for edge, side in zip(boxes[number], sides, strict=True)]
        yield {"text": text, "answer": names[0], "phrases": [{"text": phrase, "boxes": [box]}]}
        if len(asked) == QUESTIONS:
            return
