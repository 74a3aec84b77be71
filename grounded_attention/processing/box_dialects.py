# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes and points in the words of each family of vision-language models: asked for, written and read.

A family has one scale. A number beyond it is an error, and is never read on another scale that it would fit.
"""

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..utils.named_types import Corners
from .grid_layouts import qwen_size
from .image_layouts import ImageSettings

_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)"
_GAP = r"(?:\s*[,;]\s*|\s+)"
_BARE_PAIR = rf"{_NUMBER}{_GAP}{_NUMBER}"
_PAIR = rf"({_NUMBER}){_GAP}({_NUMBER})"


def _four(pair: str) -> str:
    """The pattern of [x, y, x, y], (x, y), (x, y) and [[x, y], [x, y]]."""
    return rf"[\[(]\s*{pair}(?:{_GAP}|\s*[\])]\s*[,;]?\s*[\[(]\s*){pair}\s*,?\s*[\])]"


_FOUR = _four(_PAIR)
# With a key, and those that follow in the same list.
_KEYED_BOXES = re.compile(rf"box\w*\W{{0,6}}?{_four(_BARE_PAIR)}(?:\s*[,;]\s*{_four(_BARE_PAIR)})*", re.IGNORECASE)
_KEYS = ("x_?1|x_?min|left", "y_?1|y_?min|top", "x_?2|x_?max|right", "y_?2|y_?max|bottom")
_KEYED = [re.compile(rf"\b(?:{key})\b[\"'*` ]*[:=][* ]*({_NUMBER})", re.IGNORECASE) for key in _KEYS]
_RUN = re.compile(rf"(?<![\w.]){_NUMBER}(?:{_GAP}{_NUMBER})*(?!\w)")
_THOUGHTS = re.compile(r"(?:.*(?:</think(?:ing)?>|◁/think▷))?(.*?)(?:(?:<think(?:ing)?>|◁think▷).*)?", re.DOTALL)
# Tags, keys, and arguments of UI-TARS that are called boxes but are points.
_POINTS = re.compile(
    r"<(?:points?|tracks)\b.*?(?:</(?:points?|tracks)>|$)|\bpoint\w*[\"'*` ]*[:=]\s*[\[(][-\d\s.,;\[\]()]*"
    rf"|\b(?:start|end)_box\s*=\W*(?:box_start\W*)?{_BARE_PAIR}\s*[\])]",
    re.DOTALL,
)
# x and y by name (a click's arguments, JSON, a tag's attributes), a pair after <point>, in brackets, in tokens.
_NAMED_POINT = rf"\bx\d*[\"']?\s*[:=]\s*({_NUMBER})[,\s]+[\"']?y\d*[\"']?\s*[:=]\s*({_NUMBER})"
_POINT_FORMS = (rf"<point>\W*{_PAIR}", rf"[\[(]\s*{_PAIR}\s*[\])]", r"<(\d{1,3})><(\d{1,3})>", rf"^\W*{_PAIR}\W*$")
_COORDS = re.compile(r"<(?:points|tracks)\b[^>]*\bcoords=[\"']([^\"'>]*)")
# What boxes are called, which may have numbers of its own.
_LABELS = re.compile(
    r"([\"']\w*(?:label|name|text|class|category|caption|description)\w*[\"']\s*:|\balt=)\s*([\"'])(?:\\.|(?!\2).)*(?:\2|$)"
    r"|<(\|?)(ref|object_ref_start\||phrase)\3>.*?<\3(?:/\4|object_ref_end\|)\3>",
    re.DOTALL,
)
# Tokens of PaliGemma, Florence-2 and Rex-Omni: order of the numbers, middle and number of the steps.
_TOKENS = (
    (r"<loc(\d{4})>\s*", (1, 0, 3, 2), 0.0, 1024),
    (r"<loc_(\d+)>\s*", (0, 1, 2, 3), 0.5, 1000),
    (r"<(\d{1,3})>", (0, 1, 2, 3), 0.0, 999),
)
_LOCATIONS = re.compile(r"(?:<\|LOC_\d+\|>\s*)+")  # of PaddleOCR-VL
_NAMES = ("x1", "y1", "x2", "y2", "x", "y")
_CELLS = 32  # along an edge, of Kosmos-2
_CELL_PAIR = re.compile(r"<patch_index_(\d{4})>\s*<patch_index_(\d{4})>")


@dataclass(frozen=True)
class BoxDialect:
    """How a family of models writes boxes and points.

    Args:
        prompt (`str`, *optional*): Asks for the box of `{text}`.
        box (`str`, *optional*): One box, with `{x1}`, `{y1}`, `{x2}`, `{y2}` in the order of the family; a family
            that writes points has its middle, `{x}` and `{y}`.
        item (`str`, *optional*): A `{box}` in an answer, with its number, `{n}`, and words, `{text}`, or those as
            JSON, `{json}`.
        answer (`str`, *optional*): An answer: its `{items}`.
        join (`str`, *optional*): What stands between items.
        scale (`float` or `str`, *optional*, defaults to 1000): What the right and the lower edge of the image are
            called; or `"pixels"` of the resized image, or `"square"`: shares of the square to which it is padded.
        number (`str`, *optional*, defaults to `"d"`): Format of a number; `""` is a decimal without zeros at its end.
        most (`int`, *optional*): The largest number, if it is below the scale.
        middle (`float`, *optional*, defaults to 0): What is added to a number that names a step.
        y_first_key (`str`, *optional*, defaults to `"box_2d"`): The key of JSON whose boxes have y first, as those of
            Gemini do, whatever the order of the family.
        documented (`bool`, *optional*, defaults to `True`): Whether the family's authors or users have described it.
        limits, frame: Of one image, see [`box_dialect`]: the largest x and y, and the edges of the image.
    """

    prompt: str = "Where is {text}?"
    box: str = "[{x1}, {y1}, {x2}, {y2}]"
    item: str = "{box}"
    answer: str = "{items}"
    join: str = ", "
    scale: float | Literal["pixels", "square"] = 1000
    number: str = "d"
    most: int | None = None
    middle: float = 0.0
    y_first_key: str = "box_2d"
    documented: bool = True
    limits: tuple[float, float] | None = None
    frame: Corners | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The largest x and y of the image."""
        if self.limits is None and self.scale == "pixels":
            raise ValueError("boxes in pixels of the resized image need the image: box_dialect(processor, image)")
        return self.limits or ((1, 1) if isinstance(self.scale, str) else (self.scale, self.scale))

    def _edges(self) -> list[tuple[float, float]]:
        """First number and length of the image, for each of `_NAMES`."""
        left, top, right, bottom = self.frame or (0, 0, *self.bounds)
        return [(left, right - left), (top, bottom - top)] * 3

    def write_box(self, box: Sequence[float]) -> str:
        """Writes a box (x1, y1, x2, y2), divided by width and height of the image, clipped to it."""
        clipped = [min(max(float(value), 0.0), 1.0) for value in box]
        middle = [sum(clipped[place::2]) / 2 for place in (0, 1)]
        written = {}
        for name, value, (start, size) in zip(_NAMES, [*clipped, *middle], self._edges(), strict=True):
            exact = start + value * size
            if self.number.endswith("d"):
                whole = math.floor(exact - self.middle + 0.5)
                written[name] = format(whole if self.most is None else min(whole, self.most), self.number)
            else:
                written[name] = format(exact, self.number) if self.number else str(round(exact, 3))
        left, top = (min(int(value * _CELLS), _CELLS - 1) for value in clipped[:2])
        right = max(math.ceil(clipped[2] * _CELLS - 1), left)
        bottom = max(math.ceil(clipped[3] * _CELLS - 1), top)
        written["first"] = f"{top * _CELLS + left:04d}"
        written["last"] = f"{bottom * _CELLS + right:04d}"
        return _fill(self.box, written)

    def write(self, boxes: Sequence[Sequence[float]], text: str = "") -> str:
        """Writes an answer: the boxes of some words."""
        as_json = json.dumps(text, ensure_ascii=False)
        items = []
        for number, box in enumerate(boxes, 1):
            values = {"box": self.write_box(box), "n": str(number), "json": as_json, "text": text}
            items.append(_fill(self.item, values))
        return _fill(self.answer, {"items": self.join.join(items), "text": text})

    def read(self, text: str) -> list[float] | None:
        """Reads the first box of an answer: JSON, perhaps cut, brackets, tokens, keys such as x1, or numbers.

        Thoughts and points are left out. It is x1, y1, x2, y2 in [0, 1], in order and clipped to the image; None
        without a box, or if it has no area. A number beyond the scale is a `ValueError`.
        """
        return next(self._boxes(text), None)

    def read_all(self, text: str, own: bool = False) -> list[list[float]]:
        """Reads all boxes with an area, as [`read`] does; `own`: of what has the family's own key, brackets or tokens
        only, and no bare numbers."""
        return [box for box in self._boxes(text, own) if box is not None]

    def read_point(self, text: str) -> list[float] | None:
        """Reads the first point of an answer, x and y in [0, 1]: JSON, tags, a click, brackets; or a box's middle."""
        answer = _clean(text)
        coords = _COORDS.search(answer)
        named = _POINTS.search(answer)
        numbers: list[str] = []
        if coords:  # image, then number of the point, x and y
            numbers = re.findall(_NUMBER, coords[1])[2:4]
        elif named:
            numbers = self._find_point(named[0])
        if not coords and not numbers:
            box = self.read(text)
            if box is not None:
                return [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]
            numbers = self._find_point(answer)
        if len(numbers) > 1:
            return self._shares([float(number) for number in numbers])
        return None

    def _find_point(self, answer: str) -> list[str]:
        """x and y of the first point."""
        named = re.search(_NAMED_POINT, answer)
        if named:
            return [*named.groups()]
        for form in _POINT_FORMS:
            pair = re.search(form, answer)
            if pair:
                numbers = [*pair.groups()]
                return numbers[::-1] if self._flipped else numbers
        return []

    @property
    def _flipped(self) -> bool:
        return -1 < self.box.find("{y1}") < self.box.find("{x1}")

    @property
    def _own_form(self) -> str:
        """The pattern of a box as the family writes it, with its key, and of those that follow in the same list."""
        if "{x}" in self.box:  # a family of points
            return "(?!)"
        box = ""
        for piece in re.split(r"(\{\w+\}|<\|box_\w+\|>|[\s\[\](),])", self.box):
            if piece.startswith("{"):
                box += _NUMBER
            elif piece.startswith("<|box_"):
                box += f"(?:{re.escape(piece)})?"  # special tokens may have been left out of the text
            elif piece.isspace():
                box += r"\s*" if box.endswith("*") else r"\s+"
            else:
                box += re.escape(piece) + (r"\s*" if piece and piece in "[]()," else "")
        key = r"[\"']\w*box\w*[\"']\s*:\s*\[*\s*" if re.search(r'"\w+": \{box\}', self.item) else ""
        return rf"{key}{box}(?:\s*[,;]?\s*{box})*"

    def _boxes(self, text: str, own: bool = False) -> Iterator[list[float] | None]:
        answer = _POINTS.sub(" ", _clean(text))
        if own:
            answer = " | ".join(match[0] for match in re.finditer(self._own_form, answer))
        for first, last in _CELL_PAIR.findall(answer):
            top, left = divmod(int(first), _CELLS)
            bottom, right = divmod(int(last), _CELLS)
            # Middles of cells; of one row or one column their edges.
            outer = 0.0 if left == right or top == bottom else 0.5
            cells = (left + outer, top + outer, right + 1 - outer, bottom + 1 - outer)
            yield BoxDialect(scale=_CELLS)._corners(cells)
        for run in _LOCATIONS.findall(answer):
            values = [float(number) for number in re.findall(r"\d+", run)]
            count = 4 if len(values) == 4 else 8  # two corners, or the four of each quadrilateral
            for start in range(0, len(values) - count + 1, count):
                xs = values[start : start + count : 2]
                ys = values[start + 1 : start + count : 2]
                yield BoxDialect()._corners([min(xs), min(ys), max(xs), max(ys)])
        for token, order, middle, steps in _TOKENS:
            groups = re.findall(token * 4, answer)
            if groups:
                scale = BoxDialect(scale=steps)
                if self.box.startswith(token.partition("(")[0] + "{x1}"):  # DocTags has the tokens of Florence-2
                    scale = replace(self, box="")
                    middle = self.middle
                for group in groups:
                    yield scale._corners([float(group[place]) + middle for place in order])
                return
        by_key = bool(self.y_first_key) and re.search(rf"\b{self.y_first_key}\b", answer) is not None
        for numbers, keyed in _find_numbers(answer):
            values = [float(number) for number in numbers]
            if (self._flipped or by_key) and not keyed:
                values = [values[place] for place in (1, 0, 3, 2)]
            yield self._corners(values)

    def _corners(self, numbers: Sequence[float]) -> list[float] | None:
        shares = self._shares(numbers)
        x1, x2 = sorted(shares[::2])
        y1, y2 = sorted(shares[1::2])
        if x1 < x2 and y1 < y2:
            return [x1, y1, x2, y2]
        return None

    def _shares(self, numbers: Sequence[float]) -> list[float]:
        limits = self.bounds
        fractions = max(numbers) <= 1 < min(limits) and any(number % 1 for number in numbers)
        outside = any(not 0 <= number <= limit for number, limit in zip(numbers, limits * 2, strict=False))
        if fractions or outside:
            listed = ", ".join(f"{number:g}" for number in numbers)
            known = "x from 0 to {:g} and y from 0 to {:g}".format(*limits)
            raise ValueError(f"the box [{listed}] is not on the scale of {known}")
        shares = []
        for number, (start, size) in zip(numbers, self._edges(), strict=False):
            share = (number - start) / size
            shares.append(min(max(share, 0.0), 1.0))
        return shares


def _fill(template: str, values: dict[str, str]) -> str:
    """Fills in the names in braces that are known; other braces are those of JSON."""
    return re.sub(r"\{(\w+)\}", lambda slot: values.get(slot[1], slot[0]), template)


def _clean(text: str) -> str:
    """The boxes and points of a text without thoughts, labels, wide digits and quotes around numbers."""
    text = unicodedata.normalize("NFKC", text)
    thoughts = _THOUGHTS.fullmatch(text)
    text = _LABELS.sub(r"\1 ", thoughts[1] if thoughts else text)
    return re.sub(rf"[\"']\s*({_NUMBER})\s*[\"']", r"\1", text)


def _parted(brackets: re.Match[str]) -> str:
    """[x, y, x, y; x, y, x, y] as two boxes."""
    parts = brackets[0].split(";")
    if all(len(re.findall(_NUMBER, part)) == 4 for part in parts):
        return "],[".join(parts)
    return brackets[0]


def _find_numbers(text: str) -> Iterator[tuple[Sequence[str], bool]]:
    """The four numbers of each box that a text has, and whether keys name them: with a key, in brackets, or bare."""
    text = re.sub(r"[\[(][^\[\]()]*[\])]", _parted, text)
    keyed = " ".join(match[0] for match in _KEYED_BOXES.finditer(text))
    boxes = re.findall(_FOUR, keyed) or re.findall(_FOUR, text)
    if boxes:
        yield from ((box, False) for box in boxes)
        return
    edges = [key.findall(text) for key in _KEYED]
    if all(edges):
        yield from ((box, True) for box in zip(*edges, strict=False))
        return
    corners = re.findall(rf"[\[(]\s*{_PAIR}\s*[\])]", text)
    if len(corners) > 1:
        yield [*corners[0], *corners[1]], False
        return
    # Other brackets are polygons or points. A number before those of a box is of its label, as in "dog 2".
    bare = re.sub(r"[\[(][^\[\]()]*[\])]", " ; ", text)
    for run in _RUN.findall(bare):
        numbers = re.findall(_NUMBER, run)
        if len(numbers) > 3:
            yield numbers[len(numbers) % 4 :][:4], False


_JSON_PROMPT = "Locate {text} in this image and output the bbox coordinates in JSON format."
_REGION_PROMPT = "Please provide the bounding box coordinate of the region this sentence describes: "
_ITEM = '\t{"bbox_2d": {box}, "label": {json}}'
_FENCE = "```json\n[\n{items}\n]\n```"
_QWEN_3 = BoxDialect(_JSON_PROMPT, item=_ITEM, answer=_FENCE, join=",\n")

# By the authors' cards and code, or their answers to users. `plain` is for families without a documented form.
BOX_DIALECTS: dict[str, BoxDialect] = {
    "plain": BoxDialect(documented=False),
    "plain_999": BoxDialect(scale=999, documented=False),
    "plain_100": BoxDialect(scale=100, number="", documented=False),
    "plain_1": BoxDialect(scale=1, number="", documented=False),
    "qwen_vl": BoxDialect(
        "Where is <ref>{text}</ref>?", "({x1},{y1}),({x2},{y2})", "<ref>{text}</ref><box>{box}</box>", join=""
    ),
    "qwen2_vl": BoxDialect(
        'Output the bounding box in the image corresponding to the instruction "{text}" with grounding.',
        "<|box_start|>({x1},{y1}),({x2},{y2})<|box_end|>",
        answer="<|object_ref_start|>{text}<|object_ref_end|>{items}",
        join="",
    ),
    "qwen2_5_vl": replace(_QWEN_3, scale="pixels"),
    "qwen3_vl": _QWEN_3,
    "internvl": BoxDialect(_REGION_PROMPT + "<ref>{text}</ref>", answer="<ref>{text}</ref><box>[{items}]</box>"),
    "minicpm": BoxDialect(
        _REGION_PROMPT + "<ref>{text}</ref>",
        "<box>{x1} {y1} {x2} {y2}</box>",
        answer="<ref>{text}</ref>{items}",
        join="",
    ),
    "paligemma": BoxDialect(
        "detect {text}",
        "<loc{y1}><loc{x1}><loc{y2}><loc{x2}>",
        "{box} {text}",
        join=" ; ",
        scale=1024,
        number="04d",
        most=1023,
    ),
    "gemma4": BoxDialect(
        'Detect {text} and output the boxes as JSON with "box_2d" and "label".',
        "[{y1}, {x1}, {y2}, {x2}]",
        '{"box_2d": {box}, "label": {json}}',
        "```json\n[{items}]\n```",
    ),
    "llava": BoxDialect(_REGION_PROMPT + "{text}", scale="square", number=""),
    "shikra": BoxDialect(box="[{x1},{y1},{x2},{y2}]", join=";", scale=1, number=".3f"),
    "ferret": BoxDialect(),
    "glm4v": BoxDialect(
        "Please pinpoint the bounding box [[x1,y1,x2,y2], …] in the image as per the given description. {text}",
        "[{x1},{y1},{x2},{y2}]",
        answer="<|begin_of_box|>[{items}]<|end_of_box|>",
        y_first_key="",  # its box_2d has x first
    ),
    "kimi_vl": BoxDialect(_JSON_PROMPT, item='{"bbox_2d": {box}}', scale=1, number=""),
    "deepseek_vl2": BoxDialect(
        "<|ref|>{text}<|/ref|>.", answer="<|ref|>{text}<|/ref|><|det|>[{items}]<|/det|>", scale=999
    ),
    # As the README of deepseek-ai/DeepSeek-OCR asks.
    "deepseek_ocr": BoxDialect(
        "Locate <|ref|>{text}<|/ref|> in the image.",
        answer="<|ref|>{text}<|/ref|><|det|>[{items}]<|/det|>",
        scale=999,
    ),
    # DocTags of SmolDocling and Granite Docling: a grid of 500 steps (arXiv 2503.11576).
    "granite_docling": BoxDialect(
        "Find all '{text}' elements on the page.",
        "<loc_{x1}><loc_{y1}><loc_{x2}><loc_{y2}>",
        "<text>{box}{text}</text>",
        "<doctag>{items}</doctag>",
        "",
        scale=500,
    ),
    # Its task "spotting", asked for without words: four corners, as PaddleX reads them (post_process_for_spotting).
    "paddleocr_vl": BoxDialect(
        "Spotting: {text}",
        "".join(f"<|LOC_{{{corner}}}|>" for corner in "x1 y1 x2 y1 x2 y2 x1 y2".split()),
        answer="{text}{items}",
        join="",
    ),
    "florence2": BoxDialect(
        "<CAPTION_TO_PHRASE_GROUNDING>{text}",
        "<loc_{x1}><loc_{y1}><loc_{x2}><loc_{y2}>",
        answer="{text}{items}",
        join="",
        most=999,
        middle=0.5,
    ),
    "kosmos2": BoxDialect(
        "<grounding><phrase> {text}</phrase>",
        "<patch_index_{first}><patch_index_{last}>",
        answer="<phrase> {text}</phrase><object>{items}</object>",
        join="</delimiter_of_multi_objects/>",
    ),
    "ernie": _QWEN_3,
    "lfm2_vl": BoxDialect(
        'Detect {text}. Answer with a JSON array of {"image_id": 0, "bbox_2d": [xmin, ymin, xmax, ymax], "label"}, '
        "integers from 0 to 1000.",
        item='{"image_id": 0, "bbox_2d": {box}, "label": {json}}',
        answer="[{items}]",
    ),
    "molmo": BoxDialect(
        "Point to {text}.", 'x="{x}" y="{y}"', '<point {box} alt="{text}">{text}</point>', scale=100, number=""
    ),
    "molmo2": BoxDialect(
        "Point to {text}.", "{x} {y}", "{n} {box}", '<points coords="1 {items}">{text}</points>', " ", number="03d"
    ),
    "rex_omni": BoxDialect(
        "Detect {text}. Output the bounding box coordinates in [x0, y0, x1, y1] format.",
        "<{x1}><{y1}><{x2}><{y2}>",
        answer="<|object_ref_start|>{text}<|object_ref_end|><|box_start|>{items}<|box_end|>",
        join=",",
        scale=999,
    ),
    "cogvlm": BoxDialect(
        "Where is {text}? Please provide coordinates [[x0,y0,x1,y1]].",
        "[{x1},{y1},{x2},{y2}]",
        answer="[{items}]",
        join=";",
        number="03d",
    ),
    "internlm_xcomposer2": BoxDialect(),
    "ovis2_5": BoxDialect(
        "Where is <ref>{text}</ref>?", "<box>({x1},{y1}),({x2},{y2})</box>", join="", scale=1, number=""
    ),
}


def fit_dialect(dialect: BoxDialect, settings: ImageSettings | None) -> BoxDialect:
    """The dialect for one image, or without one (whose boxes in pixels are then to 1000)."""
    if dialect.scale == "pixels":
        rows, columns = (1000, 1000) if settings is None else qwen_size(settings)
        return replace(dialect, limits=(columns, rows))
    if settings is None or dialect.scale != "square":
        return dialect
    x = y = 0.0
    if settings.get("do_pad") and hasattr(settings.processor.image_processor, "pad_to_square"):
        longest = max(settings.width, settings.height)
        x = (1 - settings.width / longest) / 2
        y = (1 - settings.height / longest) / 2
    return replace(dialect, frame=(x, y, 1 - x, 1 - y))
