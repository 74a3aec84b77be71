# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Conversations about pictures, with boxes inside of the texts or beside them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .box_texts import SHARES, Mention, find_mentions, whole_text, without_boxes, words_asked_for, words_before
from .columns import TEXT_NAMES, Columns, Context, boxes_of, images_of, make_row
from .messages import message_texts, messages_in, read_messages
from .raw import BOX_NAMES, RawBox, RawPhrase, RawRow, RowError, first_of, read_boxes, structured, texts_of
from .readings import PIXELS, Reading

# Columns of one exchange: what is asked, what is answered.
PAIRS = (
    ("query", "response"), ("prefix", "suffix"), ("prompt", "completion"), ("problem", "solution"),
    ("instruction", "output"), ("question", "answer"),
)  # fmt: skip
_IMAGE = re.compile(r"<img>|<\|?image_?\d*\|?>|<\|vision_start\|>")
_PLACE = re.compile(r"<ref-object>|<bbox>")
# What only points to a box and is no name of a thing.
_POINTING = re.compile(
    r"(?:in |of |for )?(?:this|the|that|its|a)?\s*(?:region|area|box|bounding box|location|coordinates?|place|part)"
    r"(?: is| are)?(?: (?:at|in|of))?|(?:here|it|this|that|there)(?: is| are| it is)?|(?:in|at|on|of|is|are)",
    re.IGNORECASE,
)
_BBOX_TYPES = {"real": PIXELS, "norm1": 1.0, "norm1000": 1000.0, "norm100": 100.0}


def matches(record: Columns) -> bool:
    if any(isinstance(record.get(name), (list, str)) for name in ("conversations", "messages", "conversation")):
        return True
    pair = _pair(record)
    if pair is None or first_of(record, BOX_NAMES):
        return False
    return pair[0] not in ("question", "instruction") or bool(find_mentions(str(record[pair[1]])))


def _pair(record: Columns) -> tuple[str, str] | None:
    return next((pair for pair in PAIRS if all(isinstance(record.get(key), (str, list)) for key in pair)), None)


def read(record: Columns, context: Context) -> Iterator[RawRow]:
    name = first_of(record, ("conversations", "messages", "conversation"))
    is_text = name == "conversations" and isinstance(record[name], str)
    if name is not None:
        messages, pictures, beside = read_messages(structured(record[name], name), name)
    else:
        messages, pictures, beside = _exchange(record)
    images = images_of(record) or pictures
    shown = _shown(messages, len(images))
    texts = message_texts(messages)
    roles = [message["role"] for message in messages for _ in message_texts([message])]
    rest = {key: value for key, value in record.items() if key not in ("conversations", "messages", "conversation")}
    objects = structured(record.get("objects"), "objects")
    if isinstance(objects, Mapping) and ("ref" in objects or "bbox" in objects):
        phrases = _fill(messages, objects)
    elif any(boxes is not None for boxes in beside):
        phrases = _answers(messages, beside, shown)
    else:
        phrases = _mentions(texts, roles, shown)
        own = boxes_of({key: value for key, value in record.items() if key not in ("width", "height")})
        if not phrases and own:
            phrases = _asked(texts, roles, own)
    if not (name == "conversations" and "image" in record and len(images) == 1):
        phrases = [_unpadded(phrase) for phrase in phrases]
    if is_text and not any("{" in text for text in texts):  # UGround: whole numbers from 0 to 999
        phrases = [_of_uground(phrase, "uground" in context.kind.lower()) for phrase in phrases]
    yield make_row(rest, {"messages": messages}, phrases, images=images)


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


def _mentions(texts: Sequence[str], roles: Sequence[str], shown: Sequence[int | None]) -> list[RawPhrase]:
    """The phrases of all boxes in texts. Boxes of the same words stand together, and so do those of the same label."""
    phrases: dict[Any, RawPhrase] = {}
    mentions = [find_mentions(_after_thoughts(text)) for text in texts]
    for number, (text, role) in enumerate(zip(texts, roles, strict=True)):
        before = next((i for i in range(number - 1, -1, -1) if roles[i] == "user"), None)
        after = next((i for i in range(number + 1, len(texts)) if roles[i] == "assistant"), None)
        end = 0
        for mention in mentions[number]:
            place: tuple[int, tuple[int, int]] | None
            if mention.words is not None:
                place = (number, mention.words)
            elif mention.label is not None and (there := _find_label(mention.label, texts)) is not None:
                place = there
            elif role == "assistant":
                place = _of_answer(number, text, end, mention, texts, before, len(mentions[number]))
            else:
                place = _of_question(number, text, end, mention, texts, after)
            end = mention.span[1]
            if place is None:
                raise RowError(
                    "a box without words", found=text[slice(*mention.span)], expected="words before it, or a question"
                )
            sentence, (start, stop) = place
            words = texts[sentence][start:stop]
            image = shown[number] if mention.image is None else mention.image
            key = (sentence, image, words if mention.label is not None else (start, stop))
            new = RawPhrase(words, [], start, stop, sentence, image)
            phrases.setdefault(key, new).boxes.extend(mention.boxes)
    return [*phrases.values()]


def _after_thoughts(text: str) -> str:
    """A text whose thoughts are blank, so that characters stay where they are."""
    end = max(
        (text.rfind(mark) + len(mark) for mark in ("</think>", "</thinking>", "◁/think▷") if mark in text), default=0
    )
    return " " * end + text[end:]


def _find_label(label: str, texts: Sequence[str]) -> tuple[int, tuple[int, int]] | None:
    for number, text in enumerate(texts):
        if label and (start := text.find(label)) >= 0:
            return number, (start, start + len(label))
    return None


def _of_answer(
    number: int, text: str, end: int, mention: Mention, texts: Sequence[str], before: int | None, count: int
) -> tuple[int, tuple[int, int]] | None:
    """Words of an answer's box: those just before it, or what the question asks for."""
    own = words_before(text, end, mention.span[0])
    if own is not None and _POINTING.fullmatch(text[slice(*own)].strip()):
        own = None
    rest = without_boxes(text, [mention]).strip(" .,:;\n[]()")
    asked = None if before is None else words_asked_for(texts[before])
    if own is not None and (count > 1 or asked is None or not _names_a_target(texts[before or 0])) and rest:
        return number, own
    if asked is not None and before is not None:
        return before, asked
    return None if own is None else (number, own)


def _names_a_target(question: str) -> bool:
    """Whether a question asks where one thing is, and not for a description with boxes."""
    place = words_asked_for(question)
    return place is not None and place != whole_text(question)


def _of_question(
    number: int, text: str, end: int, mention: Mention, texts: Sequence[str], after: int | None
) -> tuple[int, tuple[int, int]] | None:
    """Words of a question's box: a thing that is named just before it, or the answer."""
    own = words_before(text, end, mention.span[0])
    if own is not None and not re.search(
        r"\b(?:region|area|box|location|coordinates?|place|part|point)\b", text[slice(*own)], re.IGNORECASE
    ):
        article = re.match(r"(?:an?|the|his|her|their|this|that)\b", text[slice(*own)], re.IGNORECASE)
        if article or after is None:
            return number, own
    answer = None if after is None else whole_text(texts[after])
    return (after, answer) if answer is not None and after is not None else None if own is None else (number, own)


# Boxes beside the texts


def _asked(texts: Sequence[str], roles: Sequence[str], boxes: list[RawBox]) -> list[RawPhrase]:
    """The boxes of a row are what its first question asks for."""
    number = next((i for i, role in enumerate(roles) if role == "user"), 0)
    place = words_asked_for(texts[number]) if texts else None
    if place is None:
        raise RowError("boxes without words", found=list(texts), expected="a question that names what they are of")
    return [RawPhrase(texts[number][slice(*place)], boxes, *place, number)]


def _answers(
    messages: Sequence[Mapping[str, Any]], beside: Sequence[Any], shown: Sequence[int | None]
) -> list[RawPhrase]:
    """GUI-Actor: the box of an answer is what the instruction before it means."""
    phrases, texts = [], message_texts(messages)
    roles = [message["role"] for message in messages for _ in message_texts([message])]
    for number, boxes in enumerate(beside):
        if boxes is None:
            continue
        before = next((i for i in range(number - 1, -1, -1) if roles[i] == "user"), None)
        place = None if before is None else whole_text(texts[before])
        if place is None or before is None:
            raise RowError("bbox_gt without an instruction", found=texts[number], expected="a message of the user")
        read = [box for each in (boxes if isinstance(boxes[0], list) else [boxes])
                for box in read_boxes(each, "bbox_gt", SHARES)]  # fmt: skip
        phrases.append(RawPhrase(texts[before][slice(*place)], read, *place, before, shown[number]))
    return phrases


def _fill(messages: list[dict[str, Any]], objects: Mapping[str, Any]) -> list[RawPhrase]:
    """ms-swift: `<ref-object>` and `<bbox>` are filled in order, each with its own list."""
    refs = [each if isinstance(each, str) else str(each) for each in objects.get("ref") or []]
    kind = objects.get("bbox_type")
    if kind is not None and kind not in _BBOX_TYPES:
        raise RowError("objects: an unknown bbox_type", found=kind, expected=", ".join(_BBOX_TYPES))
    scales = [PIXELS, 1.0] if kind is None else [_BBOX_TYPES[kind]]
    readings = tuple(Reading("xyxy", scale) for scale in scales)
    lists = [read_boxes(each, "objects, bbox", readings) for each in objects.get("bbox") or []]
    pictures = [int(each) for each in objects.get("image_id") or []] or [0] * len(lists)
    if len(pictures) != len(lists):
        found = (len(pictures), len(lists))
        raise RowError("objects: image_id and bbox", found=found, expected="one image_id for each bbox")
    places: list[tuple[int, int, int]] = []  # of each name: the text, and its characters there
    owners: list[int] = []  # of each <bbox>: the name before it
    unclear = False  # names that do not stand together with their boxes
    number = -1
    used = 0
    for message in messages:
        parts = [message] if isinstance(message["content"], str) else [p for p in message["content"] if "text" in p]
        for part in parts:
            key = "content" if part is message else "text"
            number += 1
            text, end, filled = part[key], 0, ""
            for match in _PLACE.finditer(text):
                filled, end = filled + text[end : match.start()], match.end()
                if match[0] == "<ref-object>":
                    if len(places) >= len(refs):
                        raise RowError("objects: too few ref", found=len(refs), expected="one for each <ref-object>")
                    words = refs[len(places)]
                    places.append((number, len(filled), len(filled) + len(words)))
                    filled += words
                else:
                    if used >= len(lists):
                        raise RowError("objects: too few bbox", found=len(lists), expected="one for each <bbox>")
                    owners.append(len(places) - 1)
                    last = places[-1][0] if places else number
                    unclear |= not places or (last != number and sum(each[0] == last for each in places) > 1)
                    filled += json.dumps([*_short(lists[used])])
                    used += 1
            part[key] = filled + text[end:]
    texts = message_texts(messages)
    roles = [message["role"] for message in messages for _ in message_texts([message])]
    if not refs:
        phrases = _asked(texts, roles, [box for each in lists for box in each]) if lists else []
        return [replace(phrase, image=pictures[0]) for phrase in phrases]
    while len(places) < len(refs):  # names without a place in the texts
        there = _find_label(refs[len(places)], texts)
        if there is None:
            raise RowError("objects: a ref that is in no text", found=refs[len(places)], expected="<ref-object>")
        places.append((there[0], *there[1]))
    if len(refs) != len(lists):
        if len(refs) > 1 and (unclear or len(owners) < len(lists)):
            expected = f"{len(refs)} bbox, or <bbox> behind <ref-object>"
            raise RowError("objects: whose boxes are they?", found=f"{len(lists)} bbox", expected=expected)
        owner = [max(each, 0) for each in owners] + [0] * (len(lists) - len(owners))
    else:
        owner = [*range(len(lists))]
    phrases = []
    for index, (place, words) in enumerate(zip(places, refs, strict=True)):
        mine = [i for i in range(len(lists)) if owner[i] == index]
        for picture in dict.fromkeys(pictures[i] for i in mine):
            boxes = [box for i in mine if pictures[i] == picture for box in lists[i]]
            phrases.append(RawPhrase(words, boxes, place[1], place[2], place[0], picture))
    return phrases


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
    phrases = [replace(_unpadded(each), sentence=n) for n, text in enumerate(texts) for each in _marked_words(text)]
    yield make_row(record, {"text": texts[0]} if len(texts) == 1 else {"captions": texts}, phrases)


def _marked_words(text: str) -> list[RawPhrase]:
    return _mentions([text], ["assistant"], [None]) if "<" in text and find_mentions(text) else []
