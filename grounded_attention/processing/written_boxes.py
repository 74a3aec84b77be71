# Copyright 2026 The grounded-attention authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Boxes in the texts of vision-language models: written on the scale of each family, and read from what they generate.

The functions `boxes_in_<scale>` say how a family writes the boxes of one image; `ImageTokenFamily` names one of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .image_layouts import ImageSettings, qwen_size

_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)"
_GAP = r"(?:\s*[,;]\s*|\s+)"
_PAIR = rf"({_NUMBER}){_GAP}({_NUMBER})"
# [x, y, x, y], (x, y), (x, y), [[x, y], [x, y]]
_FOUR = rf"[\[(]\s*{_PAIR}(?:{_GAP}|\s*[\])]\s*[,;]?\s*[\[(]\s*){_PAIR}\s*[\])]"
_KEYS = ("x_?1|x_?min|left", "y_?1|y_?min|top", "x_?2|x_?max|right", "y_?2|y_?max|bottom")
_KEYED = [re.compile(rf"\b(?:{key})\b[\"'*` ]*[:=][\"'* ]*({_NUMBER})", re.IGNORECASE) for key in _KEYS]
_RUN = re.compile(rf"(?<![\w.]){_NUMBER}(?:{_GAP}{_NUMBER})*(?!\w)")
_THOUGHTS = re.compile(r"(?:.*(?:</think(?:ing)?>|◁/think▷))?(.*?)(?:(?:<think(?:ing)?>|◁think▷).*)?", re.DOTALL)
_POINTS = re.compile(r"<points?\b.*?(?:</points?>|$)|\bpoint\w*[\"'*` ]*[:=]\s*[\[(][-\d\s.,;\[\]()]*", re.DOTALL)
# Tokens of locations: first number, order and size of a step of PaliGemma, and of Florence-2.
_TOKENS = (
    (re.compile(r"<loc(\d{4})>\s*" * 4), (1, 0, 3, 2), 0.0, 1024),
    (re.compile(r"<loc_(\d+)>\s*" * 4), (0, 1, 2, 3), 0.5, 1000),
)


@dataclass(frozen=True)
class BoxSpelling:
    """How a model writes the boxes of one image.

    Args:
        limits (`tuple[float, float]`, *optional*, defaults to `(1000, 1000)`): The largest x and the largest y; the
            smallest is 0.
        frame (`tuple[float, float, float, float]`, *optional*): x1, y1, x2, y2 of the image in these numbers; by
            default it fills them.
        decimals (`int`, *optional*, defaults to 0): Digits after the point.
        tokens (`bool`, *optional*, defaults to `False`): Whether a box is four tokens `<locYYYY>`, y first.
    """

    limits: tuple[float, float] = (1000, 1000)
    frame: tuple[float, float, float, float] | None = None
    decimals: int = 0
    tokens: bool = False

    def write(self, box: Sequence[float]) -> str:
        """Writes a box (x1, y1, x2, y2), divided by width and height of the image, clipped to it."""
        left, top, right, bottom = self.frame or (0, 0, *self.limits)
        origin, sides = (left, top) * 2, (right - left, bottom - top) * 2
        edges = [start + min(max(edge, 0.0), 1.0) * side for edge, start, side in zip(box, origin, sides, strict=True)]
        if self.tokens:
            return "".join(f"<loc{min(round(edges[place]), 1023):04d}>" for place in (1, 0, 3, 2))
        return "[" + ", ".join(str(round(edge, self.decimals or None)) for edge in edges) + "]"

    def read(self, text: str) -> list[float] | None:
        """Reads the first box of a generated text.

        Args:
            text (`str`): The text: JSON, perhaps cut, brackets, tokens of locations, keys such as `x1`, or numbers.
                What stands in tags of thoughts and points are no boxes.

        Returns:
            `list[float]` or `None`: x1, y1, x2, y2 in [0, 1], in order and clipped to the image; None without a box
            or if it has no area.

        Raises:
            ValueError: A number is beyond the scale; it is not read on another one.
        """
        thoughts = _THOUGHTS.fullmatch(text)
        answer = _POINTS.sub(" ", thoughts[1] if thoughts else text)
        for pattern, order, middle, steps in _TOKENS:
            if found := pattern.search(answer):
                numbers = [float(found[place + 1]) + middle for place in order]
                return BoxSpelling((steps, steps)).normalise(numbers)
        numbers = _find_numbers(answer)
        return None if numbers is None else self.normalise(numbers)

    def normalise(self, numbers: Sequence[float]) -> list[float] | None:
        """Converts the four numbers of a box as [`read`] does."""
        shares = max(numbers) <= 1 < min(self.limits) and any(number % 1 for number in numbers)
        if shares or any(not 0 <= number <= limit for number, limit in zip(numbers, self.limits * 2, strict=True)):
            scale = " and ".join(f"{name} from 0 to {limit:g}" for name, limit in zip("xy", self.limits, strict=True))
            found = ", ".join(f"{number:g}" for number in numbers)
            raise ValueError(f"the box [{found}] is not on the scale of {scale}")
        left, top, right, bottom = self.frame or (0, 0, *self.limits)
        edges = [
            min(max((number - start) / side, 0.0), 1.0)
            for number, start, side in zip(numbers, (left, top) * 2, (right - left, bottom - top) * 2, strict=True)
        ]
        (x1, x2), (y1, y2) = sorted(edges[::2]), sorted(edges[1::2])
        return [x1, y1, x2, y2] if x1 < x2 and y1 < y2 else None


def _find_numbers(text: str) -> list[float] | None:
    """The four numbers of the first box that a text has: with a key, in brackets, with four keys, or without."""
    for pattern in (rf"box\w*\W{{0,6}}?{_FOUR}", _FOUR):
        if found := re.search(pattern, text, re.IGNORECASE):
            return [float(number) for number in found.groups()]
    keyed = [key.search(text) for key in _KEYED]
    if all(keyed):
        return [float(each[1]) for each in keyed if each is not None]
    corners = re.findall(rf"[\[(]\s*{_PAIR}\s*[\])]", text)
    if len(corners) > 1:
        return [float(number) for corner in corners[:2] for number in corner]
    # Other brackets are polygons or points. A number before those of a box is of its label, as in "dog 2".
    for run in _RUN.findall(re.sub(r"[\[(][^\[\]()]*[\])]", " ; ", text)):
        numbers = re.findall(_NUMBER, run)
        if len(numbers) > 3:
            start = len(numbers) % 4
            return [float(number) for number in numbers[start : start + 4]]
    return None


# Functions with names, since processors that hold a family are sent to other processes.


def boxes_in_thousandths(settings: ImageSettings) -> BoxSpelling:
    """Whole numbers to 1000."""
    return BoxSpelling()


def boxes_in_pixels(settings: ImageSettings) -> BoxSpelling:
    """Pixels of the image after its resize to full patches."""
    height, width = qwen_size(settings)
    return BoxSpelling((width, height))


def boxes_in_shares(settings: ImageSettings) -> BoxSpelling:
    """Shares of the image, or of the square to which it is padded."""
    if not (settings.get("do_pad") and hasattr(settings.processor.image_processor, "pad_to_square")):
        return BoxSpelling((1, 1), decimals=3)
    side = max(settings.width, settings.height)
    x, y = (side - settings.width) / 2 / side, (side - settings.height) / 2 / side
    return BoxSpelling((1, 1), (x, y, 1 - x, 1 - y), decimals=3)


def boxes_in_tokens(settings: ImageSettings) -> BoxSpelling:
    """Tokens `<loc0000>` to `<loc1023>`."""
    return BoxSpelling((1024, 1024), tokens=True)
