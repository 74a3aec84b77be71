# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A page on which a reader clicks a word and moves over layers and heads, and the regions light up on the image.

One file, no network, one script of ours (attention_explorer.js). Attention is stored in bytes: each row (a word's
attention to the regions, or a region's to the words) in 255 steps of its largest value, itself a float32. A stored
value is off by at most half a step, 0.2% of the row's largest, and the largest stays the largest. L layers, H heads.
"""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from grounded_attention.analysis.example_attention import ExampleAttention

from .html_page import embedded_json, html_page
from .report_pictures import embed

LONGEST = 640  # pixels of an image's longer side
STEPS = 255
HINT = (
    "Click a word to see which regions it attends to; click a region to see which words it attends to. Move the "
    "sliders over layers and heads, or click a cell of the map. With the keyboard: Tab to a word or region, Enter to "
    "choose it, arrow keys along the words and on the sliders. Dashed: gold. Numbers on the image are shares of the "
    "attention that goes to the regions; how much that is stands below. Stored values are off by at most 0.2% of the "
    "largest beside them."
)


def explorer_page(checkpoints: Mapping[str, Sequence[ExampleAttention]], title: str = "Attention explorer") -> str:
    """The explorer as a page of its own.

    Args:
        checkpoints (`Mapping[str, Sequence[ExampleAttention]]`): name of a model -> its examples; all of the same
            images, captions, words and regions, in one order. Of several models two stand side by side.
        title (`str`, *optional*): the heading.

    Raises:
        ValueError: no model or example, or examples that are not the same.
    """
    return html_page(title, explorer_body(checkpoints), explorer_style(), explorer_script())


def explorer_body(checkpoints: Mapping[str, Sequence[ExampleAttention]]) -> str:
    """The explorer's part of a page; the page needs `explorer_style` and `explorer_script`. See `explorer_page`."""
    _check(checkpoints)
    first = next(iter(checkpoints.values()))[0]
    data = {
        "checkpoints": list(checkpoints),
        "layers": list(first.layers),
        "heads": first.heads,
        "examples": [_example(same) for same in zip(*checkpoints.values(), strict=True)],
    }
    return (
        '<section class="explorer" id="explorer"><div class="controls">'
        '<label>image and caption <select data-control="example"></select></label>'
        f"{_slider('layer')}{_slider('head')}</div>"
        f'<p class="hint">{escape(HINT)}</p><div class="panes"></div>'
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
        raise ValueError("nothing to explore; give at least one model with one example")
    (name, first), *others = checkpoints.items()
    shape = (first[0].layers, first[0].heads)
    for other, examples in [(name, first), *others]:
        for one in examples:
            if (one.layers, one.heads) != shape:
                raise ValueError(
                    f"{other}: {len(one.layers)} layers of {one.heads} heads, but {name}: {len(shape[0])} of "
                    f"{shape[1]}; one page holds models of one architecture"
                )
        if [_same(one) for one in examples] != [_same(one) for one in first]:
            raise ValueError(f"{other} and {name} have different images, captions, words or regions; capture the same")


def _same(example: ExampleAttention) -> tuple[Any, ...]:
    return example.image_id, example.caption, example.words, example.boxes.tolist(), example.back is None


def _example(same: Sequence[ExampleAttention]) -> dict[str, Any]:
    """One captioned image, with its attention under each model."""
    first = same[0]
    picture = embed(first.image, LONGEST)
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
    """(..., rows, columns) floats of at least 0: base64 of each row's largest (float32, little endian), then bytes."""
    values = np.clip(np.asarray(attention, dtype=np.float64), 0, None)
    largest = values.max(-1, keepdims=True)
    steps = np.divide(STEPS * values, largest, out=np.zeros_like(values), where=largest > 0).round()
    # What is not the largest stays below it, so that the most-attended region is the same.
    steps = np.where(values < largest, np.minimum(steps, STEPS - 1), steps)
    return base64.b64encode(largest.astype("<f4").tobytes() + steps.astype(np.uint8).tobytes()).decode("ascii")
