# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Images with boxes in an HTML page: scaled down, embedded, with boxes drawn over them."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import isqrt

from PIL import Image

from grounded_attention.utils.open_images import ENOUGH

from .colours import BLUE, GREEN, HIT, VERMILLION
from .failures import GOLD, MEANT, PREDICTED, Box

LONGEST = 420  # pixels, longer side
QUALITY = 80
# Role -> colour and dashes; both have the same meaning.
STYLES = {GOLD: (BLUE, ""), PREDICTED: (VERMILLION, "7 4"), MEANT: (GREEN, "2 3")}
TEXT_HEIGHT = 17  # in units of the drawing; cards scale it to about two thirds
LETTER = 0.68  # width of a letter in wide fonts, relative to its height


@dataclass(frozen=True)
class Picture:
    """An image of a report."""

    width: int
    height: int
    source: str = ""


def embed(image: Image.Image, longest: int = LONGEST) -> Picture:
    """Scales an image to at most `longest` pixels per side and encodes it as a WebP data URI."""
    small = image if image.mode == "RGB" else image.convert("RGB")
    small = small.reduce(max(1, isqrt(image.width * image.height // ENOUGH)))
    small.thumbnail((longest, longest))
    written = io.BytesIO()
    small.save(written, "WEBP", quality=QUALITY)
    data = base64.b64encode(written.getvalue()).decode("ascii")
    frame = empty_frame(*image.size, longest)
    return Picture(frame.width, frame.height, f"data:image/webp;base64,{data}")


def empty_frame(width: int, height: int, longest: int = LONGEST) -> Picture:
    """An empty frame with the proportions of a missing image."""
    factor = longest / max(width, height, 1)
    return Picture(max(1, round(width * factor)), max(1, round(height * factor)))


def draw(picture: Picture, boxes: Sequence[Box], title: str) -> str:
    """Draws the picture and its boxes as one SVG element."""
    width, height = picture.width, picture.height
    below = f'<image href="{escape(picture.source)}" width="{width}" height="{height}"/>' if picture.source else ""
    frame = f'<rect class="frame" width="{width}" height="{height}"/>'
    drawn = "".join(_box(box, width, height) for box in boxes)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{frame}{below}{drawn}</svg>"
    )


def _box(box: Box, width: int, height: int) -> str:
    x1, y1, x2, y2 = (v * side for v, side in zip(box.corners, (width, height) * 2, strict=True))
    colour, dashes = STYLES[box.role]
    shape = f'x="{x1:.1f}" y="{y1:.1f}" width="{max(x2 - x1, 0):.1f}" height="{max(y2 - y1, 0):.1f}"'
    # A white line below the coloured one keeps it visible on any image.
    under = f'<rect {shape} fill="none" stroke="#fff" stroke-width="5" stroke-opacity=".8"/>'
    over = f'<rect {shape} fill="none" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dashes}"/>'
    return under + over + (_label(box, (x1, y1, y2), colour, width, height) if box.label else "")


def _label(box: Box, place: tuple[float, float, float], colour: str, width: int, height: int) -> str:
    """Draws a label above the box, or inside it if there is no room; a label of a prediction is below the box."""
    x1, y1, y2 = place
    below = box.role == PREDICTED
    y = y2 + TEXT_HEIGHT if below else y1 - 5
    if not TEXT_HEIGHT <= y <= height - 2:
        y = y2 - 5 if below else y1 + TEXT_HEIGHT + 2
    x = max(2.0, min(x1 + 2, width - LETTER * TEXT_HEIGHT * len(box.label)))  # stay inside the right edge
    ink = HIT if colour == GREEN else colour  # dark enough on white
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}">{escape(box.label)}</text>'
