# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The contact sheet: where boxes, numbers and texts are."""

import matplotlib.colors
import numpy as np
import pytest
from PIL import Image

from grounded_attention.pages.colours import GREY
from grounded_attention.pages.contact_sheet import COLOURS, GAP, LINE, MARGIN, Labelled, contact_sheet
from grounded_attention.pages.figure_style import WIDTH

pytestmark = pytest.mark.drawn_figures


def labelled(size, *phrases):
    return Labelled("c1", "a dog and a cat " * 5, Image.new("RGB", size, "white"), phrases)


def phrase(text, *boxes):
    return {"text": text, "boxes": [list(box) for box in boxes], "scores": [0.5] * len(boxes)}


def test_lines_have_the_colour_of_their_boxes():
    lines = labelled((10, 10), phrase("dog", (0, 0, 1, 1), (0, 0, 0.5, 0.5)), phrase("cat")).lines()
    assert lines[-2:] == [("1 dog: 0.50, 0.50", COLOURS[0]), ("2 cat: no box", GREY)]
    assert lines[0][0].startswith("c1: a dog and") and len(lines) == 4


def test_boxes_are_where_they_belong(tmp_path):
    item = labelled((200, 100), phrase("dog", (0.25, 0.2, 0.75, 0.8)))
    contact_sheet([item, item, item, item], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB")).astype(int)
    column = (WIDTH - 2 * MARGIN - 2 * GAP) / 3
    row = column / 2 + GAP + LINE * len(item.lines())
    assert pixels.shape[1] == WIDTH and abs(pixels.shape[0] - 2 * row - 2 * MARGIN) < 2
    colour = np.array(matplotlib.colors.to_rgb(COLOURS[0])) * 255

    def has_line(x, y):
        area = pixels[round(y) - 2 : round(y) + 3, round(x) - 2 : round(x) + 3]
        return (abs(area - colour).max(axis=-1) < 40).any()

    for left, top in ((MARGIN, MARGIN), (MARGIN + 2 * (column + GAP), MARGIN), (MARGIN, MARGIN + row)):
        for x, y in ((0.25, 0.25), (0.75, 0.25), (0.5, 0.1), (0.5, 0.4)):
            assert has_line(left + x * column, top + y * column)
        assert not has_line(left + 0.5 * column, top + 0.25 * column)
