# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The HTML of the picture: words to click, the image with the attention on it, and a map of all heads.

Texts from data are escaped. Buttons carry what they choose (`data-word`, `data-cell`); `page.js` sends it. Shape
letter: R regions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from PIL import Image

from grounded_attention.modeling.caption_phrases import BY_WORDS, find_phrases
from grounded_attention.pages.colours import BLUE, GREEN, PURPLE, VERMILLION
from grounded_attention.pages.overlay import UNSEEN, attention_overlay, css_gradient
from grounded_attention.pages.report_pictures import embed
from grounded_attention.processing.phrase import Phrase

from .loading import Capture

LONGEST = 560  # pixels, longer side of an image
SHOWN = 0.1  # regions with at least this share carry their number
LIT = 0.02  # regions below this share have a thin outline only
COLOURS = (VERMILLION, BLUE, GREEN, PURPLE)
MOST_PHRASES = 6
BEST_HEADS = 4
MEAN = -1
WORD, PHRASES = "one word", "all phrases"


@dataclass(frozen=True)
class VisitorChoice:
    """What the visitor looks at."""

    word: int = 0
    layer: int = 0
    head: int = MEAN
    show: str = WORD

    def within(self, capture: Capture) -> "VisitorChoice":
        """The choice in a model that may have fewer words, layers or heads."""
        layers, heads, words = capture.example.attention.shape[:3]
        return VisitorChoice(
            min(max(int(self.word), 0), words - 1),
            min(max(int(self.layer), 0), layers - 1),
            min(max(int(self.head), MEAN), heads - 1),
            self.show,
        )

    @property
    def one_head(self) -> int | None:
        """The head, or None for the mean."""
        return None if self.head == MEAN else self.head


def view_html(captures: Sequence[Capture], choice: VisitorChoice) -> str:
    """Draws the words and one picture for each checkpoint."""
    if not captures:
        return ""
    panes = "".join(_pane(capture, choice.within(capture)) for capture in captures)
    return f'{_words(captures[0], choice.within(captures[0]))}<div class="ga-panes">{panes}</div>'


def grounded_phrases(capture: Capture, choice: VisitorChoice) -> list[tuple[Phrase, np.ndarray]]:
    """The phrases of the caption, with the distribution (R,) of each over the regions; at most `MOST_PHRASES`."""
    example = capture.example
    try:
        phrases, way = find_phrases(example.caption)
    except ValueError:  # the caption has only words such as "the" and "of"
        return []
    phrases = join_neighbours(example.caption, phrases) if way == BY_WORDS else phrases
    attention = [(phrase, example.of_phrase(phrase, choice.layer, choice.one_head)) for phrase in phrases]
    return [(phrase, weights) for phrase, weights in attention if weights is not None][:MOST_PHRASES]


def join_neighbours(caption: str, words: Sequence[Phrase]) -> list[Phrase]:
    """Joins words with only a space between them, for example “small pink hoop”."""
    joined: list[Phrase] = []
    for word in words:
        if joined and caption[joined[-1].end : word.start] == " ":
            start = joined.pop().start
            word = Phrase(caption[start : word.end], start, word.end)
        joined.append(word)
    return joined


def attended_box(capture: Capture, weights: np.ndarray) -> tuple[tuple[float, ...], float]:
    """The box of the top region, and its share."""
    top = int(weights.argmax())
    return tuple(np.clip(capture.example.boxes[top], 0, 1).tolist()), float(weights[top])


def _words(capture: Capture, choice: VisitorChoice) -> str:
    example = capture.example
    pressed = choice.word if choice.show == WORD else None
    buttons = "".join(
        f'<button type="button" class="ga-word" data-word="{word}" aria-pressed="{str(word == pressed).lower()}">'
        f"{escape(example.text(word))}</button>"
        if example.text(word)[0].isalnum()
        else f'<span class="ga-mark">{escape(example.text(word))}</span>'
        for word in range(len(example.words))
    )
    return f'<div class="ga-words" role="group" aria-label="words of the caption">{buttons}</div>'


def _pane(capture: Capture, choice: VisitorChoice) -> str:
    weights, share = capture.example.over_regions(choice.word, choice.layer, choice.one_head)
    if choice.show == PHRASES:
        drawing, said = _draw_phrases(capture, choice)
        image, legend = attention_overlay(capture.example.image, capture.example.boxes, None, _size(capture)), ""
    else:
        drawing, said = _draw_word(capture, weights), _say_word(capture, choice, weights, share)
        image = attention_overlay(capture.example.image, capture.example.boxes, weights, _size(capture), 1.0)
        legend = (
            f'<p class="ga-legend">attention: 0 <i style="background:{css_gradient()}"></i> {_percent(1.0)}; '
            f"{UNSEEN}</p>"
        )
    notes = "".join(f'<p class="ga-note">{escape(note)}</p>' for note in capture.notes)
    return (
        f'<section class="ga-pane"><h3>{escape(capture.name)}</h3>'
        f'<p class="ga-where">{escape(where(capture, choice))}</p>'
        f'{_scene(capture, image, drawing)}{legend}<div class="ga-said" aria-live="polite">{said}</div>{notes}'
        f"{_map(capture, choice)}</section>"
    )


def where(capture: Capture, choice: VisitorChoice) -> str:
    """The layer and head in words."""
    head = "mean over heads" if choice.one_head is None else f"head {choice.head}"
    return f"layer {capture.example.layers[choice.layer]}, {head}"


# The image


def _scene(capture: Capture, image: Image.Image, drawing: str) -> str:
    width, height = _size(capture)
    source = embed(image, LONGEST).source
    return (
        f'<svg class="ga-scene" viewBox="0 0 {width} {height}" role="img" aria-label="the image with its attention">'
        f'<image href="{source}" width="{width}" height="{height}"/>{drawing}</svg>'
    )


def _size(capture: Capture) -> tuple[int, int]:
    image = capture.example.image
    factor = LONGEST / max(image.size)
    return max(1, round(image.width * factor)), max(1, round(image.height * factor))


def _rectangle(capture: Capture, box: Sequence[float]) -> str:
    width, height = _size(capture)
    x1, y1, x2, y2 = np.clip(box, 0, 1) * np.tile((width, height), 2)
    return f'x="{x1:.1f}" y="{y1:.1f}" width="{x2 - x1:.1f}" height="{y2 - y1:.1f}"'


def _draw_word(capture: Capture, weights: np.ndarray) -> str:
    top = int(weights.argmax())
    order = np.argsort(weights, kind="stable")
    drawn = "".join(_region(capture, int(region), float(weights[region]), region == top) for region in order)
    labels = "".join(
        _label(capture, capture.example.boxes[region], _percent(weights[region]), COLOURS[0])
        for region in order
        if region == top or weights[region] >= SHOWN
    )
    return drawn + labels


def _region(capture: Capture, region: int, weight: float, top: bool) -> str:
    place, kind = _rectangle(capture, capture.example.boxes[region]), "top" if top else "other"
    drawn = f'<rect class="ga-edge" {place}/><rect class="ga-line" {place}/>'
    if top or weight >= LIT:
        opacity = 1.0 if top else 0.35 + 0.65 * weight
        drawn += (
            f'<rect {place} fill="none" stroke="{COLOURS[0]}" '
            f'stroke-opacity="{opacity:.2f}" stroke-width="{1.5 + 4 * weight:.2f}"/>'
        )
    return f'<g class="ga-{kind}" data-region="{region}" data-share="{weight:.5f}">{drawn}</g>'


def _box(capture: Capture, box: Sequence[float], text: str, colour: str) -> str:
    place = _rectangle(capture, box)
    return (
        f'<rect {place} fill="none" stroke="#fff" stroke-width="6"/>'
        f'<rect {place} fill="none" stroke="{colour}" stroke-width="3.5"/>' + _label(capture, box, text, colour)
    )


def _label(capture: Capture, box: Sequence[float], text: str, colour: str) -> str:
    (width, height), (x1, y1, _, _) = _size(capture), np.clip(box, 0, 1)
    wide = 15 * len(text) + 10
    x = min(max(float(x1) * width, 0), max(width - wide, 0))
    y = float(y1) * height
    y = y - 30 if y >= 32 else min(y + 2, height - 29)
    return (
        f'<g class="ga-label"><rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="28" rx="3" fill="{colour}"/>'
        f'<text x="{x + 5:.1f}" y="{y + 21:.1f}">{escape(text)}</text></g>'
    )


def _draw_phrases(capture: Capture, choice: VisitorChoice) -> tuple[str, str]:
    """The box of each phrase, and the list of phrases; numbers join the two, not only colours."""
    rows: list[str] = []
    boxes: dict[tuple[float, ...], list[int]] = {}
    for number, (phrase, weights) in enumerate(grounded_phrases(capture, choice), 1):
        box, share = attended_box(capture, weights)
        colour = COLOURS[(boxes.setdefault(box, [number])[0] - 1) % len(COLOURS)]
        boxes[box] += [number] if number not in boxes[box] else []
        rows.append(
            f'<tr><td><b style="color:{colour}">■</b> {number}</td><td>{escape(phrase.text)}</td>'
            f"<td>{escape(_place(capture, box, weights))}</td><td>{_percent(share)}</td></tr>"
        )
    drawn = [
        _box(capture, box, ", ".join(map(str, numbers)), COLOURS[(numbers[0] - 1) % len(COLOURS)])
        for box, numbers in boxes.items()
    ]
    if not rows:
        return "", "<p>The caption names nothing that can be seen.</p>"
    head = "<tr><th></th><th>phrase</th><th>box, in pixels</th><th>attention in it</th></tr>"
    return "".join(drawn), f"<table>{head}{''.join(rows)}</table>"


def _place(capture: Capture, box: Sequence[float], weights: np.ndarray) -> str:
    corners = ", ".join(f"{value:.0f}" for value in np.asarray(box) * np.tile(capture.example.image.size, 2))
    label = capture.example.labels[int(weights.argmax())] if capture.example.labels else ""
    return f"{corners} ({label})" if label else corners


def _say_word(capture: Capture, choice: VisitorChoice, weights: np.ndarray, share: float) -> str:
    example, word = capture.example, escape(capture.example.text(choice.word))
    top = int(weights.argmax())
    label = f" ({escape(example.labels[top])})" if example.labels and example.labels[top] else ""
    return (
        f"“{word}”: {_percent(share)} of the attention goes to the regions; of that, {_percent(weights[top])} to "
        f"region {top}{label}."
    )


def _percent(value: float) -> str:
    return "< 1%" if 0 < value < 0.005 else f"{value:.0%}"


# All heads


def _map(capture: Capture, choice: VisitorChoice) -> str:
    """One cell for each head: how much of the word's attention goes to one region."""
    shares = capture.example.attention[:, :, choice.word].max(-1)
    layers, heads = shares.shape
    cells = "".join(
        _map_cell(capture, choice, layer, head, shares) for layer in range(layers) for head in range(heads)
    )
    names = "".join(
        f'<text x="-0.2" y="{layers - layer - 0.35}" text-anchor="end">{escape(_short(capture, layer))}</text>'
        for layer in range(layers)
        if layers <= 12 or layer % 4 == 0
    ) + "".join(
        f'<text x="{head + 0.5}" y="{layers + 0.6}" text-anchor="middle">{head}</text>'
        for head in range(heads)
        if heads <= 16 or head % 4 == 0
    )
    return (
        f"<details open><summary>All heads: attention of “{escape(capture.example.text(choice.word))}” on its "
        f"top region</summary>{_best_heads(capture, shares)}"
        '<svg class="ga-map" role="group" aria-label="attention of each layer and head" '
        f'style="max-width:{max(180, 30 * heads)}px" '
        f'viewBox="-1.6 -0.1 {heads + 1.7} {layers + 0.9}">{cells}{names}</svg></details>'
    )


def _short(capture: Capture, layer: int) -> str:
    return capture.example.layers[layer].replace("cross ", "")


def _map_cell(capture: Capture, choice: VisitorChoice, layer: int, head: int, shares: np.ndarray) -> str:
    value, row = float(shares[layer, head]), len(shares) - 1 - layer
    here = layer == choice.layer and choice.one_head in (None, head)
    name = f"layer {capture.example.layers[layer]}, head {head}: {_percent(value)}"
    return (
        f'<rect class="ga-cell{" ga-here" if here else ""}" data-cell="{layer} {head}" x="{head}" y="{row}" width="1" '
        f'height="1" fill="{BLUE}" fill-opacity="{0.06 + 0.94 * value:.3f}"><title>{escape(name)}</title></rect>'
    )


def _best_heads(capture: Capture, shares: np.ndarray) -> str:
    """Buttons of the heads with the largest shares."""
    order = np.argsort(-shares, axis=None, kind="stable")[:BEST_HEADS]
    pairs = [divmod(int(place), shares.shape[1]) for place in order]
    buttons = "".join(
        f'<button type="button" class="ga-head" data-cell="{layer} {head}">{escape(_short(capture, layer))}–{head} '
        f"({_percent(float(shares[layer, head]))})</button>"
        for layer, head in pairs
    )
    return f'<p class="ga-best">largest, layer–head: {buttons}</p>'
