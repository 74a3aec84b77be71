# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Drawn screens as files, in ScreenSpot's own columns, so that they are read as the real sets are.

`write_screens` (on the command line `grounded-attention data screens`) writes

    DIR/{train,validation,test}/<number>.png   the screens
    DIR/{train,validation,test}/metadata.jsonl an instruction a line in ScreenSpot's columns (file_name, bbox,
                                               instruction, data_type, data_source), and asked_by
    DIR/{train,validation,test}.json           all instructions of each screen, in the form of GUI-Actor's data
    DIR/processor/                             a processor for a small LLaVA
    DIR/scenes.json                            summary with the seed; written last

`asked_by` is label, function or place.
"""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.progress import with_progress
from grounded_attention.utils.whole_files import write_bytes, write_text

from . import screens, writers_questions
from .dataset import check_images, mapper
from .records import split_numbers, write_once
from .screens import Screen

VERSION = 2
SCALE = 2  # pixels of a unit
PER_SCREEN = 6  # instructions
PICTURE = 112  # pixels that the small processor makes
PATCH = 16
WORD = r"[^\W\d]+|\d|[^\w\s]"  # its words, and each digit
NAMES = {"val": "validation"}


def write_screens(output: str | Path, count: int, seed: int, num_proc: int = 1, force: bool = False) -> Fields:
    """Draws screens and writes them to a folder, unless the folder already holds them."""
    check_images(count)
    root = Path(output)
    identity = {"version": VERSION, "seed": seed, "images": count, "drawn": "screens"}
    return write_once(root, identity, force, lambda: _write_all(root, count, seed, num_proc))


def _write_all(root: Path, count: int, seed: int, num_proc: int) -> Fields:
    splits = {NAMES.get(split, split): numbers for split, numbers in split_numbers(seed, count).items()}
    for name in (*splits, "processor"):
        (root / name).mkdir()
    split_of = {number: name for name, numbers in splits.items() for number in numbers}
    with mapper(num_proc) as mapped:
        drawn = list(with_progress(mapped(partial(_draw, seed, root, split_of), range(count)), "screens", count))
    for name, numbers in splits.items():
        lines = []
        talks = []
        for number in numbers:
            rows, talk = drawn[number]
            lines += [json.dumps(row) + "\n" for row in rows]
            talks.append(talk)
        write_text(root / name / "metadata.jsonl", "".join(lines))
        write_text(root / f"{name}.json", json.dumps(talks) + "\n")
    asked = " ".join(turn["value"] for _, talk in drawn for turn in talk["conversations"][::2])
    known = [*sorted(set(asked.split())), *"0123456789[],"]
    for path, text in writers_questions.processor_files(known, PICTURE, PATCH, WORD).items():
        write_bytes(root / "processor" / path, text.encode())
    return {"splits": {name: len(numbers) for name, numbers in splits.items()}}


def _draw(seed: int, root: Path, split_of: dict[int, str], number: int) -> tuple[list[Fields], Fields]:
    """Writes the picture of a screen; its rows, and its conversation."""
    rng = random.Random(f"{seed}/screen/{number}")
    screen = screens.draw_screen(rng)
    name = f"{number:06d}.png"
    paint(screen).save(root / split_of[number] / name, compress_level=1)
    rows: list[Fields] = []
    talk: list[Fields] = []
    asked = [*screens.ask(screen, rng)]
    for index, text, kind in rng.sample(asked, len(asked)):
        element = screen.elements[index]
        box = writers_questions.share_of(screen, element.box)
        x1, y1, x2, y2 = box
        x = (x1 + x2) / 2
        y = (y1 + y2) / 2
        data_type = "text" if element.shown else "icon"
        row = {"file_name": name, "bbox": box, "instruction": text, "data_type": data_type}
        rows.append({**row, "data_source": screen.platform, "asked_by": kind})
        talk.append({"from": "human", "value": "<image> " * (not talk) + text})
        talk.append({"from": "gpt", "value": f"pyautogui.click(x={x:.4f}, y={y:.4f})", "bbox_gt": box})
    return rows[:PER_SCREEN], {"image": f"{split_of[number]}/{name}", "conversations": talk}


# Pixels


def paint(screen: Screen, scale: int = SCALE) -> Image.Image:
    """Draws a screen."""
    image = Image.new("RGB", (screen.width * scale, screen.height * scale), screen.colours["paper"])
    pen = ImageDraw.Draw(image)
    colours = screen.colours

    def scaled(box: Any) -> tuple[float, ...]:
        x1, y1, x2, y2 = (edge * scale for edge in box)
        return x1, y1, max(x2 - 1, x1), max(y2 - 1, y1)

    for shape in screen.shapes:
        x1, y1, _, y2 = scaled(shape.box)
        if shape.text:
            font = screens.font(round(shape.size * scale))
            pen.text((x1, (y1 + y2) / 2), shape.text, colours[shape.colour], font, anchor="lm")
        else:
            pen.rounded_rectangle(scaled(shape.box), shape.radius * scale, colours[shape.colour])
    for element in screen.elements:
        x1, y1, x2, y2 = box = scaled(element.box)
        font = screens.font(round(element.size * scale))
        middle = ((x1 + x2) / 2, (y1 + y2) / 2)
        if element.kind == "button":
            pen.rounded_rectangle(box, screen.radius * scale, colours["accent"])
            pen.text(middle, element.shown, colours["on_accent"], font, anchor="mm")
        elif element.shown:
            colour = colours["on_accent" if element.group == "header" else "text"]
            pen.text(middle, element.shown, colour, font, anchor="mm")
        elif element.kind == "field":
            pen.rounded_rectangle(box, screen.radius * scale / 2, colours["paper"], colours["line"], scale)
        else:
            _glyph(pen, element.label, box, colours["text"], scale)
    return image


# Lines in a square of ten; a circle has its box, a filled one a fourth "f".
_LINES: dict[str, list[list[float]]] = {
    "close": [[1, 1, 9, 9], [1, 9, 9, 1]],
    "minimise": [[1, 7, 9, 7]],
    "maximise": [[1, 1, 9, 1, 9, 9, 1, 9, 1, 1]],
    "search": [[6, 6, 9.5, 9.5]],
    "home": [[0, 5, 5, 0.5, 10, 5], [2, 4, 2, 9.5, 8, 9.5, 8, 4]],
    "settings": [[5, 0, 5, 10], [0, 5, 10, 5], [1.5, 1.5, 8.5, 8.5], [1.5, 8.5, 8.5, 1.5]],
    "delete": [[0.5, 2, 9.5, 2], [2, 2, 3, 9.5, 7, 9.5, 8, 2], [5, 4, 5, 7.5], [3.5, 0.5, 6.5, 0.5]],
    "send": [[0, 2, 10, 2, 10, 8.5, 0, 8.5, 0, 2], [0, 2, 5, 6, 10, 2]],
    "back": [[9.5, 5, 0.5, 5], [4.5, 1, 0.5, 5, 4.5, 9]],
    "add": [[5, 0.5, 5, 9.5], [0.5, 5, 9.5, 5]],
    "menu": [[0, 2, 10, 2], [0, 5, 10, 5], [0, 8, 10, 8]],
}
_CIRCLES: dict[str, list[list[float]]] = {
    "search": [[0.5, 0.5, 7, 7]],
    "settings": [[2.5, 2.5, 7.5, 7.5]],
}


def _glyph(pen: ImageDraw.ImageDraw, name: str, box: Any, colour: Any, width: int) -> None:
    """Draws an icon into its box."""
    side = (box[2] - box[0]) / 10
    for line in _LINES[name]:
        pen.line([box[n % 2] + at * side for n, at in enumerate(line)], colour, width, joint="curve")
    for circle in _CIRCLES.get(name, ()):
        pen.ellipse([box[n % 2] + at * side for n, at in enumerate(circle)], None, colour, width)
