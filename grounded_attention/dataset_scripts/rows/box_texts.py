# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes inside of texts, in the marks of each model: which words, which numbers, on which scale.

A form that is known is read whole: marks whose numbers are no box are refused. A box has words in one of three ways:
by marks of words directly before it, by the label of its own entry, or as what the question asks for: in a known form
where an answer is boxes and nothing else, as a whole where the answer is an action on a screen (`asked_for`). Words of
prose beside a box are never taken: which of them are meant is not said. `docs/data.md` lists the marks.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from grounded_attention.dataset_scripts.files.errors import refuse_if
from grounded_attention.dataset_scripts.rows.raw import hull
from grounded_attention.utils.named_types import Span

from .raw import Boxes, RawBox, RowError, first_of, trimmed
from .readings import PIXELS, Reading, Readings

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)"
_NUMBERS = re.compile(_NUMBER)
_BLANKS = " \t\r\n,;:"
_BRACKETS = "()[]<>"
THOUSANDTHS: Readings = (Reading("xyxy", 1000.0),)
SHARES: Readings = (Reading("xyxy", 1.0),)
STEPS_999: Readings = (Reading("xyxy", 999.0),)
# The same key has pixels in Qwen2.5-VL, thousandths in Qwen3-VL, shares in Kimi-VL: the numbers must tell.
OPEN_SCALE: Readings = (Reading("xyxy", PIXELS), Reading("xyxy", 1000.0), Reading("xyxy", 1.0))
POINTS: Readings = (Reading("points", PIXELS), Reading("points", 1000.0))
POINT_SHARES: Readings = (Reading("points", 1.0),)
KOSMOS_CELLS = 32


@dataclass
class Mention:
    """Boxes in a text, and the words beside them."""

    boxes: Boxes
    span: Span  # The characters of the boxes and their marks
    words: Span | None = None  # The characters of the words that are marked as theirs
    is_label: bool = False  # Whether the words are a label: several boxes with one label are one phrase
    image: int | None = None  # The picture, if the marks say it
    is_action: bool = False  # Whether something is done there, which the instruction before it says
    is_sure: bool = True  # Whether these are boxes; four whole numbers in brackets may be anything


Mentions = Iterator[Mention]


def find_mentions(text: str, question: str = "") -> list[Mention]:
    """The boxes of a text, in order; those of the first kind of marks that occurs in it.

    The question tells where an answer has several forms: two pairs of numbers are two points if it asks for points.
    """
    for find in _FINDERS:
        mentions = [each for each in find(text, question) if each.boxes]
        if mentions:
            _give_words(text, mentions)
            for each in mentions:
                each.is_action = each.is_action or bool(_CALL.search(text, max(0, each.span[0] - 40), each.span[0]))
            return mentions
    return []


def without_boxes(text: str, mentions: Sequence[Mention]) -> str:
    """What a text says beside its boxes."""
    pieces = []
    end = 0
    for mention in mentions:
        pieces.append(text[end : mention.span[0]])
        end = max(end, mention.span[1])
    return "".join([*pieces, text[end:]])


# What stands around boxes and is no word about them.
_WRAPPERS = re.compile(r"```(?:json)?|</?answer>|<\|(?:begin|end)_of_box\|>|<\|im_end\|>")
# What stands before the place of an action: `click(start_box='`, `CLICK `.
_CALL = re.compile(
    r"\b\w*(?:box|point|coordinate|position|element)\s*=\s*['\"]?\Z|\b(?:CLICK|PRESS|TAP|SELECT|HOVER)\s*\Z"
)


def says_nothing(rest: str) -> bool:
    """Whether what an answer says beside its boxes is nothing."""
    return not re.search(r"\w", _WRAPPERS.sub("", rest))


# Words


_OPEN_REF = r"(?:<ref>|<phrase>|<\|object_ref_start\|>|<\|ref\|>)"
_CLOSE_REF = r"(?:</ref>|</phrase>|<\|object_ref_end\|>|<\|/ref\|>)"
_REF = re.compile(rf"{_OPEN_REF}((?:(?!{_OPEN_REF}|{_CLOSE_REF}).)*){_CLOSE_REF}", re.DOTALL)


def _give_words(text: str, mentions: Sequence[Mention]) -> None:
    """Boxes directly behind marked words, or behind other boxes of these, have them."""
    marked = iter([*_REF.finditer(text), None])
    next_words = next(marked)
    words = None
    end = 0
    for mention in mentions:
        while next_words is not None and next_words.end() <= mention.span[0]:
            words = _strip(text, next_words.span(1))
            end = next_words.end()
            next_words = next(marked)
        if text[end : mention.span[0]].strip(_BLANKS):
            words = None
        mention.words = mention.words or words
        end = mention.span[1]


def _strip(text: str, place: Span) -> Span | None:
    start, end = trimmed(text, *place)
    if start < end:
        return (start, end)
    return None


# Numbers


def _values(text: str) -> list[float]:
    return [float(each) for each in _NUMBERS.findall(text)]


def _groups(text: str) -> list[list[float]]:
    """The numbers inside of each pair of brackets; none if a text has anything else."""
    if _NUMBERS.sub("", text).strip(_BLANKS + _BRACKETS):
        return []
    groups = map(_values, re.split(r"[()\[\]<>;]", text))
    return [numbers for numbers in groups if numbers]


def _boxes(groups: Sequence[list[float]], readings: Readings, text: str, are_points: bool = False) -> Boxes:
    """Four numbers each, two corners, or a point; or points."""
    if [*map(len, groups)] == [2, 2] and not are_points:
        groups = [groups[0] + groups[1]]
    sizes = {*map(len, groups)}
    refuse_if(
        sizes != {4} and not (sizes == {2} and (are_points or len(groups) == 1)),
        "marks of a box without one",
        RowError,
        found=text,
        expected="x1, y1, x2, y2 each, or x, y",
    )
    return [RawBox(each, readings) for each in groups]


def _point_readings(numbers: Sequence[float]) -> Readings:
    if max(numbers) <= 1:
        return POINT_SHARES
    return POINTS


# The forms


_MARKED = re.compile(r"<(\|?)(box_start|box|quad|point|det)\1>([^A-Za-z|/]*)<\1/?(?:box_end|\2)\1>")


def _marked(text: str, question: str) -> Mentions:
    """Numbers between marks: Qwen, InternVL, MiniCPM-V, DeepSeek-VL2 (0..999), Rex-Omni's tokens (0..999)."""
    for match in _MARKED.finditer(text):
        mark = match[2]
        content = match[3]
        are_tokens = "><" in content
        readings = STEPS_999 if mark == "det" or are_tokens else THOUSANDTHS
        if are_tokens:
            groups = [_values(each) for each in content.split(",")]
        else:
            groups = _groups(content)
        numbers = [number for group in groups for number in group]
        if numbers and max(numbers) <= 1 and any(each % 1 for each in numbers):
            readings = SHARES  # Ovis, old data of InternVL
        if mark == "quad" and len(numbers) == 8:
            groups = [hull(numbers)]
        elif are_tokens:  # longer runs are polygons
            groups = [hull(each) if len(each) > 4 and len(each) % 2 == 0 else each for each in groups]
        if content.strip(" []"):
            boxes = _boxes(groups, readings, match[0], mark == "point" or are_tokens)
        else:
            boxes = []
        yield Mention(boxes, match.span())


def _kosmos(text: str, question: str) -> Mentions:
    """`<phrase> words</phrase><object><patch_index_0044><patch_index_0863></object>`: cells of a 32 x 32 grid."""
    for match in re.finditer(r"<object>((?:<patch_index_\d{4}>|</delimiter_of_multi_objects/>)+)</object>", text):
        cells = [int(each) for each in re.findall(r"\d{4}", match[1])]
        if len(cells) % 2:
            raise RowError("an odd number of cells", found=match[0], expected="two for each box")
        boxes = []
        for first, last in zip(cells[::2], cells[1::2], strict=True):
            y1, x1 = divmod(first, KOSMOS_CELLS)
            y2, x2 = divmod(last, KOSMOS_CELLS)
            # The centres of both cells, or their edges if both lie in one row or column.
            start, end = (0.0, 1.0) if x1 == x2 or y1 == y2 else (0.5, 0.5)
            corners = (x1 + start, y1 + start, x2 + end, y2 + end)
            boxes.append(RawBox([cell / KOSMOS_CELLS for cell in corners], SHARES))
        yield Mention(boxes, match.span())


def _paligemma(text: str, question: str) -> Mentions:
    """`<loc0320><loc0064><loc0960><loc0384> words ; ...`: y first, 1,024 steps."""
    for match in re.finditer(r"((?:<loc\d{4}>\s*)+)(?:<seg\d{3}>\s*)*([^;<]*)", text):
        numbers = _values(match[1].replace("<loc", " "))
        boxes = _boxes([numbers], (Reading("yxyx", 1024.0),), match[1])
        yield Mention(boxes, match.span(1), _strip(text, match.span(2)), is_label=True)


def _florence(text: str, question: str) -> Mentions:
    """`words<loc_1><loc_2><loc_3><loc_4>`, x first: the middle of 1,000 steps; several boxes follow one another, and
    read text has quadrilaterals."""
    for match in re.finditer(r"(?:^|(?<=[<>]))([^<>]*)((?:<loc_\d+>)+)", text):
        numbers = [value + 0.5 for value in _values(match[2].replace("<loc_", " "))]
        size = 8 if "OCR" in question else 4
        groups = [numbers[i : i + size] for i in range(0, len(numbers), size)]
        if size == 8:
            groups = [hull(each) if len(each) == 8 else each for each in groups]
        yield Mention(_boxes(groups, THOUSANDTHS, match[2]), match.span(2), _strip(text, match.span(1)))


def _molmo(text: str, question: str) -> Mentions:
    """`<point x="61.5" y="40.4" alt="words">words</point>` in percent; `<points coords="1 1 453 512">` in 1000."""
    pattern = re.compile(r"<(points?|tracks)\b([^<>]*)>((?:(?!<\1\b).)*?)</\1>", re.DOTALL)
    for match in pattern.finditer(text):
        words = _strip(text, match.span(3))
        coords = re.search(r'coords="([^"]*)"', match[2])
        if coords is None:
            xs, ys = (_values(" ".join(re.findall(rf'\b{axis}\d*="([^"]*)"', match[2]))) for axis in "xy")
            if len(xs) != len(ys):
                raise RowError("points that lack an x or y", found=match[0], expected="x and y of each")
            boxes = []
            for x, y in zip(xs, ys, strict=True):
                boxes.append(RawBox([x, y], (Reading("points", 100.0),)))
            yield Mention(boxes, match.span(), words)
            continue
        for part in re.split(r"[\t;]", coords[1]):
            image, *numbers = _values(part) or [1.0]
            refuse_if(
                len(numbers) % 3,
                "coords that are no points",
                RowError,
                found=part,
                expected="the picture, then number, x, y each",
            )
            triples = [numbers[i + 1 : i + 3] for i in range(0, len(numbers), 3)]
            boxes = [RawBox(each, (Reading("points", 1000.0),)) for each in triples]
            yield Mention(boxes, match.span(), words, image=max(int(image) - 1, 0))


def _glm(text: str, question: str) -> Mentions:
    """`<|begin_of_box|>[[x1, y1, x2, y2]]<|end_of_box|>` in thousandths; the marks also wrap plain answers."""
    for match in re.finditer(r"<\|begin_of_box\|>\s*([\[(<][^A-Za-z|]*?)\s*<\|end_of_box\|>", text):
        groups = _groups(match[1])
        if groups:
            yield Mention(_boxes(groups, THOUSANDTHS, match[0]), match.span())


_BOX_KEYS = ("bbox_2d", "box_2d", "bbox", "box", "coordinates", "point_2d", "point", "points")
_ACTION_KEYS = ("coordinate", "start_coordinate", "coordinate1", "coordinate2", "end_coordinate")
_LABEL_KEYS = ("label", "ref", "text", "name", "phrase", "description", "category", "sub_label", "text_content")
_BOX_KEY = re.compile(rf'"(?:{"|".join((*_BOX_KEYS, *_ACTION_KEYS))})"\s*:\s*\[')


def _json(text: str, question: str) -> Mentions:
    """`[{"bbox_2d": [x1, y1, x2, y2], "label": "words"}]`, and calls with a coordinate."""
    key = _BOX_KEY.search(text)
    decoder = json.JSONDecoder()
    start = text.find("{") if key else -1
    while start >= 0:
        try:
            item, end = decoder.raw_decode(text, start)
        except RecursionError:
            raise RowError("nested too deeply", found=text[start:], expected="a list of boxes") from None
        except json.JSONDecodeError as error:  # a pattern in a question, or braces of another kind
            if re.search(_BOX_KEY.pattern + r"[\s\[]*[-\d]", text[start : error.pos]):
                raise RowError(
                    f"a box in JSON that cannot be read ({error.msg})", found=text[start:], expected="whole JSON"
                ) from None
            start = text.find("{", max(error.pos, start + 1))
            continue
        keys = []
        for name in item:
            if name in _BOX_KEYS or name in _ACTION_KEYS:
                keys.append(name)
        if not keys:
            start = text.find("{", start + 1)  # perhaps it holds some
            continue
        yield _entry(item, keys, text, (start, end))
        start = text.find("{", end)


def _entry(item: dict[str, object], keys: list[str], text: str, span: Span) -> Mention:
    """The boxes of an object of JSON, and the characters of its label."""
    found = text[slice(*span)]
    is_action = "action" in item or keys[0] in _ACTION_KEYS
    if len(keys) > 1 and not is_action:
        raise RowError("an object with two boxes", found=found, expected=f"{keys[0]} alone")
    turned = [name for name in ("angle", "rotation", "theta") if item.get(name)]
    if turned:
        raise RowError(f"{turned[0]} beside a box", found=found, expected="the upright box around it, without it")
    refuse_if(
        keys == ["point"] and not is_action,
        "a point, x or y first (Gemini)",
        RowError,
        found=found,
        expected="point_2d, x first",
    )
    boxes: Boxes = []
    for key in keys:
        content = json.dumps(item[key]).replace('"', "")
        groups = _groups(content)
        readings = OPEN_SCALE
        if "<|begin_of_box|>" in text:  # GLM
            readings = THOUSANDTHS
        elif key == "box_2d":  # Gemini, Gemma 4
            readings = (Reading("yxyx", 1000.0),)
        boxes += _boxes(groups, readings, found, "point" in key) if content not in ("[]", "null") else []
    image = item.get("image_id")
    picture = None
    if type(image) is int and image >= 0:
        picture = image
    label = None if is_action else first_of(item, _LABEL_KEYS)
    if label is None or item[label] == "":
        return Mention(boxes, span, image=picture, is_action=is_action)
    if not isinstance(item[label], str):
        raise RowError(f"{label} is no text", found=found, expected="words of the box")
    places = re.compile(rf'"{label}"\s*:\s*"((?:[^"\\]|\\.)*)"').finditer(text, *span)
    words = [each.span(1) for each in places if json.loads(f'"{each[1]}"') == item[label]]
    refuse_if(len(words) != 1, f"{len(words)} places of a label", RowError, found=found, expected=f"one {label}")
    return Mention(boxes, span, words[0], True, picture)


_ACTION = re.compile(
    rf"\b(?:(?:pyautogui\.)?\w{{0,20}}(?:click|tap|press|move|drag|scroll|hover|select|swipe)\w{{0,20}}\(|\w+\(\s*(?=x\s*=))"
    rf"\s*(?:x\s*=\s*)?({_NUMBER})\s*,\s*(?:y\s*=\s*)?({_NUMBER})"
    r"|(?:\b(?:start_box|end_box|start_point|end_point|point|position|coordinate|box|element)\s*="
    r"|['\"](?:position|point|click_point|to)['\"]\s*:)\s*['\"]?([\[(][^A-Za-z'\"={}]*)",
    re.IGNORECASE,
)


def _clicks(text: str, question: str) -> Mentions:
    """`pyautogui.click(x=0.5, y=0.06)`, `click(0.5, 0.06)`, `drag(start_box='(1,2)', end_box='(3,4)')`."""
    for match in _ACTION.finditer(text):
        if match[3] is None:
            groups = [[float(match[1]), float(match[2])]]
            end = match.end()
        else:
            groups = _groups(match[3][: match[3].rfind(")") + 1] or match[3])
            end = match.end()
        if not groups:
            continue
        if len(groups[0]) == 2:
            readings = _point_readings([*map(max, groups)])
        else:
            readings = OPEN_SCALE
        yield Mention(_boxes(groups, readings, match[0]), (match.start(), end), is_action=True)


_BARE = re.compile(r"[\[(][\s\d.,;()\[\]+-]*")
_ASKS_FOR_POINTS = re.compile(r"\bpoints?\b|\btuples?\b", re.IGNORECASE)


def _bare(text: str, question: str) -> Mentions:
    """Numbers in brackets without any mark: fours, two corners `(x1,y1),(x2,y2)`; points if nothing else is said, as
    two numbers in brackets also occur in talk."""
    is_alone = says_nothing(_BARE.sub("", text))
    for match in _BARE.finditer(text):
        run = match[0][: max(match[0].rfind("]"), match[0].rfind(")")) + 1]
        groups = _groups(run)
        sizes = {*map(len, groups)}
        if sizes not in ({2}, {4}) or (sizes == {2} and len(groups) != 2 and not is_alone):
            continue
        is_list = run.startswith("[")
        if sizes == {2} and len(groups) == 2 and is_list and not _ASKS_FOR_POINTS.search(question):
            expected = "[x1, y1, x2, y2], or a question that asks for points"
            raise RowError("two pairs in a list: the corners of a box, or two points", found=run, expected=expected)
        is_sure = len(groups) > 1 or max(groups[0]) <= 1
        if sizes == {2} and (len(groups) != 2 or is_list):
            boxes = [RawBox(each, _point_readings(each)) for each in groups]
        else:
            boxes = _boxes(groups, _bare_readings(run), run)
            is_sure = is_sure or run[1] in "[("
        yield Mention(boxes, (match.start(), match.start() + len(run)), is_sure=is_sure)


def _bare_readings(run: str) -> Readings:
    written = _NUMBERS.findall(run)
    if max(map(float, written)) <= 1.01 and any("." in each for each in written):
        # LLaVA's data are those of the padded square; Shikra writes no blanks and means the picture.
        if re.search(r"\d\s*,\s+", run):
            return (Reading("xyxy", 1.0, padded=True), *SHARES)
        return SHARES
    if all(len(each) == 3 and each.isdigit() for each in written) and any(each[0] == "0" for each in written):
        return THOUSANDTHS  # CogVLM: three digits
    return OPEN_SCALE


_FINDERS: tuple[Callable[[str, str], Mentions], ...] = (
    _marked, _kosmos, _paligemma, _florence, _molmo, _glm, _json, _clicks, _bare,
)  # fmt: skip


# Questions


LONGEST_QUESTION = 4096  # characters of one that is compared with the forms below
_QUOTED = re.compile(r"[\"“]([^\"“”\n]+)[\"”]")
_BOX = r"(?:bounding box(?:es)?|bbox|box|coordinates?|location|position)(?: coordinates?)?(?: in the image)?"
_TAIL = (
    r"(?:\s+(?:in|on|from) (?:this|the) (?:image|picture|photo|screenshot)\b)?"
    r"(?:,?\s+(?:and (?:output|report|return|give|answer|its|their|provide)|with grounding|in json|in tuples)\b.*)?"
    r"[.?!]{0,2}(?:\s+(?:(?:your )?answer|output|give|return|format|provide|respond|list|report)\b.*)?"
)
_WORDS = r"(?!(?:it|this|that|them|these|those)\b)((?:(?![.?!]\s)[^\n])+?)"
# The questions of public data whose answers are boxes; the group is what they ask for.
_QUESTIONS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # Visual-CoT
        r"(.+?)\s+Please provide the bounding box coordinate of the region that can help you answer the question"
        r" better\.?",
        # LLaVA, InternVL, OS-Atlas; GLM
        r"(?:[^\n]*\s)?(?:sentence describes|description|expression|phrase|instruction|object|target)\s*:\s*([^\n]+)",
        r"[^\n]*given description\.\s+([^\n]+)",
        rf"(?:(?:please|can you|could you)\s+)?(?:(?:give|provide|output|pinpoint|show)(?: me)?\s+(?:the )?{_BOX}\s+"
        rf"(?:of|for|corresponding to)|where (?:is|are)|find|locate|point (?:to|at|out)|detect|segment|ground|"
        rf"click(?: on)?|mark|show(?: me)?)\s+{_WORDS}{_TAIL}",
        # UI-TARS; Florence
        r"[\s\S]*\n## User Instruction\s+([^\n]+)",
        r"<[A-Z_]+>([^<>\n]+)",
    )
)  # fmt: skip
_PLACEHOLDER = re.compile(
    r"<(?:image|img)>|<\|?image_?\d*\|?>|<\|vision_start\|>[^<\n]*(?:<(?!\|vision)[^<\n]*)*<\|vision_end\|>|<grounding>"
    r"|<\|grounding\|>"
)


def asked_for(question: str, is_instruction: bool = False) -> Span | None:
    """The words of a question that an answer of boxes means; characters of the question.

    The one thing that is marked or in quotation marks, or what a known form of question names; an instruction of one
    line, which an action answers, as a whole.
    """
    for pattern in (_REF, _QUOTED):
        found = [*pattern.finditer(question)]
        if found:
            if len(found) == 1:
                return _trim(question, found[0].span(1))
            return None
    place = whole_text(question)
    if place is None or place[1] - place[0] > LONGEST_QUESTION:
        return None
    for pattern in _QUESTIONS:
        match = pattern.fullmatch(question, *place)
        if match:
            return _trim(question, match.span(1))
    is_line = is_instruction and "\n" not in question[slice(*place)]
    if is_line:
        return _trim(question, place)
    return None


def whole_text(text: str) -> Span | None:
    """The characters of a text without places of pictures and the blanks around it; None if that is no one piece."""
    pieces = [0, *(edge for each in _PLACEHOLDER.finditer(text) for edge in each.span()), len(text)]
    spans = [(start, end) for start, end in zip(pieces[::2], pieces[1::2], strict=True) if text[start:end].strip()]
    if len(spans) == 1:
        return _strip(text, spans[0])
    return None


def _trim(text: str, place: Span) -> Span | None:
    words = text[place[0] : place[1]]
    left = len(words) - len(words.lstrip(" \t\n,\"'“"))
    kept = words[left:].rstrip(" \t\n,.?!;:\"'”")
    if kept:
        return (place[0] + left, place[0] + left + len(kept))
    return None
