# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes inside of texts, in the marks of each model: which words, which numbers, on which scale.

`docs/data.md` lists the marks. A mention without words of its own is given those of the question or the answer by the
reader of conversations.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .raw import RawBox
from .readings import PIXELS, Reading

_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)"
_NUMBERS = re.compile(_NUMBER)
THOUSANDTHS = (Reading("xyxy", 1000.0),)
SHARES: tuple[Reading, ...] = (Reading("xyxy", 1.0),)
POINT_SHARES: tuple[Reading, ...] = (Reading("points", 1.0),)
STEPS_999 = (Reading("xyxy", 999.0),)
# The same key has pixels in Qwen2.5-VL, thousandths in Qwen3-VL, shares in Kimi-VL: the numbers must tell.
OPEN_SCALE = (Reading("xyxy", PIXELS), Reading("xyxy", 1000.0), Reading("xyxy", 1.0))
KOSMOS_CELLS = 32
LONGEST_ITEM = 2**16  # characters of a box in JSON


@dataclass
class Mention:
    """Boxes in a text, and the words beside them."""

    boxes: list[RawBox]
    span: tuple[int, int]  # The characters of the boxes and their marks
    words: tuple[int, int] | None = None  # The characters of the words that are marked as theirs
    label: str | None = None  # Words of a label; several boxes with one label are one phrase
    image: int | None = None  # The picture, if the marks say it


def find_mentions(text: str) -> list[Mention]:
    """The boxes of a text, in order; those of the first kind of marks that occurs in it."""
    for find in _FINDERS:
        if mentions := [each for each in find(text) if each.boxes]:
            return mentions
    return []


def without_boxes(text: str, mentions: Sequence[Mention]) -> str:
    """What a text says beside its boxes."""
    for mention in sorted(mentions, key=lambda each: -each.span[0]):
        start, end = mention.span
        kept = "" if mention.words is None else text[mention.words[0] : mention.words[1]]
        text = f"{text[:start]}{kept}{text[end:]}"
    return text


def _groups(numbers: Sequence[float], size: int, readings: tuple[Reading, ...]) -> list[RawBox]:
    return [RawBox([*numbers[i : i + size]], readings) for i in range(0, len(numbers) - size + 1, size)]


def _on(numbers: Sequence[float], readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
    """Marks of thousandths with fractions up to 1 are shares of the picture (Ovis, old data of InternVL)."""
    return SHARES if numbers and max(numbers) <= 1 and any(each % 1 for each in numbers) else readings


def _values(text: str) -> list[float]:
    return [float(each) for each in _NUMBERS.findall(text)]


def _between(start: str, end: str) -> str:
    """What is between two marks; not from the mark of words without a box on to those of the next words."""
    return rf"{start}((?:(?!{start}).)*?){end}"


# Marks: words, then boxes. Each line: the words, the boxes behind them, the scale.
_QWEN = (
    _between(r"<\|object_ref_start\|>", r"<\|object_ref_end\|>"),
    _between(r"<\|box_start\|>", r"<\|box_end\|>"),
    THOUSANDTHS,
)
_REF = (_between("<ref>", "</ref>"), _between("<(?:box|quad|point)>", "</(?:box|quad|point)>"), THOUSANDTHS)
_DEEPSEEK = (_between(r"<\|ref\|>", r"<\|/ref\|>"), _between(r"<\|det\|>", r"<\|/det\|>"), STEPS_999)


def _marked(words: str, box: str, readings: tuple[Reading, ...]) -> Callable[[str], Iterator[Mention]]:
    # Not from within blanks on, which would take quadratic time.
    pattern = re.compile(rf"(?:{words}|(?<![\s,;:]))((?:[\s,;:]*{box})+)", re.DOTALL)
    inner = re.compile(box, re.DOTALL)

    def find(text: str) -> Iterator[Mention]:
        end = 0
        for match in pattern.finditer(text):
            boxes = []
            for each in inner.finditer(match[2]):
                numbers, scale = _values(each[1]), readings
                if re.search(r"<\d+>", each[1]):  # Rex-Omni's tokens
                    scale = STEPS_999
                    for run in each[1].split(","):
                        boxes += _sized(_values(run), scale)
                    continue
                scale = _on(numbers, scale)
                if each[0].startswith("<quad>") and len(numbers) == 8:
                    numbers = [min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])]
                boxes += _sized(numbers, scale)
            # Words that are marked, then others, then the box: the marked ones.
            marked = (
                [match] if match[1] is not None else [*re.compile(words, re.DOTALL).finditer(text, end, match.start())]
            )
            end = match.end()
            place = marked[-1].span(1) if marked and marked[-1][1].strip() else None
            yield Mention(boxes, match.span() if match[1] is not None else match.span(2), _strip(text, place))

    return find


def _sized(numbers: Sequence[float], readings: tuple[Reading, ...]) -> list[RawBox]:
    """Boxes of four numbers; of two numbers a point; of longer runs that are no boxes, what they enclose."""
    if len(numbers) % 4 and len(numbers) % 2 == 0 and len(numbers) > 4:
        numbers = [min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])]
    return _groups(numbers, 2 if len(numbers) == 2 else 4, readings)


def _strip(text: str, place: tuple[int, int] | None) -> tuple[int, int] | None:
    if place is None:
        return None
    words = text[place[0] : place[1]]
    start = place[0] + len(words) - len(words.lstrip())
    return start, start + len(words.strip())


def _kosmos(text: str) -> Iterator[Mention]:
    """`<phrase> words</phrase><object><patch_index_0044><patch_index_0863></object>`: cells of a 32 x 32 grid."""
    pattern = re.compile(rf"(?:{_between('<phrase>', '</phrase>')}\s*)?{_between('<object>', '</object>')}", re.DOTALL)
    for match in pattern.finditer(text):
        cells = [int(each) for each in re.findall(r"<patch_index_(\d{4})>", match[2])]
        boxes = [RawBox(_cell_box(*pair), SHARES) for pair in zip(cells[::2], cells[1::2], strict=False)]
        yield Mention(boxes, match.span(), _strip(text, match.span(1) if match[1] is not None else None))


def _cell_box(first: int, last: int) -> list[float]:
    """The centres of both cells, or their edges if both lie in one row or column."""
    y1, x1 = divmod(first, KOSMOS_CELLS)
    y2, x2 = divmod(last, KOSMOS_CELLS)
    ends = (0.0, 1.0) if x1 == x2 or y1 == y2 else (0.5, 0.5)
    return [(x1 + ends[0]) / 32, (y1 + ends[0]) / 32, (x2 + ends[1]) / 32, (y2 + ends[1]) / 32]


def _paligemma(text: str) -> Iterator[Mention]:
    """`<loc0320><loc0064><loc0960><loc0384> words ; ...`: y first, 1,024 steps."""
    pattern = re.compile(r"((?:<loc\d{4}>\s*){4})(?:<seg\d{3}>\s*)*([^;<]*)")
    for match in pattern.finditer(text):
        boxes = [RawBox(_values(match[1].replace("<loc", " ")), (Reading("yxyx", 1024.0),))]
        words = _strip(text, match.span(2)) if match[2].strip() else None
        yield Mention(boxes, match.span(1), words, None if words is None else text[slice(*words)])


def _florence(text: str) -> Iterator[Mention]:
    """`words<loc_1><loc_2><loc_3><loc_4>`, x first: the middle of 1,000 steps; several boxes follow one another."""
    for match in re.finditer(r"(?:<loc_\d+>)+", text):
        numbers = [value + 0.5 for value in _values(match[0].replace("<loc_", " "))]
        begin = max(text.rfind(mark, 0, match.start()) for mark in "<>") + 1
        place = _strip(text, (begin, match.start())) if text[begin : match.start()].strip() else None
        yield Mention(_sized(numbers, THOUSANDTHS), match.span(), place)


def _molmo(text: str) -> Iterator[Mention]:
    """`<point x="61.5" y="40.4" alt="words">words</point>` in percent; `<points coords="1 1 453 512">` in 1000."""
    pattern = re.compile(r"<(points?|tracks)\b([^<>]*)>((?:(?!<\1\b).)*?)</\1>", re.DOTALL)
    for match in pattern.finditer(text):
        place, coords = _strip(text, match.span(3)), re.search(r'coords="([^"]*)"', match[2])
        if coords is None:
            xs, ys = (re.findall(rf'\b{axis}\d*="({_NUMBER})"', match[2]) for axis in "xy")
            boxes = [RawBox([float(x), float(y)], (Reading("points", 100.0),)) for x, y in zip(xs, ys, strict=False)]
            yield Mention(boxes, match.span(), place)
            continue
        for part in re.split(r"[\t;]", coords[1]):
            image, *numbers = _values(part) or [1.0]
            triples = [numbers[i + 1 : i + 3] for i in range(0, len(numbers) - 2, 3)]
            boxes = [RawBox(each, (Reading("points", 1000.0),)) for each in triples]
            yield Mention(boxes, match.span(), place, image=max(int(image) - 1, 0))


def _glm(text: str) -> Iterator[Mention]:
    """`<|begin_of_box|>[[x1, y1, x2, y2]]<|end_of_box|>` in thousandths; the marks also wrap plain answers."""
    for match in re.finditer(_between(r"<\|begin_of_box\|>", r"<\|end_of_box\|>"), text, re.DOTALL):
        inner = list(_json(match[1], THOUSANDTHS))
        if inner:
            for each in inner:
                offset = match.start(1)
                words = None if each.words is None else (each.words[0] + offset, each.words[1] + offset)
                yield Mention(each.boxes, match.span(), words, each.label)
        else:
            numbers = _values(match[1])
            if re.fullmatch(r"[\s\d.,\[\]()<>]+", match[1]) and len(numbers) in (2, *range(4, 400, 4)):
                yield Mention(_sized(numbers, THOUSANDTHS), match.span())


_BOX_KEYS = ("bbox_2d", "box_2d", "bbox", "box", "coordinates", "point_2d", "point", "points")
_LABEL_KEYS = ("label", "ref", "text", "name", "phrase", "description", "category", "sub_label", "text_content")


def _json(text: str, known: tuple[Reading, ...] = ()) -> Iterator[Mention]:
    """`[{"bbox_2d": [x1, y1, x2, y2], "label": "words"}]`, item by item, so that cut lists are read too."""
    start = end = -1
    while (start := text.find("{", max(start + 1, end))) >= 0:
        try:
            item, size = json.JSONDecoder().raw_decode(text[start : start + LONGEST_ITEM])
        except (ValueError, RecursionError):
            continue
        key = next((key for key in _BOX_KEYS if isinstance(item.get(key), list)), None)
        if key is None:
            continue
        end = start + size
        readings = known or OPEN_SCALE
        if key == "box_2d" and not known:  # Gemini, Gemma 4
            readings = (Reading("yxyx", 1000.0),)
        lists = item[key] if item[key] and isinstance(item[key][0], list) else [item[key]]
        boxes: list[RawBox] = []
        for numbers in lists:
            if all(re.fullmatch(_NUMBER, str(each).strip()) for each in numbers):
                boxes += _sized([float(each) for each in numbers], readings)
        label = next((item[name] for name in _LABEL_KEYS if isinstance(item.get(name), str)), None)
        image = item.get("image_id")
        yield Mention(
            boxes,
            (start, end),
            None if label is None else _label_place(text, label, (start, end)),
            label,
            image if isinstance(image, int) and not isinstance(image, bool) and image >= 0 else None,
        )


def _label_place(text: str, label: str, span: tuple[int, int]) -> tuple[int, int] | None:
    place = text.rfind(f'"{label}"', *span) + 1 if label else 0
    return None if place < 1 else (place, place + len(label))


def _clicks(text: str) -> Iterator[Mention]:
    """`pyautogui.click(x=0.5, y=0.06)`, `click(x=..., y=...)`, `<click>x, y</click>`: points."""
    pattern = re.compile(rf"\b\w*\(\s*x\s*=\s*({_NUMBER})\s*,\s*y\s*=\s*({_NUMBER})")
    readings = (Reading("points", 1.0), Reading("points", PIXELS), Reading("points", 1000.0))
    for match in pattern.finditer(text):
        numbers = [float(match[1]), float(match[2])]
        yield Mention([RawBox(numbers, POINT_SHARES if max(numbers) <= 1 else readings)], match.span())


# Four numbers, or several fours: `[0.1, 0.2, 0.3, 0.4]`, `[[012,345,678,900]]`, `(x1,y1),(x2,y2)`, `[a;b]`.
_FOUR = rf"{_NUMBER}(?:\s*,\s*{_NUMBER}){{3}}"
_BARE = re.compile(
    rf"\[\s*\[?\s*{_FOUR}(?:\s*\]?\s*[;,]\s*\[?\s*{_FOUR})*\s*\]?\s*\]"
    rf"|\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)\s*,?\s*\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)"
    rf"|\(\s*{_FOUR}\s*\)"
)
_BARE_POINT = re.compile(rf"[\[(]\s*({_NUMBER})\s*,\s*({_NUMBER})\s*[\])]")


def _bare(text: str) -> Iterator[Mention]:
    """Numbers in brackets without any mark."""
    for match in _BARE.finditer(text):
        numbers = _values(match[0])
        if max(numbers) <= 1.01 and any(each % 1 for each in numbers):
            # LLaVA's data are those of the padded square; Shikra writes no blanks and means the picture.
            readings = (Reading("xyxy", 1.0, padded=True), *SHARES) if re.search(r"\d\s*,\s+", match[0]) else SHARES
        elif re.fullmatch(r"[\[\](),;\s]*(?:\d{3}[\[\](),;\s]*)+", match[0]) and re.search(r"\b0\d\d\b", match[0]):
            readings = THOUSANDTHS  # CogVLM: three digits
        else:
            readings = OPEN_SCALE
        yield Mention(_groups(numbers, 4, readings), match.span())


def _bare_points(text: str) -> Iterator[Mention]:
    """Of a text that is nothing else: two numbers in brackets also occur in talk."""
    if not re.fullmatch(r"[\s\d.,;+()\[\]-]*", text):
        return
    for match in _BARE_POINT.finditer(text):
        numbers = [float(match[1]), float(match[2])]
        readings = POINT_SHARES if max(numbers) <= 1 else (Reading("points", PIXELS), Reading("points", 1000.0))
        yield Mention([RawBox(numbers, readings)], match.span())


_FINDERS: tuple[Callable[[str], Iterator[Mention]], ...] = (
    _marked(*_QWEN),
    _marked(*_DEEPSEEK),
    _kosmos,
    _paligemma,
    _florence,
    _molmo,
    _glm,
    _marked(*_REF),
    _json,
    _clicks,
    _bare,
    _bare_points,
)

_ARTICLE = re.compile(r"\b(?:an?|the|his|her|their|its|this|that|these|those|two|three|four|some|several|one)\b", re.I)
_ASKED = re.compile(
    r"(?:bounding box(?:es)?(?: coordinates?)?(?: in the image)? (?:of|for|corresponding to)|where (?:is|are)|find|"
    r"locate|point (?:to|at|out)|detect|segment|ground|click(?: on)?|mark|show(?: me)?|coordinates? (?:of|for))\s+"
    r"(.+?)(?=\s+(?:in|on|from) (?:this|the) (?:image|picture|photo)\b|,? and (?:output|report|return|give|answer)\b|"
    r"\s+with grounding|\s+and (?:its|their) (?:box|bounding)|[?.!\n]|$)",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"“]([^“\n]+?)[\"”]")
_REGION_OF = re.compile(
    r"(?:sentence describes|description|expression|phrase|instruction|object|target)\s*:\s*|given description\.\s+",
    re.I,
)
_PLACEHOLDER = re.compile(
    r"<(?:image|img)>|<\|?image_?\d*\|?>|<\|vision_start\|>[^<\n]*(?:<(?!\|vision)[^<\n]*)*<\|vision_end\|>|<grounding>"
)


def words_asked_for(question: str) -> tuple[int, int] | None:
    """The words of a question that a box answers: after a colon, in quotation marks or in `<ref>`, the object of
    "find" or "where is", or all of it; characters of the question."""
    for words, *_ in (_REF, _QWEN, _DEEPSEEK):
        if match := re.search(words, question, re.DOTALL):
            return _trim(question, match.span(1))
    if match := _REGION_OF.search(question):
        end = question.find("\n", match.end())
        return _trim(question, (match.end(), end if end > match.end() else len(question)))
    if match := _QUOTED.search(question):
        return _trim(question, match.span(1))
    if match := _ASKED.search(question):
        return _trim(question, match.span(1))
    if (colon := question.rfind(": ")) > 0 and question[colon + 2 :].strip():
        return _trim(question, (colon + 2, len(question)))
    return whole_text(question)


def whole_text(text: str) -> tuple[int, int] | None:
    """The characters of a text without places of pictures and the blanks around it; None if nothing is left."""
    pieces = [0, *(edge for each in _PLACEHOLDER.finditer(text) for edge in each.span()), len(text)]
    spans = [(start, end) for start, end in zip(pieces[::2], pieces[1::2], strict=True) if text[start:end].strip()]
    return _trim(text, max(spans, key=lambda each: each[1] - each[0])) if spans else None


def words_before(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The words just before a box, from the last article of their part of the sentence on."""
    piece = re.split(r"[.;:!?\n\])>]", text[start:end])[-1]
    begin = end - len(piece)
    articles = list(_ARTICLE.finditer(piece))
    if articles:
        begin += articles[-1].start()
    return _trim(text, (begin, end)) if text[begin:end].strip(" ,") else None


def _trim(text: str, place: tuple[int, int]) -> tuple[int, int] | None:
    words = text[place[0] : place[1]]
    left = len(words) - len(words.lstrip(" \t\n,\"'“"))
    kept = words[left:].rstrip(" \t\n,.?!;:\"'”")
    return (place[0] + left, place[0] + left + len(kept)) if kept else None
