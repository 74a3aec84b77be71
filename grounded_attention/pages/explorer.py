# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention explorer: an interactive HTML page with the attention of words and regions in each layer and head.

The page is one file with one script of ours (attention_explorer.js) and needs no network. Each row of attention (a
word to the regions, or a region to the words) is stored as bytes, in 255 steps of its largest value, and the largest
value as float32. The error of a stored value is at most half a step, 0.2% of the largest value, and the largest value
stays the largest. Shape letters: L layers, H heads.
"""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from grounded_attention.heads.example_attention import ExampleAttention

from .colours import scale_colours
from .overlay import UNSEEN, attention_overlay, css_gradient
from .page import embedded_json, html_page
from .report_pictures import embed, empty_frame

LONGEST = 640  # pixels, longer side of an image
STEPS = 255
HINT = (
    "Click a word to see which regions it attends to; click a region to see which words it attends to. Choose layer "
    "and head with the sliders, or click a cell of the map. With the keyboard: Tab to a word or region, Enter to "
    "choose it, arrow keys to move along the words and sliders. Dashed: gold. Numbers on the image are shares of the "
    "attention on all regions; the total of that attention is below. The error of a stored value is at most 0.2% of "
    "the largest value of its row."
)


def explorer_page(checkpoints: Mapping[str, Sequence[ExampleAttention]], title: str = "Attention explorer") -> str:
    """Builds the explorer as a separate page."""
    return html_page(title, explorer_body(checkpoints), explorer_style(), explorer_script())


def explorer_body(
    checkpoints: Mapping[str, Sequence[ExampleAttention]], best: tuple[str, int, int] | None = None
) -> str:
    """Builds the explorer as a part of a page, which needs `explorer_style` and `explorer_script`."""
    _check(checkpoints)
    first = next(iter(checkpoints.values()))[0]
    data = {
        "checkpoints": list(checkpoints),
        "layers": list(first.layers),
        "heads": first.heads,
        "best": best and [list(checkpoints).index(best[0]), *best[1:]],
        "colours": scale_colours(np.linspace(0, 1, 11)).tolist(),
        "examples": [_example(same) for same in zip(*checkpoints.values(), strict=True)],
    }
    return (
        '<section class="explorer" id="explorer"><div class="controls">'
        '<label>image and caption <select data-control="example"></select></label>'
        f"{_slider('layer')}{_slider('head')}</div>"
        f'<p class="hint">{escape(HINT)} Attention: 0 <i style="background:{css_gradient()}"></i> the largest share; '
        f'{UNSEEN}.</p><div class="panes"></div>'
        "<noscript><p>This part of the page needs JavaScript; its script is in the page.</p></noscript></section>"
        + embedded_json("explorer-data", data)
    )


def explorer_style() -> str:
    """CSS of the explorer."""
    return Path(__file__).with_suffix(".css").read_text(encoding="utf-8")


def explorer_script() -> str:
    """JavaScript of the explorer."""
    return Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def _slider(name: str) -> str:
    return (
        f'<label>{name} <output data-output="{name}"></output>'
        f'<input type="range" min="0" max="0" step="1" value="0" data-control="{name}"></label>'
    )


def _check(checkpoints: Mapping[str, Sequence[ExampleAttention]]) -> None:
    if not checkpoints or not all(checkpoints.values()):
        raise ValueError("checkpoints is empty; give at least one model with one example")
    (name, first), *others = checkpoints.items()
    shape = (first[0].layers, first[0].heads)
    for other, examples in [(name, first), *others]:
        for one in examples:
            if (one.layers, one.heads) != shape:
                raise ValueError(
                    f"{other}: {len(one.layers)} layers of {one.heads} heads, but {name}: {len(shape[0])} of "
                    f"{shape[1]}; a page needs models of the same architecture"
                )
        if [_same(one) for one in examples] != [_same(one) for one in first]:
            raise ValueError(
                f"{other} and {name} have different images, captions, words or regions; capture the same examples"
            )


def _same(example: ExampleAttention) -> tuple[Any, ...]:
    return example.image_id, example.caption, example.words, example.boxes.tolist(), example.back is None


def _example(same: Sequence[ExampleAttention]) -> dict[str, Any]:
    """The data of one captioned image, with the attention of each model."""
    first = same[0]
    frame = empty_frame(*first.image.size, LONGEST)
    picture = embed(attention_overlay(first.image, first.boxes, None, (frame.width, frame.height)), LONGEST)
    gold = None if first.gold is None else [np.nonzero(row)[0].tolist() for row in first.gold]
    return {
        "caption": first.caption,
        "words": [list(span) for span in first.words],
        "image": {"width": picture.width, "height": picture.height, "source": picture.source},
        "boxes": np.clip(first.boxes.astype(float), 0, 1).round(5).tolist(),
        "labels": list(first.labels) or [""] * len(first.boxes),
        "gold": gold,
        "to": [pack(one.attention) for one in same],
        "back": [None if one.back is None else pack(one.back) for one in same],
    }


def pack(attention: np.ndarray) -> str:
    """Packs floats (..., rows, columns) of at least 0 as base64: the largest of each row (float32), then bytes."""
    values = np.clip(np.asarray(attention, dtype=np.float64), 0, None)
    largest = values.max(-1, keepdims=True)
    steps = np.divide(STEPS * values, largest, out=np.zeros_like(values), where=largest > 0).round()
    # Other values stay below the largest, so the most-attended region is the same.
    steps = np.where(values < largest, np.minimum(steps, STEPS - 1), steps)
    return base64.b64encode(largest.astype("<f4").tobytes() + steps.astype(np.uint8).tobytes()).decode("ascii")
