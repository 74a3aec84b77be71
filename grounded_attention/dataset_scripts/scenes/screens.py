# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The content of a drawn screen as plain data: windows, menus, toolbars, forms, lists; and instructions.

Positions are units with the origin at the top left, of which `paint` draws several pixels each.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from PIL import ImageFont

Box = tuple[float, float, float, float]
Colour = tuple[int, int, int]

# Name of a command -> what it is for, in words that do not name it.
COMMANDS = {
    "search": "find something",
    "home": "go to the start page",
    "settings": "change how it works",
    "delete": "throw it away",
    "send": "mail the message",
    "back": "return to the last page",
    "add": "make a new one",
    "menu": "show more choices",
}
TITLE_ICONS = {"close": "leave this window", "minimise": "hide this window", "maximise": "fill the whole screen"}
FIELDS = {
    "name": "say who it is",
    "email": "say where letters go",
    "password": "prove who I am",
    "city": "say where it goes",
    "phone": "say which number to call",
}
MENUS = ("file", "edit", "view", "tools", "window")
PLATFORMS = {
    "windows": "desktop",
    "macos": "desktop",
    "ios": "mobile",
    "android": "mobile",
    "shop": "web",
    "tool": "web",
}
_SIZES = {"desktop": (156, 120), "mobile": (96, 152), "web": (156, 126)}
LARGER = 1.8  # elements on a screen of this size
_ACCENTS = ((0, 110, 200), (200, 80, 30), (40, 140, 70), (130, 60, 170))
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True)
class Element:
    """What can be clicked: a `kind` (icon, button, menu, link, field, entry), in a row or column, `group`.

    `label` is what it is called, `shown` the text that it has on the screen, if any, and `size` its height.
    """

    kind: str
    label: str
    purpose: str
    box: Box
    group: str
    shown: str = ""
    size: float = 8
    down: bool = False  # the group is a column


@dataclass(frozen=True)
class Shape:
    """What is drawn and means nothing: a rectangle, or a text at the left middle of its box."""

    box: Box
    colour: str
    text: str = ""
    size: float = 8
    radius: float = 0


@dataclass
class Screen:
    """A screen before it is drawn."""

    platform: str
    width: int
    height: int
    colours: dict[str, Colour]
    radius: float
    shapes: list[Shape] = field(default_factory=list)
    elements: list[Element] = field(default_factory=list)


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's own font, so that the same screens are drawn everywhere."""
    loaded = ImageFont.load_default(size)
    if not isinstance(loaded, ImageFont.FreeTypeFont):
        raise ImportError("screens need a Pillow with FreeType: pip install --force-reinstall pillow")
    return loaded


def text_width(text: str, size: float) -> float:
    """Width of a text in units."""
    return font(64).getlength(text) * size / 64


def draw_screen(rng: random.Random) -> Screen:
    """Draws a random screen of one of the platforms, light or dark, with some seven elements."""
    platform = rng.choice([*PLATFORMS])
    width, height = (round(edge * rng.uniform(0.92, 1.08) / LARGER) for edge in _SIZES[PLATFORMS[platform]])
    dark = rng.random() < 0.4
    accent = rng.choice(_ACCENTS)
    paper, bar, text, line = (28, 48, 235, 95) if dark else (250, 226, 25, 170)
    grey = {"paper": paper, "bar": bar, "text": text, "line": line, "on_accent": 255}
    colours: dict[str, Colour] = {name: (tone, tone, tone) for name, tone in grey.items()}
    red, green, blue = (255 - (255 - tone) // 2 for tone in accent)
    colours |= {"accent": accent, "desk": (red, green, blue)}
    screen = Screen(platform, width, height, colours, radius=0 if platform == "windows" else rng.choice((2, 4)))
    _Layout(screen, rng).fill()
    return screen


class _Layout:
    """Puts elements on a screen from the top to the bottom; no name is used twice."""

    def __init__(self, screen: Screen, rng: random.Random) -> None:
        self.screen = screen
        self.rng = rng
        self.place = PLATFORMS[screen.platform]
        self.names = rng.sample([*COMMANDS], len(COMMANDS))
        self.left = 0.0
        self.right = float(screen.width)
        self.top = 0.0
        self.bottom = float(screen.height)
        self.text_size = rng.choice((7, 8, 9))

    def fill(self) -> None:
        """The whole screen."""
        {"desktop": self._window, "mobile": self._phone, "web": self._browser}[self.place]()
        parts = self.rng.sample((self._form, self._listing, self._listing), 2)
        if self.rng.random() < 0.4:
            parts.pop()
        for part in parts:
            part()
        self._buttons()

    def _deal(self, count: int, of: Sequence[str] = tuple(COMMANDS)) -> list[str]:
        dealt = [name for name in self.names if name in of][:count]
        self.names = [name for name in self.names if name not in dealt]
        return dealt

    def _shape(self, box: Box, colour: str, **attributes: Any) -> None:
        self.screen.shapes.append(Shape(box, colour, **attributes))

    def _add(self, kind: str, label: str, box: Box, group: str, **attributes: Any) -> None:
        known = COMMANDS | TITLE_ICONS | FIELDS
        self.screen.elements.append(Element(kind, label, known.get(label, ""), box, group, **attributes))

    def _row_of_icons(self, names: Sequence[str], left: float, middle: float, side: float, group: str) -> None:
        for number, name in enumerate(names):
            x = left + number * side * 1.7
            if x + side > self.right:
                return
            self._add("icon", name, (x, middle - side / 2, x + side, middle + side / 2), group)

    def _window(self) -> None:
        self._shape((0, 0, self.right, self.bottom), "desk")
        margins = [self.rng.uniform(0, 6) for _ in range(4)]
        self.left += margins[0]
        self.top += margins[1]
        self.right -= margins[2]
        self.bottom -= margins[3]
        self._shape((self.left, self.top, self.right, self.bottom), "paper", radius=self.screen.radius)
        self._shape((self.left, self.top, self.right, self.top + 13), "bar", radius=self.screen.radius)
        side = self.rng.choice((6, 7, 8))
        x = self.left + 5
        names = [*TITLE_ICONS]
        if self.screen.platform != "macos":
            x = self.right - side * 4.9
            names.append(names.pop(0))  # "close" is at the right
        self._row_of_icons(names, x, self.top + 6.5, side, "title bar")
        self.rng.randrange(3)  # a title has no room; without this draw the screens of a seed would be others
        self.top += 13
        if self.rng.random() < 0.75:
            x = self.left + 4
            size = self.rng.choice((7, 8))
            for name in MENUS[: self.rng.randint(3, 5)]:
                text = name.title()
                wide = text_width(text, size) + 4
                if x + wide > self.right - 2:
                    break
                box = (x, self.top + 1, x + wide, self.top + 11)
                self._add("menu", name, box, "menu bar", shown=text, size=size)
                x += wide + 4
            self.top += 12
        self._toolbar(self.rng.randint(3, 6))

    def _toolbar(self, count: int) -> None:
        side = self.rng.choice((8, 10, 12))
        self._shape((self.left, self.top, self.right, self.top + side + 6), "bar")
        self._row_of_icons(self._deal(count), self.left + 6, self.top + side / 2 + 3, side, "toolbar")
        self.top += side + 6

    def _phone(self) -> None:
        self._shape((0, 0, self.right, self.bottom), "paper")
        self._shape((4, 0, 40, 9), "text", text=f"{self.rng.randint(1, 23)}:{self.rng.randint(10, 59)}", size=6)
        self._shape((self.right - 18, 3, self.right - 5, 7), "line", radius=1)
        self.top = 9
        self._toolbar(self.rng.randint(2, 4))
        names = self._deal(self.rng.randint(3, 4))
        side = self.rng.choice((9, 11))
        self.bottom -= 20
        self._shape((0, self.bottom, self.right, self.bottom + 20), "bar")
        for number, name in enumerate(names):
            x = self.right * (number + 0.5) / len(names)
            y = self.bottom + 10
            box = (x - side / 2, y - side / 2, x + side / 2, y + side / 2)
            self._add("icon", name, box, "bottom bar")

    def _browser(self) -> None:
        self._shape((0, 0, self.right, self.bottom), "paper")
        self._shape((0, 0, self.right, 15), "bar")
        self._row_of_icons(self._deal(2, ("back", "home")), 5, 7.5, 8, "address bar")
        self._shape((38, 2.5, self.right - 6, 12.5), "paper", radius=5)
        self._shape((43, 2, self.right, 13), "line", text=f"www.{self.screen.platform}.org", size=7)
        self.top = 15
        if self.screen.platform == "shop":
            self._shape((0, self.top, self.right, self.top + 16), "accent")
            self._shape((6, self.top, 60, self.top + 16), "on_accent", text="My shop", size=10)
            x = self.right - 6
            for name in self._deal(self.rng.randint(2, 3)):
                text = name.title()
                wide = text_width(text, 8) + 4
                if x - wide < 56:
                    break
                box = (x - wide, self.top + 3, x, self.top + 13)
                x = x - wide - 5
                self._add("link", name, box, "header", shown=text)
            self.screen.elements[2:] = self.screen.elements[:1:-1]  # from the left to the right
            self.top += 16
        else:
            self._toolbar(self.rng.randint(3, 5))

    def _form(self) -> None:
        """Fields with their names."""
        size = self.text_size
        wide = max((self.right - self.left) * 0.3, 8 + text_width("Password", self.text_size))
        for name in self.rng.sample([*FIELDS], self.rng.randint(2, 3)):
            if self.top + 16 > self.bottom - 20 or self.left + wide + 26 > self.right:
                return
            left = self.left + wide
            top = self.top + 3
            right = min(self.right - 8, left + 100)
            self._shape((self.left + 8, top, left, self.top + 15), "text", text=name.title(), size=size)
            self._add("field", name, (left + 6, top, right, self.top + 14), "form", down=True)
            self.top += 15

    def _listing(self) -> None:
        """Entries below each other, in one column."""
        high = self.text_size + 5
        self.top += 3
        for name in self._deal(self.rng.randint(2, 4)):
            if self.top + high > self.bottom - 20:
                return
            text = name.title()
            right = self.left + 16 + text_width(text, self.text_size)
            bottom = self.top + high
            box = (self.left + 8, self.top + 2, right, bottom)
            self._add("entry", name, box, "list", shown=text, size=self.text_size, down=True)
            self._shape((self.left + 6, bottom + 0.5, self.right - 6, bottom + 1), "line")
            self.top += high + 1

    def _buttons(self) -> None:
        size = self.rng.choice((7, 8, 9, 10))
        x = self.left + 8
        high = size + 6
        top = self.top + 2
        y = self.rng.uniform(top, max(self.bottom - high - 3, top))
        y = min(y, self.bottom - high - 1)
        for name in self._deal(self.rng.randint(1, 3) if y >= self.top else 0):
            text = name.title()
            wide = text_width(text, size) + 10
            if x + wide > self.right - 4:
                return
            self._add("button", name, (x, y, x + wide, y + high), "button row", shown=text, size=size)
            x += wide + 6


# Instructions

BY_LABEL = "label"
BY_PURPOSE = "function"
BY_PLACE = "place"
_VERBS = {"field": "type the", "menu": "open the menu", "entry": "choose", "link": "follow"}


def ask(screen: Screen, rng: random.Random) -> Iterator[tuple[int, str, str]]:
    """Every instruction that means one element: its index, the text, and by what it asks."""
    for index, element in enumerate(screen.elements):
        verb = _VERBS.get(element.kind, "click")
        yield index, f"{verb} {element.label}", BY_LABEL
        if element.purpose:
            yield index, element.purpose, BY_PURPOSE
        row = [other for other in screen.elements if other.group == element.group]
        if len(row) > 1:
            place = row.index(element)
            ordinal = "last" if len(row) > 2 and element is row[-1] else _ORDINALS[place]
            words = f"the {ordinal} {element.kind} of the {element.group}"
            if place and rng.random() < 0.5:
                side = "below" if element.down else "right of"
                words = f"the {element.kind} {side} {row[place - 1].label}"
            yield index, words, BY_PLACE
