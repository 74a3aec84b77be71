# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How every figure and page shows attention on a picture: a colour for each share, hatching where the model sees none.

The colours get lighter with attention, so that they can also be read in grey and with a colour vision deficiency.
Shape letter: R regions, or cells of a grid of image tokens.
"""

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from .colours import scale_colours

MIXED, HATCHED = 0.55, 0.45  # of a colour, and of the hatching, in a pixel; the rest is the picture
STRIPE = 14  # pixels from one line of the hatching to the next
EDGES = (240, 40)  # a light line in a dark one, for pages of any colour
UNSEEN = "hatched: no region or image token"


def attention_overlay(
    image: Image.Image, boxes: ArrayLike, weights: ArrayLike | None, size: tuple[int, int], top: float = 1.0
) -> Image.Image:
    """Colours a picture by attention; what no box shows is hatched, and the picture has an edge."""
    width, height = size
    edges = np.clip(np.asarray(boxes, dtype=float), 0, 1) * np.tile(size, 2)
    strength = np.zeros(len(edges)) if weights is None else np.asarray(weights, dtype=float)
    shown = np.full((height, width), -1.0)
    for region in np.argsort(strength, kind="stable"):
        if np.isfinite(edges[region]).all():
            x1, y1, x2, y2 = (edges[region] + (1e-3, 1e-3, 1 - 1e-3, 1 - 1e-3)).astype(int)
            shown[y1:y2, x1:x2] = strength[region]
    enlarged = width > image.width  # browsers and figures would blur what they enlarge
    picture = image.resize(size, Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS).convert("RGB")
    pixels, seen = np.asarray(picture, dtype=float), shown >= 0
    colours = pixels if weights is None else scale_colours(colour_places(np.maximum(shown, 0), top))
    stripes = np.add.outer(np.arange(height), np.arange(width)) % STRIPE
    lines = np.select([stripes < 2, stripes < 4], [250.0, 30.0], pixels.mean(-1))[..., None]  # on any ground
    mixed = np.where(seen[..., None], pixels + MIXED * (colours - pixels), pixels + HATCHED * (lines - pixels))
    for inset, grey in zip((1, 0), EDGES, strict=True):
        mixed[[inset, -1 - inset], inset : width - inset] = mixed[inset : height - inset, [inset, -1 - inset]] = grey
    return Image.fromarray(mixed.round().astype(np.uint8))


def colour_places(weights: ArrayLike, top: float = 1.0) -> np.ndarray:
    """Places of weights on the scale of colours, in [0, 1]: square roots, so that small shares differ too."""
    return np.sqrt(np.clip(np.asarray(weights, dtype=float) / max(top, 1e-12), 0, 1))


def css_gradient() -> str:
    """The scale of colours from the left to the right, for a legend of a page."""
    colours = (", ".join(f"{value:.0f}" for value in scale_colours(stop)) for stop in (0, 0.25, 0.5, 0.75, 1))
    return f"linear-gradient(to right, {', '.join(f'rgb({colour})' for colour in colours)})"
