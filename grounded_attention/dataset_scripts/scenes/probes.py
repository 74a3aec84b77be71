# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Probes of the test images of scenes, each in the columns of a real one, so that its reader and its rule serve.

The files `probes/KIND.jsonl` are made of `scenes.json` when they are first asked for: captions with a foil
(SugarCrepe), the four places of two objects (What'sUp), statements (VSR), two images with two captions (Winoground),
yes or no about looks, numbers and places (AMBER), references of which some are wrong (Ref-L4's reviewed lists); and,
as own rows, questions with the box of their evidence. The builders `pope` and `refcoco` make questions of POPE and
referring expressions of scenes.
"""

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations, zip_longest
from pathlib import Path

from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.whole_files import make_folder, write_text

from .annotators import RELATION_WORDS
from .captions import Caption, caption_holds
from .compositional_questions import INVERSE
from .language import COLOUR_WORDS, NOUNS, PLURALS, meaning_of, with_article
from .questions import WORDS, related_pair, single_object
from .records import HELD_OUT, MANIFEST, SceneRecord, scene_record, split_numbers
from .statements import COUNTS, count_of
from .world import COLOURS, SHAPES, relation_holds
from .writers_questions import share_of
from .writers_refcoco import object_boxes, refer

COMPOSITION = "composition"
EVIDENCE = "evidence"
OPTIONS = "options"
STATEMENTS = "statements"
PAIRS = "pairs"
VERDICTS = "verdicts"
REVIEWED = "reviewed"
PLACES = ("left_of", "right_of", "above", "below")  # of two objects at most one holds
QUESTIONS = 3  # about each image
WRONG_RATE = 0.2  # of reviewed references
_ARTICLE_AND_WORD = re.compile(r"\ban? ([a-z]+)")
_NO_NOUN = re.compile(r"\bcan (?=see|be)")
_SINGULAR = {plural: noun for noun, plural in PLURALS.items()}


def scene_probe(root: Path, kind: str) -> Path:
    """The file of a probe, written if it is not there."""
    path = root / "probes" / f"{kind}.jsonl"
    if not path.is_file():
        rows = _rows(_test_records(root), kind, read_json(root / MANIFEST)["seed"])
        make_folder(path.parent)
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def _test_records(root: Path) -> list[SceneRecord]:
    manifest = read_json(root / MANIFEST)
    seed = manifest["seed"]
    images = manifest["images"]
    numbers = split_numbers(seed, images)["test"]
    return [scene_record(seed, number, images, manifest[HELD_OUT]) for number in numbers]


def _rows(records: Sequence[SceneRecord], kind: str, seed: int) -> Iterator[Fields]:
    if kind in _OF_ALL:
        yield from _OF_ALL[kind](records)
        return
    for record in records:
        about = {"image": f"../flickr30k-images/{record.image_id}.jpg", "image_id": record.image_id}
        for row in _OF_EACH[kind](record, random.Random(f"{seed}/{kind}/{record.number}")):
            yield about | row


def foils(record: SceneRecord, rng: random.Random) -> Iterator[Fields]:
    """A foil of each caption and kind: two colours exchanged, or a relation turned round; it is false of the scene."""
    for number, caption in enumerate(record.captions):
        if number == record.unrelated:
            continue
        for group, changed in (("colours", _other_colours(caption)), ("relations", _other_relations(caption))):
            false = [other for other in changed if not caption_holds(record.scene, other)]
            if false:
                text, _ = caption.written()
                foil, _ = rng.choice(false).written()
                yield {"caption": text, "negative_caption": foil, "group": group}


def _other_colours(caption: Caption) -> Iterator[Caption]:
    coloured = []
    for number, mention in enumerate(caption.mentions):
        words = mention.text.split() if mention.members else []
        coloured += [(number, word) for word in words if word in COLOUR_WORDS]
    for (first, one), (second, other) in permutations(coloured, 2):
        if first < second and COLOUR_WORDS[one] != COLOUR_WORDS[other]:
            mentions = list(caption.mentions)
            for number, old, new in ((first, one, other), (second, other, one)):
                text = " ".join(new if word == old else word for word in mentions[number].text.split())
                text = _ARTICLE_AND_WORD.sub(lambda match: with_article(match[1]), text)
                mentions[number] = replace(mentions[number], text=text)
            yield replace(caption, mentions=tuple(mentions))


def _other_relations(caption: Caption) -> Iterator[Caption]:
    relations = [fact.relation for fact in caption.facts]
    for place, fact in enumerate(caption.facts):
        other = INVERSE[fact.relation]
        if other == fact.relation or relations.count(fact.relation) > 1:
            continue
        for words, opposite in zip(RELATION_WORDS[fact.relation], RELATION_WORDS[other], strict=True):
            if words in caption.tokens:
                facts = [*caption.facts]
                facts[place] = replace(fact, relation=other)
                tokens = tuple(opposite if token == words else token for token in caption.tokens)
                yield replace(caption, tokens=tokens, facts=tuple(facts))


def evidence(record: SceneRecord, rng: random.Random) -> Iterator[Fields]:
    """Questions for the look of one object, which another phrase singles out, with its box."""
    scene = record.scene
    asked: set[str] = set()
    boxes = object_boxes(scene)
    for _ in range(4 * QUESTIONS):
        attribute = rng.choice(list(WORDS))
        single = single_object(scene, rng, attribute)
        if single is None:
            continue
        number, phrase = single
        names = getattr(scene.objects[number], attribute)
        text = f"What {WORDS[attribute]} is {phrase}?"
        if len(names) > 1 or text in asked:
            continue
        asked.add(text)
        box = share_of(scene, boxes[number], 6)
        yield {"text": text, "answer": names[0], "phrases": [{"text": phrase, "boxes": [box]}]}
        if len(asked) == QUESTIONS:
            return


# Two objects


def _placed(records: Sequence[SceneRecord]) -> dict[tuple[str, str], dict[str, list[SceneRecord]]]:
    """Two shapes -> place of the first -> the images that have one of each, there."""
    found: dict[tuple[str, str], dict[str, list[SceneRecord]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        alone = [shape for shape in SHAPES if count_of(record.scene, meaning_of(shape)) == 1]
        numbers = {}
        for number, item in enumerate(record.scene.objects):
            numbers.update(dict.fromkeys(item.shapes, number))
        for first, second in permutations(alone, 2):
            for place in PLACES:
                if relation_holds(record.scene, place, numbers[first], numbers[second]):
                    found[first, second][place].append(record)
    return dict(sorted(found.items()))


def _says(first: str, place: str, second: str) -> str:
    return f"{with_article(first)} {RELATION_WORDS[place][0]} {with_article(second)}"


def options(records: Sequence[SceneRecord]) -> Iterator[Fields]:
    """What'sUp: an image of each place of two shapes, as far as there are some, and a caption of each; the first is
    right. Images of the same shapes have one `pair`."""
    for (first, second), at in _placed(records).items():
        if first > second:
            continue
        rows = zip_longest(*(at[place] for place in PLACES))
        for number, row in enumerate(rows):
            for place, record in zip(PLACES, row, strict=True):
                if record is None:
                    continue
                captions = [_says(first, place, second)]
                captions += [_says(first, other, second) for other in PLACES if other != place]
                about = {"image": f"{record.image_id}.jpg", "caption_options": captions}
                yield {**about, "group": place.removesuffix("_of"), "pair": f"{first} {second} {number}"}


def pairs(records: Sequence[SceneRecord]) -> Iterator[Fields]:
    """Winoground: two images and two captions of the same words, each true of one of them."""
    placed = _placed(records)
    for (first, second), at in placed.items():
        if first > second:
            continue
        others = placed.get((second, first), {})
        for place in ("left_of", "above"):
            for number, (one, other) in enumerate(zip(at[place], others.get(place, []), strict=False)):
                yield {
                    "id": f"{first} {place} {second} {number}",
                    "collapsed_tag": "Object",
                    "image_0": f"{one.image_id}.jpg",
                    "image_1": f"{other.image_id}.jpg",
                    "caption_0": _says(first, place, second),
                    "caption_1": _says(second, place, first),
                }


def statements(record: SceneRecord, rng: random.Random) -> Iterator[Fields]:
    """VSR: relations of two objects, true or not."""
    for _ in range(QUESTIONS):
        found = related_pair(record.scene, rng)
        if found:
            (_, phrase), (_, other), relation, true = found
            text = f"{phrase} is {rng.choice(RELATION_WORDS[relation])} {other}."
            yield {"caption": text, "label": int(true == "yes"), "relation": relation.replace("_", " ")}


def verdicts(record: SceneRecord, rng: random.Random) -> Iterator[Fields]:
    """AMBER: yes or no about a colour, a number and a relation; half of them right."""
    scene = record.scene
    asked = []
    single = single_object(scene, rng, "colours")
    if single:
        number, phrase = single
        own = scene.objects[number].colours
        right = rng.random() < 0.5
        colours = own if right else [colour for colour in COLOURS if colour not in own]
        asked.append(("attribute-state", f"Is {phrase} {rng.choice(colours)}?", right))
    counted = []
    for noun in SHAPES:
        count = count_of(scene, meaning_of(noun))
        if count in (2, 3):
            counted.append((noun, count))
    if counted:
        noun, count = rng.choice(counted)
        right = rng.random() < 0.5
        word = COUNTS[count if right else 5 - count]
        asked.append(("attribute-number", f"Are there {word} {PLURALS[noun]}?", right))
    found = related_pair(scene, rng)
    if found:
        (_, phrase), (_, other), relation, true = found
        asked.append(("relation", f"Is {phrase} {rng.choice(RELATION_WORDS[relation])} {other}?", true == "yes"))
    for kind, text, right in asked:
        yield {"query": text, "truth": "yes" if right else "no", "hallu": "", "type": kind}


def descriptions(root: Path) -> list[Fields]:
    """AMBER's free descriptions: each image with the shapes that it has, and those that it has not."""
    rows = []
    for record in _test_records(root):
        shown: set[str] = set()
        for item in record.scene.objects:
            shown.update(item.shapes)
        row: Fields = {"file": str((root / "flickr30k-images" / f"{record.image_id}.jpg").resolve())}
        row["query"] = "Describe the image."
        row["truth"] = [shape for shape in SHAPES if shape in shown]
        row["hallu"] = [shape for shape in SHAPES if shape not in shown]
        rows.append(row)
    return rows


def shape_words() -> tuple[Callable[[str], list[str]], Callable[[str, str], bool], Mapping[str, list[str]], list[str]]:
    """What AMBER's script takes from NLTK, spaCy and its files: nouns of a text, words that are alike, the words of
    each shape, words that are always right."""

    def nouns(text: str) -> list[str]:
        return [_SINGULAR.get(word, word) for word in re.findall("[a-z]+", _NO_NOUN.sub("", text.lower()))]

    related = {}
    for shape in SHAPES:
        related[shape] = [word for word, allowed in NOUNS.items() if allowed == (shape,)]
    return nouns, str.__eq__, related, []


def reviewed(record: SceneRecord, rng: random.Random) -> Iterator[Fields]:
    """Ref-L4's lists: boxes x, y, width, height in pixels; of quality 0 is the reference of another object."""
    boxes = object_boxes(record.scene)
    scene = record.scene
    for number in range(len(boxes)):
        wrong = len(boxes) > 1 and rng.random() < WRONG_RATE
        meant = number
        if wrong:
            meant = rng.choice([other for other in range(len(boxes)) if other != number])
        for text in refer(scene, meant, rng)[:1]:
            x1, y1, x2, y2 = boxes[number]
            about = {"width": scene.width, "height": scene.height, "ori_category_id": scene.objects[number].shapes[0]}
            yield {"caption": text, "bbox": [x1, y1, x2 - x1, y2 - y1], **about, "caption_quality": int(not wrong)}


_OF_ALL = {OPTIONS: options, PAIRS: pairs}
_OF_EACH = {
    COMPOSITION: foils,
    EVIDENCE: evidence,
    STATEMENTS: statements,
    VERDICTS: verdicts,
    REVIEWED: reviewed,
}
