# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with their boxes as a page: what `data show` reads, or what a grounder has labelled."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from PIL import Image

from grounded_attention.processing.phrase import row_texts
from grounded_attention.utils.named_types import Columns, Corners, Row

from .overlay import GOLD, Box, card, draw, embed
from .page import html_page, html_table

# A point is drawn as a box of this part of the picture.
_POINT = 0.008
_MOST_LINES = 20


def rows_page(
    title: str,
    about: Sequence[tuple[str, str]],
    sides: Mapping[str, Sequence[str]],
    counts: Sequence[tuple[str, Mapping[Any, int]]] = (),
    dropped: Sequence[tuple[str, int, str]] = (),
) -> str:
    """Builds the page: HTML in one file that loads nothing; two `sides`, of cards of rows, stand side by side."""
    drawn = []
    for heading, cards in sides.items():
        drawn.append(f'<section><h2>{escape(heading)}</h2><div class="cards">{"".join(cards)}</div></section>')
    if len(drawn) > 1:
        body = f'<div class="sides">{"".join(drawn)}</div>'
    else:
        body = "".join(drawn)
    for name, counted in counts:
        most = sorted(counted.items(), key=lambda each: -each[1])[:_MOST_LINES]
        if most:
            body += f"<h2>{escape(name)}</h2>" + html_table([name, "number"], [(str(v), f"{n:,}") for v, n in most])
    if dropped:
        lines = [(reason, where, f"{number:,}") for reason, number, where in dropped]
        body += "<h2>What was left out</h2>" + html_table(["why", "for example", "number"], lines, text_columns=2)
    return html_page(title, body, about)


def row_card(row: Row) -> str:
    """The pictures of a row with numbered boxes, its texts with the phrases marked, and the scores of a grounder."""
    images: Sequence[Image.Image] = row.get("images") or ([row["image"]] if "image" in row else [])
    shown = ""
    for place, image in enumerate(images):
        boxes = []
        for number, phrase in enumerate(row["phrases"], 1):
            if phrase["image"] == place:
                boxes += [Box(GOLD, _visible(box), str(number)) for box in phrase["boxes"]]
        shown += draw(embed(image), boxes, f"image {row['image_id']}")
    texts = "".join(f"<p>{_marked(text, row['phrases'], number)}</p>" for number, text in enumerate(row_texts(row)))
    scores = []
    for number, phrase in enumerate(row["phrases"], 1):
        if phrase.get("scores") is not None:
            scores.append(
                f"{number} {phrase['text']}: {', '.join(f'{score:.2f}' for score in phrase['scores']) or 'no box'}"
            )
    below = [row["image_id"], *scores]
    return card(shown, texts + "".join(f"<figcaption>{escape(line)}</figcaption>" for line in below))


def _visible(box: Sequence[float]) -> Corners:
    x1, y1, x2, y2 = box
    if (x1, y1) == (x2, y2):
        return x1 - _POINT, y1 - _POINT, x2 + _POINT, y2 + _POINT
    return x1, y1, x2, y2


def _marked(text: str, phrases: Sequence[Columns], sentence: int) -> str:
    """A text as HTML, its phrases marked with their numbers; of phrases inside of others only the number."""
    inside = [(each, number) for number, each in enumerate(phrases, 1) if each["sentence"] == sentence]
    marked = ""
    end = 0
    for phrase, number in sorted(inside, key=lambda each: (each[0]["start"], -each[0]["end"])):
        start = phrase["start"]
        stop = phrase["end"]
        if start < end:
            marked += f"<sup>{number}</sup>"
            continue
        marked += f"{escape(text[end:start])}<mark>{escape(text[start:stop])}</mark><sup>{number}</sup>"
        end = stop
    return marked + escape(text[end:])
