# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Conversations about pictures, with boxes inside of the texts or beside them."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from grounded_attention.dataset_scripts.files.errors import refuse_if
from grounded_attention.utils.named_types import Columns

from .box_texts import (
    SHARES,
    Mention,
    Span,
    asked_for,
    find_mentions,
    says_nothing,
    whole_text,
    without_boxes,
)
from .chats import message_texts, messages_in, read_messages, text_places
from .columns import TEXT_NAMES, Context, boxes_of, images_of, make_row
from .raw import (
    BOX_NAMES,
    Boxes,
    Phrases,
    RawPhrase,
    RowError,
    Rows,
    first_of,
    items,
    read_boxes,
    structured,
    texts_of,
)
from .readings import PIXELS, Reading

_PLACE = re.compile(r"(<ref-object>|<bbox>)")
_TYPES = {"real": PIXELS, "norm1": 1.0, "norm1000": 1000.0, "norm100": 100.0, "norm_1": 1.0, "norm_1000": 1000.0}
_EARLIER = {"caption": "ref", "bbox": "bbox", "bbox_type": "bbox_type", "image": "image_id"}


def fill(messages: Sequence[Any], value: Any, rejected: str) -> list[tuple[RawPhrase, int | None]]:
    """Fills the places, and gives the phrase of each `<bbox>` in order, without words where it has no name, with its
    text if there are no names and that is boxes alone. Those of a rejected answer are the last ones and left out."""
    objects = _objects(value)
    refs = [str(each) for each in objects.get("ref") or []]
    boxes = _boxes(objects)
    pictures = [int(each) for each in objects.get("image_id") or [0] * len(boxes)]
    if len(pictures) != len(boxes):
        found = (len(pictures), len(boxes))
        raise RowError("objects: image_id and bbox", found=found, expected="one image_id for each bbox")
    refs = refs[: len(refs) - rejected.count("<ref-object>")]
    boxes = boxes[: len(boxes) - rejected.count("<bbox>")]
    names: Phrases = []
    owners: list[RawPhrase | None] = []  # of each place of a box: the name directly before it
    alone: list[int | None] = []
    for number, (holder, key) in enumerate(text_places(messages)):
        is_alone = says_nothing(_PLACE.sub("", holder[key]))
        written, *rest = _PLACE.split(holder[key])
        name = None
        for place, gap in zip(rest[::2], rest[1::2], strict=True):
            filled = names if place == "<ref-object>" else owners
            refuse_if(
                len(filled) >= len(refs if place == "<ref-object>" else boxes),
                f"objects: too few for {place}",
                RowError,
                found=value,
                expected="one for each",
            )
            if place == "<ref-object>":
                words = refs[len(names)]
                name = RawPhrase(words, [], len(written), len(written) + len(words), number)
                names.append(name)
            else:
                sides = []
                for box in boxes[len(owners)]:
                    sides.extend(box.numbers)
                words = json.dumps([int(side) if side == int(side) else side for side in sides])
                owners.append(name)
                alone.append(number if is_alone else None)
            written += words + gap
            if gap.strip(" ,;:\n"):
                name = None
        holder[key] = written
    if (len(names), len(owners)) not in ((len(refs), len(boxes)), (0, 0), (0, len(boxes))):
        expected = f"{len(refs)} <ref-object>, {len(boxes)} <bbox>"
        raise RowError("objects: names or boxes without a place", found=(len(names), len(owners)), expected=expected)
    if refs:
        alone = []
    named = names or [RawPhrase(each) for each in refs]
    if len(named) == 1:
        owners = [*named] * len(boxes)
    elif not any(owners):
        if len(named) == len(boxes):
            owners = [*named]
        else:
            owners = []
    phrases = []
    for owner, text, each, picture in zip_longest(owners, alone, boxes, pictures[: len(boxes)]):
        phrases.append((replace(owner or RawPhrase(), boxes=each, image=picture), text))
    return phrases


def _objects(value: Any) -> Columns:
    """`ref`, `bbox`, `bbox_type` and `image_id`; version 2 has a list of objects, with caption and image."""
    value = structured(value, "objects")
    if isinstance(value, list) and all(isinstance(each, Mapping) and {"caption", "bbox"} <= {*each} for each in value):
        return {name: [each.get(key) for each in value if key in each] for key, name in _EARLIER.items()}
    if not isinstance(value, Mapping) or not {"ref", "bbox"} & value.keys():
        raise RowError("objects beside a conversation", found=value, expected="ref and bbox, in the texts' order")
    return value


def _boxes(objects: Columns) -> list[Boxes]:
    given = objects.get("bbox") or []
    kinds = objects.get("bbox_type")
    boxes = []
    for each, kind in zip(given, kinds if isinstance(kinds, list) and kinds else [kinds] * len(given), strict=True):
        if kind is not None and kind not in [*_TYPES]:
            raise RowError("objects: an unknown bbox_type", found=kind, expected=", ".join(_TYPES))
        scales = (PIXELS, 1.0) if kind is None else (_TYPES[kind],)
        boxes.append(read_boxes(each, "objects, bbox", tuple(Reading("xyxy", scale) for scale in scales)))
    return boxes


NAMES = ("conversations", "messages", "conversation")
# Columns of one exchange: what is asked, what is answered.
PAIRS = (
    ("query", "response"), ("prefix", "suffix"), ("prompt", "completion"), ("problem", "solution"),
    ("instruction", "output"), ("question", "answer"), ("prompt", "chosen"), ("question", "chosen"),
    ("instruction", "chosen"),
)  # fmt: skip
_IMAGE = re.compile(r"<img>|<\|?image_?\d*\|?>|<\|vision_start\|>")
# How a question points to a box that its answer describes.
_POINTING = re.compile(
    r"\b(?:region|area|box|location|coordinates?|place|part|point|element|object)(?: (?:is|at|in|of))?\s*:?\s*$",
    re.IGNORECASE,
)
LONGEST_POINTING = 60  # characters before a box
_WITH_WORDS = (
    "<ref>words</ref> directly before it, a label in its JSON, or an answer of boxes alone to a question such as "
    "Locate WORDS"
)
_UNREAD = re.compile(
    r"<\|?/?(?:box_start|box|bbox|quad|det|ref-object|object>|loc_?\d|patch_index|points?[ >]|click>)", re.IGNORECASE
)
_LIKE_BOXES = re.compile(
    r"[\[(]\s*(?:x\s*=\s*)?-?[\d.]+%?\s*,\s*(?:y\s*=\s*)?-?[\d.]+|<\d+>"
    r"|[\"'](?:\w{0,20}(?:box|point|coord)\w{0,20}|x)[\"']\s*:"
)
_NOT_READ = "texts in which no box was read from numbers like those of boxes, points or coordinates"
_THOUGHTS = re.compile(r"[\s\S]*(?:</think>|</thinking>|◁/think▷)")
_WRONG = (False, "false", "False", "0")  # `label` of an answer that is not to be learnt


Place = tuple[int, int, int]  # the number of a text, and the span of words in it


@dataclass
class Turn:
    """A text of a conversation."""

    text: str
    role: str
    question: int | None  # The text of the user before it
    image: int | None  # The picture that it shows; None if that is not one of its own among several pictures


def matches(record: Columns) -> bool:
    if any(isinstance(record.get(name), (list, str)) for name in NAMES):
        return True
    pair = _pair(record)
    if pair is None or first_of(record, BOX_NAMES):
        return False
    answer = str(record[pair[1]])
    return pair[0] not in ("question", "instruction") or bool(_UNREAD.search(answer) or _LIKE_BOXES.search(answer))


def _pair(record: Columns) -> tuple[str, str] | None:
    for pair in PAIRS:
        if all(isinstance(record.get(key), (str, list)) for key in pair):
            return pair
    return None


def read(record: Columns, context: Context) -> Rows:
    name = first_of(record, NAMES)
    if name is None:
        given = _exchange(record)
    else:
        given = items(_with_chosen(record, structured(record[name], name)), name)
    messages, pictures, beside = read_messages(given, name or "the exchange")
    images = images_of(record) or pictures
    if _LIKE_BOXES.search(str([each["tool_calls"] for each in given if each.get("tool_calls")])):
        context.leave_out("calls of tools with places, beside the texts")
    own = boxes_of({key: value for key, value in record.items() if key not in ("width", "height")})
    if record.get("objects"):
        filled = fill(messages, record["objects"], str(record.get("rejected_response", "")))
    else:
        filled = None
    turns = _turns(messages, len(images))
    # UGround has whole numbers from 0 to 999, and instructions alone as questions.
    is_uground = name == "conversations" and isinstance(record[name], str) and not any("{" in t.text for t in turns)
    if filled is not None:
        phrases = _together(_with_question(turns, phrase, text) for phrase, text in filled)
    elif record.get("kto_tag", record.get("label")) in _WRONG or record.get("status") == "rejected":
        context.leave_out("boxes of an answer that is marked as wrong")
        phrases = []
        own = []
    elif any(boxes is not None for boxes in beside):
        phrases = [_answered(turns, number, boxes) for number, boxes in enumerate(beside) if boxes is not None]
    else:
        phrases = _mentions(turns, context, is_uground)
    if own and phrases:
        context.leave_out("columns of boxes beside texts that have boxes")
    elif own:
        phrases = [_asked(turns, own)]
    if name != "conversations" or "image" not in record or len(images) != 1:
        _unpad(phrases)
    if is_uground:
        _to_999(phrases, "uground" in context.kind.lower())
    rest = {key: value for key, value in record.items() if key not in NAMES}
    yield make_row(rest, {"messages": messages}, phrases, images=images)


def _with_chosen(record: Columns, turns: Any) -> Any:
    """Preferences: the chosen answer ends the conversation; the rejected one is not read."""
    chosen = record.get("chosen")
    if not chosen or not isinstance(turns, list):
        return turns
    if isinstance(chosen, str):
        chosen = {"role": "assistant", "content": chosen}
    return turns + (chosen if isinstance(chosen, list) else [chosen])


def _exchange(record: Columns) -> list[Columns]:
    """The messages of a question and an answer in columns of their own."""
    pair = _pair(record) or PAIRS[0]
    history = structured(record.get("history"), "history") or []
    texts = [*chain(*history), *(record[key] for key in pair)]
    if record.get("input") and pair[0] == "instruction":
        texts[-2] = f"{texts[-2]}\n{record['input']}"
    turns: list[Columns] = []
    if record.get("system"):
        turns.append({"role": "system", "content": record["system"]})
    for number, text in enumerate(texts):
        words = ""
        if not messages_in(text):
            words = "\n".join(texts_of(text, pair[number % 2])[:1])
        turns += messages_in(text) or [{"role": ("user", "assistant")[number % 2], "content": words}]
    return turns


def _turns(messages: Sequence[Columns], count: int) -> list[Turn]:
    turns: list[Turn] = []
    shown: int | None = None
    question: int | None = None
    number = 0
    for message in messages:
        content = message["content"]
        texts = message_texts([message])
        new = sum(len(_IMAGE.findall(text)) for text in texts)
        if not isinstance(content, str):
            new += sum("text" not in part for part in content)
        if new:
            shown = number if new == 1 else None
            number = number + new
        elif message["role"] == "user":
            shown = 0 if number == 1 else None
        for text in texts:
            turns.append(Turn(text, message["role"], question, shown))
            if message["role"] == "user":
                question = len(turns) - 1
    if number != count or count < 2:
        return [replace(each, image=None) for each in turns]
    return turns


def _phrase(turns: Sequence[Turn], place: Place, boxes: Boxes, image: int | None) -> RawPhrase:
    sentence, start, end = place
    return RawPhrase(turns[sentence].text[start:end], boxes, start, end, sentence, image)


def _together(phrases: Iterator[RawPhrase]) -> Phrases:
    """Phrases of the same words have all of their boxes."""
    by_place: dict[Any, RawPhrase] = {}
    for each in phrases:
        first = by_place.setdefault((each.text, each.sentence, each.start, each.image), each)
        if first is not each:
            first.boxes = [*first.boxes, *each.boxes]
    return [*by_place.values()]


# Boxes in the texts


def _find_words(turns: Sequence[Turn], number: int | None, find: Callable[[str], Span | None]) -> Place | None:
    """The words that `find` finds in a text, if there is one."""
    words = None if number is None else find(turns[number].text)
    if number is None or words is None:
        return None
    return (number, *words)


def _mentions(turns: Sequence[Turn], context: Context, is_screen: bool = False) -> Phrases:
    """The phrases of all boxes in texts. Boxes of the same words stand together, and so do those of the same label."""
    texts = [_THOUGHTS.sub(lambda match: " " * len(match[0]), each.text) for each in turns]
    mentions: list[list[Mention]] = []
    for text, turn in zip(texts, turns, strict=True):
        if turn.question is None:
            question = ""
        else:
            question = turns[turn.question].text
        mentions.append(find_mentions(text, question) if turn.role in ("user", "assistant") else [])
    phrases: dict[Any, RawPhrase] = {}
    for number, turn in enumerate(turns):
        rest = without_boxes(texts[number], mentions[number])
        if turn.role == "assistant":
            # What looks like boxes in an answer and was not read.
            mark = _UNREAD.search(rest)
            if mark:
                found = rest[mark.start() : mark.start() + 60]
                raise RowError(
                    "marks of boxes in no known form", found=found, expected="one form of whole marks in a text"
                )
            if _LIKE_BOXES.search(rest):
                context.leave_out(_NOT_READ)
        answer = next((i for i in range(number, len(turns)) if turns[i].role == "assistant"), None)
        for mention in mentions[number]:
            place: Place | None = None
            if mention.words is not None:
                place = (number, *mention.words)
            elif turn.role == "user":
                if answer is not None:  # it may name the boxes that its question lists
                    answered = []
                    for other in mentions[answer]:
                        for box in other.boxes:
                            answered.append(box.numbers)
                    if all(box.numbers in answered for box in mention.boxes):
                        continue
                is_pointed_at = _POINTING.search(texts[number][: mention.span[0]][-LONGEST_POINTING:])
                if answer is not None and not mentions[answer] and len(mentions[number]) == 1 and is_pointed_at:
                    place = _find_words(turns, answer, whole_text)
            elif mention.is_action or says_nothing(rest):
                find = partial(asked_for, is_instruction=mention.is_action or is_screen)
                place = _find_words(turns, turn.question, find)
            if place is None and not mention.is_sure and not _UNREAD.search(turn.text):
                if _find_words(turns, turn.question, asked_for) is None:  # else it answers a question for boxes
                    context.leave_out(_NOT_READ)
                    continue
            if place is None:
                raise RowError("a box without words", found=texts[number][slice(*mention.span)], expected=_WITH_WORDS)
            image = turn.image if mention.image is None else mention.image
            phrase = _phrase(turns, place, [], image)
            key = (place[0], image, phrase.text if mention.is_label else place[1:])
            phrases.setdefault(key, phrase).boxes.extend(mention.boxes)
    return [*phrases.values()]


def _unpad(phrases: Sequence[RawPhrase]) -> None:
    """Only LLaVA's own form means the padded square."""
    for box in chain(*(each.boxes for each in phrases)):
        box.readings = tuple(each for each in box.readings if not each.padded)


def _to_999(phrases: Sequence[RawPhrase], is_known: bool) -> None:
    """999 for 1000 where the scale is open; and no other scale if the set is known by its name."""
    for box in chain(*(each.boxes for each in phrases)):
        if len(box.readings) > 1:
            scaled = []
            for each in box.readings:
                scaled.append(replace(each, scale=999.0) if each.scale == 1000 else each)
            box.readings = tuple(each for each in scaled if each.scale == 999 or not is_known)


# Boxes beside the texts


def _asked(turns: Sequence[Turn], boxes: Boxes) -> RawPhrase:
    """The boxes of a row are what its one question asks for."""
    questions = [number for number, each in enumerate(turns) if each.role == "user"]
    place = None
    if len(questions) == 1:
        place = _find_words(turns, questions[0], asked_for)
    if place is None:
        found = [each.text for each in turns]
        raise RowError("boxes beside texts", found=found, expected="one question that names what they are of")
    return _phrase(turns, place, boxes, None)


def _answered(turns: Sequence[Turn], number: int, boxes: Any) -> RawPhrase:
    """GUI-Actor: the box of an answer is what the instruction before it means."""
    turn = turns[number]
    place = _find_words(turns, turn.question, whole_text)
    if place is None:
        raise RowError("bbox_gt without an instruction", found=turn.text, expected="a message of the user")
    return _phrase(turns, place, read_boxes(boxes, "the box of a message", SHARES), turn.image)


def _with_question(turns: Sequence[Turn], phrase: RawPhrase, text: int | None) -> RawPhrase:
    """A box of ms-swift without a name is what the question before its text asks for, if that is boxes alone."""
    if phrase.text:
        return phrase
    place = None
    if text is not None:
        place = _find_words(turns, turns[text].question, asked_for)
    if place is None:
        found = [box.numbers for box in phrase.boxes]
        raise RowError(
            "objects: whose boxes are they?", found=found, expected="a name in ref before it, or a question for it"
        )
    return _phrase(turns, place, phrase.boxes, phrase.image)


def read_text(record: Columns, context: Context) -> Rows:
    """A text, or several, without boxes beside it; some have boxes in the marks of a model."""
    name = first_of(record, ("question", *TEXT_NAMES))
    texts = texts_of(record[name], name) if name else []
    turns = []
    for text in texts:
        turns.append(Turn(text, "assistant" if "<" in text and find_mentions(text) else "", None, None))
    phrases = _mentions(turns, context)
    _unpad(phrases)
    yield make_row(record, {"text": texts[0]} if len(texts) == 1 else {"captions": texts}, phrases)
