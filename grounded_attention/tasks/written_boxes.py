# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes in texts of vision-language models: written on the scale of each family, read from generated answers."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grounded_attention.processing.image_layouts import ImageSettings, qwen_size
from grounded_attention.utils.open_images import open_image

_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)"
_GAP = r"(?:\s*[,;]\s*|\s+)"
_PAIR = rf"({_NUMBER}){_GAP}({_NUMBER})"
# [x, y, x, y], (x, y), (x, y), [[x, y], [x, y]]
_FOUR = rf"[\[(]\s*{_PAIR}(?:{_GAP}|\s*[\])]\s*[,;]?\s*[\[(]\s*){_PAIR}\s*,?\s*[\])]"
_KEYS = ("x_?1|x_?min|left", "y_?1|y_?min|top", "x_?2|x_?max|right", "y_?2|y_?max|bottom")
_KEYED = [re.compile(rf"\b(?:{key})\b[\"'*` ]*[:=][* ]*({_NUMBER})", re.IGNORECASE) for key in _KEYS]
_RUN = re.compile(rf"(?<![\w.]){_NUMBER}(?:{_GAP}{_NUMBER})*(?!\w)")
_THOUGHTS = re.compile(r"(?:.*(?:</think(?:ing)?>|◁/think▷))?(.*?)(?:(?:<think(?:ing)?>|◁think▷).*)?", re.DOTALL)
_POINTS = re.compile(r"<points?\b.*?(?:</points?>|$)|\bpoint\w*[\"'*` ]*[:=]\s*[\[(][-\d\s.,;\[\]()]*", re.DOTALL)
# Tokens of locations of PaliGemma and of Florence-2: order of the numbers, middle and number of the steps.
_TOKENS = ((r"<loc(\d{4})>\s*", (1, 0, 3, 2), 0.0, 1024), (r"<loc_(\d+)>\s*", (0, 1, 2, 3), 0.5, 1000))


@dataclass(frozen=True)
class BoxSpelling:
    """How a model writes the boxes of one image."""

    limits: tuple[float, float] = (1000, 1000)
    frame: tuple[float, float, float, float] | None = None
    decimals: int | None = None
    tokens: bool = False

    def _edges(self) -> list[tuple[float, float]]:
        """First number and length of the image, for each number of a box."""
        left, top, right, bottom = self.frame or (0, 0, *self.limits)
        return [(left, right - left), (top, bottom - top)] * 2

    def write(self, box: Sequence[float]) -> str:
        """Writes a box (x1, y1, x2, y2), divided by width and height of the image, clipped to it."""
        found = [start + min(max(v, 0.0), 1.0) * size for v, (start, size) in zip(box, self._edges(), strict=True)]
        if self.tokens:
            return "".join(f"<loc{min(round(found[place]), 1023):04d}>" for place in (1, 0, 3, 2))
        return "[" + ", ".join(str(round(edge, self.decimals)) for edge in found) + "]"

    def read(self, text: str) -> list[float] | None:
        """Reads the first box of a generated text: JSON, perhaps cut, brackets, tokens, keys such as x1, or numbers.

        Thoughts and points are left out. Returns x1, y1, x2, y2 in [0, 1], in order and clipped to the image; None
        without a box, or if it has no area.
        """
        text = unicodedata.normalize("NFKC", text)  # wide commas and digits
        thoughts = _THOUGHTS.fullmatch(text)
        answer = _POINTS.sub(" ", re.sub(rf"[\"']({_NUMBER})[\"']", r"\1", thoughts[1] if thoughts else text))
        for token, order, middle, steps in _TOKENS:
            if found := re.search(token * 4, answer):
                return BoxSpelling((steps, steps))._share([float(found[place + 1]) + middle for place in order])
        numbers = _find_numbers(answer)
        return None if numbers is None else self._share([float(number) for number in numbers])

    def _share(self, numbers: Sequence[float]) -> list[float] | None:
        fractions = max(numbers) <= 1 < min(self.limits) and any(number % 1 for number in numbers)
        if fractions or any(not 0 <= number <= limit for number, limit in zip(numbers, self.limits * 2, strict=True)):
            found = ", ".join(f"{number:g}" for number in numbers)
            limits = "x from 0 to {:g} and y from 0 to {:g}".format(*self.limits)
            raise ValueError(f"the box [{found}] is not on the scale of {limits}")
        pairs = zip(numbers, self._edges(), strict=True)
        edges = [min(max((number - start) / size, 0.0), 1.0) for number, (start, size) in pairs]
        (x1, x2), (y1, y2) = sorted(edges[::2]), sorted(edges[1::2])
        return [x1, y1, x2, y2] if x1 < x2 and y1 < y2 else None


def _find_numbers(text: str) -> Sequence[str] | None:
    """The four numbers of the first box that a text has: with a key, in brackets, with four keys, or without."""
    for pattern in (rf"box\w*\W{{0,6}}?{_FOUR}", _FOUR):
        if found := re.search(pattern, text, re.IGNORECASE):
            return found.groups()
    keyed = [each[1] for key in _KEYED if (each := key.search(text))]
    if len(keyed) == 4:
        return keyed
    corners = re.findall(rf"[\[(]\s*{_PAIR}\s*[\])]", text)
    if len(corners) > 1:
        return [*corners[0], *corners[1]]
    # Other brackets are polygons or points. A number before those of a box is of its label, as in "dog 2".
    runs = [re.findall(_NUMBER, run) for run in _RUN.findall(re.sub(r"[\[(][^\[\]()]*[\])]", " ; ", text))]
    return next((run[len(run) % 4 :][:4] for run in runs if len(run) > 3), None)


def box_spelling(processor: Any, image: Any = None) -> BoxSpelling:
    """How the model of a `PatchGroundingProcessor` writes the boxes of an image; without one, up to 1000."""
    scale = "thousandths" if image is None else processor.family.boxes
    if scale == "thousandths":
        return BoxSpelling()
    if scale == "tokens":
        return BoxSpelling((1024, 1024), tokens=True)
    width, height = open_image(image, "image").size
    settings = ImageSettings(processor.processor, processor.image_settings, width, height, True)
    if scale == "pixels":
        rows, columns = qwen_size(settings)
        return BoxSpelling((columns, rows))
    # Shares of the image, or of the square to which it is padded.
    padded = settings.get("do_pad") and hasattr(processor.processor.image_processor, "pad_to_square")
    x, y = ((1 - edge / max(width, height)) / 2 if padded else 0.0 for edge in (width, height))
    return BoxSpelling((1, 1), (x, y, 1 - x, 1 - y), decimals=3)
