# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Conversations about pictures, with boxes inside of the texts or beside them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .box_texts import SHARES, Mention, asked_for, find_mentions, says_nothing, whole_text, without_boxes
from .columns import TEXT_NAMES, Columns, Context, boxes_of, images_of, make_row
from .messages import message_texts, messages_in, read_messages
from .raw import (
    BOX_NAMES,
    RawBox,
    RawPhrase,
    RawRow,
    RowError,
    first_of,
    items,
    plain,
    read_boxes,
    structured,
    texts_of,
)
from .readings import PIXELS, Reading

NAMES = ("conversations", "messages", "conversation")
# Columns of one exchange: what is asked, what is answered.
PAIRS = (
    ("query", "response"), ("prefix", "suffix"), ("prompt", "completion"), ("problem", "solution"),
    ("instruction", "output"), ("question", "answer"), ("prompt", "chosen"), ("question", "chosen"),
    ("instruction", "chosen"),
)  # fmt: skip
_IMAGE = re.compile(r"<img>|<\|?image_?\d*\|?>|<\|vision_start\|>")
_PLACE = re.compile(r"<ref-object>|<bbox>")
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
_BBOX_TYPES = {"real": PIXELS, "norm1": 1.0, "norm1000": 1000.0, "norm100": 100.0, "norm_1": 1.0, "norm_1000": 1000.0}
# The number of a text, and characters of it.
Place = tuple[int, int, int]


def matches(record: Columns) -> bool:
    if any(isinstance(record.get(name), (list, str)) for name in NAMES):
        return True
    pair = _pair(record)
    if pair is None or first_of(record, BOX_NAMES):
        return False
    answer = str(record[pair[1]])
    return pair[0] not in ("question", "instruction") or bool(_UNREAD.search(answer) or _LIKE_BOXES.search(answer))


def _pair(record: Columns) -> tuple[str, str] | None:
    return next((pair for pair in PAIRS if all(isinstance(record.get(key), (str, list)) for key in pair)), None)


def read(record: Columns, context: Context) -> Iterator[RawRow]:
    name = first_of(record, NAMES)
    turns: list[dict[str, Any]] = []
    is_text = name == "conversations" and isinstance(record[name], str)
    if name is not None:
        turns = items(_with_chosen(record, plain(structured(record[name], name))), name)
        messages, pictures, beside = read_messages(turns, name)
    else:
        messages, pictures, beside = _exchange(record)
    images = images_of(record) or pictures
    shown = _shown(messages, len(images))
    calls = [each["tool_calls"] for each in turns if each.get("tool_calls")]
    if _LIKE_BOXES.search(str(calls)):
        context.leave_out("calls of tools with places, beside the texts")
    own = boxes_of({key: value for key, value in record.items() if key not in ("width", "height")})
    if record.get("objects"):
        phrases = _fill(messages, _objects(record["objects"]), str(record.get("rejected_response", "")))
    elif record.get("kto_tag", record.get("label")) in (False, "false", "False", "0"):
        context.leave_out("boxes of an answer that is marked as wrong")
        phrases, own = [], []
    elif any(boxes is not None for boxes in beside):
        phrases = _answers(message_texts(messages), _roles(messages), beside, shown)
    else:
        is_screen = is_text and not any("{" in text for text in message_texts(messages))  # UGround
        phrases = _mentions(message_texts(messages), _roles(messages), shown, context, is_screen)
    if own and phrases:
        context.leave_out("columns of boxes beside texts that have boxes")
    elif own:
        phrases = _asked(message_texts(messages), _roles(messages), own)
    if not (name == "conversations" and "image" in record and len(images) == 1):
        phrases = [_unpadded(phrase) for phrase in phrases]
    if is_text and not any("{" in text for text in message_texts(messages)):  # UGround: whole numbers from 0 to 999
        phrases = [_of_uground(phrase, "uground" in context.kind.lower()) for phrase in phrases]
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


def _exchange(record: Columns) -> tuple[list[dict[str, Any]], list[Any], list[Any]]:
    pair = _pair(record)
    assert pair is not None
    history = structured(record.get("history"), "history") or []
    texts = [each for exchange in history for each in exchange] + [record[key] for key in pair]
    if record.get("input") and pair[0] == "instruction":
        texts[-2] = f"{texts[-2]}\n{record['input']}"
    messages: list[dict[str, Any]] = []
    pictures: list[Any] = []
    for number, text in enumerate(texts):
        if turns := messages_in(text):
            inner, inside, _ = read_messages(turns, pair[number % 2])
            messages, pictures = messages + inner, pictures + inside
        else:
            (words,) = texts_of(text, pair[number % 2])[:1] or [""]
            messages.append({"role": ("user", "assistant")[number % 2], "content": words})
    if isinstance(record.get("system"), str) and record["system"]:
        messages.insert(0, {"role": "system", "content": record["system"]})
    return messages, pictures, [None] * len(message_texts(messages))


# Boxes in the texts


def _shown(messages: Sequence[Mapping[str, Any]], count: int) -> list[int | None]:
    """The picture that the turn of each text shows; None if that is not one of its own among several pictures."""
    shown_first: list[int | None] = []
    turn: int | None = None
    number = 0
    for message in messages:
        content = message["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        new = sum(len(_IMAGE.findall(part["text"])) if "text" in part else 1 for part in parts)
        if new:
            turn, number = (number if new == 1 else None), number + new
        elif message["role"] == "user":
            turn = 0 if number == 1 else None
        shown_first += [turn] * len(message_texts([message]))
    return shown_first if number == count > 1 else [None] * len(shown_first)


def _roles(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The role of each text."""
    return [message["role"] for message in messages for _ in message_texts([message])]


def _asked_before(texts: Sequence[str], roles: Sequence[str], number: int, is_action: bool = False) -> Place | None:
    """What the question before a text asks for."""
    before = _question_before(roles, number)
    words = None if before is None else asked_for(texts[before], is_action)
    return None if before is None or words is None else (before, *words)


def _question_before(roles: Sequence[str], number: int) -> int | None:
    return next((i for i in range(number - 1, -1, -1) if roles[i] == "user"), None)


def _mentions(
    texts: Sequence[str], roles: Sequence[str], shown: Sequence[int | None], context: Context, is_screen: bool = False
) -> list[RawPhrase]:
    """The phrases of all boxes in texts. Boxes of the same words stand together, and so do those of the same label."""
    phrases: dict[Any, RawPhrase] = {}
    mentions: list[list[Mention]] = []
    for number, (text, role) in enumerate(zip(texts, roles, strict=True)):
        before = _question_before(roles, number)
        question = "" if before is None else texts[before]
        mentions.append([] if role not in ("user", "assistant") else find_mentions(_after_thoughts(text), question))
    for number, text in enumerate(texts):
        rest = without_boxes(_after_thoughts(text), mentions[number])
        if roles[number] == "assistant":
            _check_rest(rest, context)
        for mention in mentions[number]:
            place: Place | None = None
            if mention.words is not None:
                place = (number, *mention.words)
            elif roles[number] == "user":
                after = next((i for i in range(number + 1, len(texts)) if roles[i] == "assistant"), None)
                if after is not None and _repeats(mention, mentions[after]):
                    continue
                pointed = len(mentions[number]) == 1 and _POINTING.search(text[: mention.span[0]][-LONGEST_POINTING:])
                answer = whole_text(texts[after]) if pointed and after is not None and not mentions[after] else None
                place = None if after is None or answer is None else (after, *answer)
            elif mention.is_action or says_nothing(rest):
                place = _asked_before(texts, roles, number, mention.is_action or is_screen)
            if place is None and not mention.is_sure and not _names_boxes(texts, roles, number):
                context.leave_out(_NOT_READ)
                continue
            if place is None:
                raise RowError("a box without words", found=text[slice(*mention.span)], expected=_WITH_WORDS)
            sentence, start, end = place
            words = texts[sentence][start:end]
            image = shown[number] if mention.image is None else mention.image
            key = (sentence, image, words if mention.is_label else (start, end))
            phrase = phrases.setdefault(key, RawPhrase(words, [], start, end, sentence, image))
            phrase.boxes.extend(mention.boxes)
    return [*phrases.values()]


def _names_boxes(texts: Sequence[str], roles: Sequence[str], number: int) -> bool:
    """Whether a text has marked words, or answers a question for boxes."""
    return bool(_UNREAD.search(texts[number]) or _asked_before(texts, roles, number))


def _repeats(mention: Mention, others: Sequence[Mention]) -> bool:
    """Whether an answer names the boxes that its question lists."""
    said = [box.numbers for other in others for box in other.boxes]
    return all(box.numbers in said for box in mention.boxes)


def _check_rest(rest: str, context: Context) -> None:
    """What looks like boxes in an answer and was not read."""
    if mark := _UNREAD.search(rest):
        found = rest[mark.start() : mark.start() + 60]
        raise RowError("marks of boxes in no known form", found=found, expected="one form of whole marks in a text")
    if _LIKE_BOXES.search(rest):
        context.leave_out(_NOT_READ)


def _after_thoughts(text: str) -> str:
    """A text whose thoughts are blank, so that characters stay where they are."""
    end = max(
        (text.rfind(mark) + len(mark) for mark in ("</think>", "</thinking>", "◁/think▷") if mark in text), default=0
    )
    return " " * end + text[end:]


# Boxes beside the texts


def _asked(texts: Sequence[str], roles: Sequence[str], boxes: list[RawBox]) -> list[RawPhrase]:
    """The boxes of a row are what its one question asks for."""
    place = _asked_before(texts, roles, len(texts)) if roles.count("user") == 1 else None
    if place is None:
        raise RowError("boxes beside texts", found=list(texts), expected="one question that names what they are of")
    return [_phrase(texts, place, boxes)]


def _phrase(texts: Sequence[str], place: Place, boxes: list[RawBox], image: int | None = None) -> RawPhrase:
    sentence, start, end = place
    return RawPhrase(texts[sentence][start:end], boxes, start, end, sentence, image)


def _answers(texts: Sequence[str], roles: Sequence[str], beside: Sequence[Any], shown: Sequence[int | None]
             ) -> list[RawPhrase]:  # fmt: skip
    """GUI-Actor: the box of an answer is what the instruction before it means."""
    phrases = []
    for number, boxes in enumerate(beside):
        if boxes is None:
            continue
        before = _question_before(roles, number)
        words = None if before is None else whole_text(texts[before])
        if before is None or words is None:
            raise RowError("bbox_gt without an instruction", found=texts[number], expected="a message of the user")
        read = read_boxes(boxes, "the box of a message", SHARES)
        phrases.append(_phrase(texts, (before, *words), read, shown[number]))
    return phrases


# ms-swift


def _objects(value: Any) -> Mapping[str, Any]:
    """`ref`, `bbox`, `bbox_type` and `image_id`; version 2 has a list of objects, with caption and image."""
    value = structured(value, "objects")
    if isinstance(value, list) and all(
        isinstance(each, Mapping) and {"caption", "bbox"} <= each.keys() for each in value
    ):
        names = {"ref": "caption", "bbox": "bbox", "bbox_type": "bbox_type", "image_id": "image"}
        return {name: [each.get(key) for each in value if key in each] for name, key in names.items()}
    if not isinstance(value, Mapping) or not {"ref", "bbox"} & value.keys():
        raise RowError(
            "objects beside a conversation", found=value, expected="ref and bbox, in the order of the texts"
        )
    return value


def _fill(messages: list[dict[str, Any]], objects: Mapping[str, Any], rejected: str) -> list[RawPhrase]:
    """`<ref-object>` and `<bbox>` are filled in order, each with its own list; those of a rejected answer are last."""
    refs = [str(each) for each in objects.get("ref") or []]
    lists = _object_boxes(objects)
    pictures = [int(each) for each in objects.get("image_id") or []] or [0] * len(lists)
    if len(pictures) != len(lists):
        found = (len(pictures), len(lists))
        raise RowError("objects: image_id and bbox", found=found, expected="one image_id for each bbox")
    refs = refs[: len(refs) - rejected.count("<ref-object>")]
    lists = lists[: len(lists) - rejected.count("<bbox>")]
    names: list[Place] = []
    owners: list[tuple[int, int | None]] = []  # of each <bbox>: its text, and the name directly before it
    alone: set[int] = set()  # texts that are boxes and nothing else
    number = -1
    for message in messages:
        parts = [message] if isinstance(message["content"], str) else [p for p in message["content"] if "text" in p]
        for part in parts:
            key = "content" if part is message else "text"
            number += 1
            end, filled, behind = 0, "", None
            alone |= {number} if says_nothing(_PLACE.sub("", part[key])) else set()
            for match in _PLACE.finditer(part[key]):
                gap = part[key][end : match.start()]
                filled, end = filled + gap, match.end()
                behind = None if gap.strip(" ,;:\n") else behind
                given, used = (refs, names) if match[0] == "<ref-object>" else (lists, owners)
                if len(used) >= len(given):
                    raise RowError(f"objects: too few for {match[0]}", found=len(given), expected="one for each")
                if given is refs:
                    behind = len(names)
                    names.append((number, len(filled), len(filled) + len(refs[behind])))
                    filled += refs[behind]
                else:
                    filled += json.dumps([*_short(lists[len(owners)])])
                    owners.append((number, behind))
            part[key] = filled + part[key][end:]
    if (len(names), len(owners)) not in ((len(refs), len(lists)), (0, 0), (0, len(lists))):
        found = (len(names), len(owners))
        raise RowError(
            "objects: names or boxes without a place",
            found=found,
            expected=f"{len(refs)} <ref-object>, {len(lists)} <bbox>",
        )
    texts, roles = message_texts(messages), _roles(messages)
    stand_behind = any(name is not None for _, name in owners)
    phrases: dict[Any, RawPhrase] = {}
    for index, box in enumerate(lists):
        owner: int | None = index if len(refs) == len(lists) else None
        if len(refs) == 1:
            owner = 0
        elif stand_behind:
            owner = owners[index][1]
        place = None
        if owner is not None and names:
            place = names[owner]
        elif not refs and owners and owners[index][0] in alone:
            place = _asked_before(texts, roles, owners[index][0])
        if place is None and (owner is None or names):
            expected = "<bbox> directly behind its <ref-object>, or as many as these"
            raise RowError("objects: whose boxes are they?", found=[each.numbers for each in box], expected=expected)
        new = RawPhrase(refs[owner or 0]) if place is None else _phrase(texts, place, [])
        new.image = pictures[index]
        phrases.setdefault((place or owner, new.image), new).boxes.extend(box)
    return [*phrases.values()]


def _object_boxes(objects: Mapping[str, Any]) -> list[list[RawBox]]:
    given = objects.get("bbox") or []
    kinds = objects.get("bbox_type")
    lists = []
    for each, kind in zip(given, kinds if isinstance(kinds, list) and kinds else [kinds] * len(given), strict=True):
        if kind is not None and kind not in _BBOX_TYPES:
            raise RowError("objects: an unknown bbox_type", found=kind, expected=", ".join(_BBOX_TYPES))
        scales = [PIXELS, 1.0] if kind is None else [_BBOX_TYPES[kind]]
        lists.append(read_boxes(each, "objects, bbox", tuple(Reading("xyxy", scale) for scale in scales)))
    return lists


def _short(boxes: Sequence[RawBox]) -> Iterator[float | int]:
    for box in boxes:
        for number in box.numbers:
            yield int(number) if number == int(number) else number


def _unpadded(phrase: RawPhrase) -> RawPhrase:
    """Only LLaVA's own form means the padded square."""
    return _map(phrase, lambda readings: tuple(each for each in readings if not each.padded))


def _of_uground(phrase: RawPhrase, is_known: bool) -> RawPhrase:
    """999 for 1000 where the scale is open; and no other scale if the set is known by its name."""

    def rescale(readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
        if len(readings) == 1:
            return readings
        if is_known:
            return (Reading(readings[0].order, 999.0),)
        return tuple(replace(each, scale=999.0) if each.scale == 1000 else each for each in readings)

    return _map(phrase, rescale)


def _map(phrase: RawPhrase, change: Any) -> RawPhrase:
    return replace(phrase, boxes=[replace(box, readings=change(box.readings)) for box in phrase.boxes])


def read_text(record: Columns, context: Context) -> Iterator[RawRow]:
    """A text, or several, without boxes beside it; some have boxes in the marks of a model."""
    name = first_of(record, ("question", *TEXT_NAMES))
    texts = texts_of(record[name], name) if name else []
    phrases = [
        replace(_unpadded(each), sentence=n) for n, text in enumerate(texts) for each in _marked_words(text, context)
    ]
    yield make_row(record, {"text": texts[0]} if len(texts) == 1 else {"captions": texts}, phrases)


def _marked_words(text: str, context: Context) -> list[RawPhrase]:
    return _mentions([text], ["assistant"], [None], context) if "<" in text and find_mentions(text) else []
