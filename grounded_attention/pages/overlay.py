# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What lies on a picture, in every figure and page: attention as colours, hatching where the model sees none, boxes.

The colours get lighter with attention, so that they can also be read in grey and with a colour vision deficiency.
Shape letter: R regions, or cells of a grid of image tokens.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from grounded_attention.utils.named_types import Corners, Size
from grounded_attention.utils.open_images import ENOUGH

from .colours import BLUE, GREEN, HIT, VERMILLION, scale_colours

# of a colour, and of the hatching, in a pixel; the rest is the picture
MIXED = 0.55
HATCHED = 0.25
STRIPE = 14  # pixels from one line of the hatching to the next
EDGES = (240, 40)  # a light line in a dark one, for pages of any colour
UNSEEN = "hatched: no region or image token"

GOLD = "gold"
PREDICTED = "predicted"
MEANT = "meant"
LONGEST = 420  # pixels, longer side
QUALITY = 80
# Role -> colour and dashes; both have the same meaning.
STYLES = {GOLD: (BLUE, ""), PREDICTED: (VERMILLION, "7 4"), MEANT: (GREEN, "2 3")}
TEXT_HEIGHT = 17  # in units of the drawing; cards scale it to about two thirds
LETTER = 0.68  # width of a letter in wide fonts, relative to its height


def attention_overlay(
    image: Image.Image, boxes: ArrayLike, weights: ArrayLike | None, size: Size, top: float = 1.0
) -> Image.Image:
    """Colours a picture by attention; what no box shows is hatched, and the picture has an edge."""
    width, height = size
    edges = np.clip(np.asarray(boxes, dtype=float), 0, 1) * np.tile(size, 2)
    if weights is None:
        strength = np.zeros(len(edges))
    else:
        strength = np.asarray(weights, dtype=float)
    shown = np.full((height, width), -1.0)
    for region in np.argsort(strength, kind="stable"):
        if np.isfinite(edges[region]).all():
            x1, y1, x2, y2 = (edges[region] + (1e-3, 1e-3, 1 - 1e-3, 1 - 1e-3)).astype(int)
            shown[y1:y2, x1:x2] = strength[region]
    enlarged = width > image.width  # browsers and figures would blur what they enlarge
    resampling = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    picture = image.resize(size, resampling).convert("RGB")
    pixels = np.asarray(picture, dtype=float)
    is_shown = shown >= 0
    if weights is None:
        colours = pixels
    else:
        colours = scale_colours(colour_places(np.maximum(shown, 0), top))
    stripes = np.add.outer(np.arange(height), np.arange(width)) % STRIPE
    lines = np.select([stripes < 2, stripes < 4], [250.0, 30.0], pixels.mean(-1))[..., None]  # on any ground
    coloured = pixels + MIXED * (colours - pixels)
    hatched = pixels + HATCHED * (lines - pixels)
    mixed = np.where(is_shown[..., None], coloured, hatched)
    for inset, grey in zip((1, 0), EDGES, strict=True):
        sides = [inset, -1 - inset]
        mixed[sides, inset : width - inset] = grey
        mixed[inset : height - inset, sides] = grey
    return Image.fromarray(mixed.round().astype(np.uint8))


def colour_places(weights: ArrayLike, top: float = 1.0) -> np.ndarray:
    """Places of weights on the scale of colours, in [0, 1]: square roots, so that small shares differ too."""
    return np.sqrt(np.clip(np.asarray(weights, dtype=float) / max(top, 1e-12), 0, 1))


def css_gradient() -> str:
    """The scale of colours from the left to the right, for a legend of a page."""
    colours = (", ".join(f"{value:.0f}" for value in scale_colours(stop)) for stop in (0, 0.25, 0.5, 0.75, 1))
    return f"linear-gradient(to right, {', '.join(f'rgb({colour})' for colour in colours)})"


# Boxes on a picture, as SVG


@dataclass(frozen=True)
class Box:
    """A box to draw."""

    role: str
    corners: Corners
    label: str = ""


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
    width = picture.width
    height = picture.height
    below = ""
    if picture.source:
        below = f'<image href="{escape(picture.source)}" width="{width}" height="{height}"/>'
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


def card(pictures: str, body: str) -> str:
    """Pictures, as `draw` makes them, and HTML below them, in a frame."""
    return f'<article class="card">{pictures}<div>{body}</div></article>'
