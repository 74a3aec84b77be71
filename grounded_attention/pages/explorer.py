# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The explorer of attention: a picture, its words, and layers and heads to choose from. The script is page.js.

Each row of attention (a word to the places of a picture, or a region to the words) is stored as bytes, in 255 steps of
its largest value, and the largest value as float32. The error of a stored value is at most half a step, 0.2% of the
largest value, and the largest value stays the largest. Shape letters: L layers, H heads.
"""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from grounded_attention.heads.example_attention import ExampleAttention
from grounded_attention.modeling.grounding_items import FUNCTION_WORDS
from grounded_attention.processing.phrase import Phrase
from grounded_attention.utils.named_types import Columns, Fields

from .colours import scale_colours
from .overlay import UNSEEN, attention_overlay, css_gradient, embed, empty_frame
from .page import EXPLORER, embedded_json, html_page

LONGEST = 640  # pixels, longer side of an image
STEPS = 255
HINT = (
    "Click a word to see which regions it attends to, or a region to see its words. Choose layer and head with the "
    "sliders, or click a cell of the map; Tab, Enter and arrow keys do the same. Dashed: gold. Numbers on the image "
    "are shares of the attention on all regions."
)
# Words that name nothing in a picture.
NO_CONTENT = FUNCTION_WORDS | {"yes", "no"}


def explorer_page(checkpoints: Mapping[str, Sequence[ExampleAttention]], title: str = "Attention explorer") -> str:
    """Builds the explorer as a separate page."""
    return html_page(title, explorer_body([explorer(checkpoints)]))


def explorer_body(explorers: Sequence[Columns], hint: str = HINT) -> str:
    """Builds explorers side by side as a part of a page; `hint` says how to use them."""
    data = {"colours": scale_colours(np.linspace(0, 1, 11)).tolist(), "explorers": explorers}
    return (
        f'<p class="note">{escape(hint)} Attention: none <i class="scale" style="background:{css_gradient()}"></i> '
        f"the largest share; {UNSEEN}.</p>{EXPLORER}"
        "<noscript><p>This part of the page needs JavaScript; its script is in the page.</p></noscript>"
        + embedded_json("explorer-data", data)
    )


def explorer(
    checkpoints: Mapping[str, Sequence[ExampleAttention]],
    best: tuple[str, int, int] | None = None,
    phrases: Sequence[Phrase] = (),
    about: str = "",
) -> Fields:
    """The data of one explorer: models of one architecture, with the same examples.

    Args:
        checkpoints (`Mapping[str, Sequence[ExampleAttention]]`): the examples, captured in each model.
        best (`tuple[str, int, int]`, *optional*): the model, layer and head that it opens on.
        phrases (`Sequence[Phrase]`, *optional*): phrases of the captions that can be clicked too: the mean of their
            words.
        about (`str`, *optional*): a line below.

    Raises:
        ValueError: if there is no example, or models differ in their layers, heads or examples.
    """
    _check(checkpoints)
    examples = list(zip(*checkpoints.values(), strict=True))
    first = examples[0][0]
    names = list(checkpoints)
    return {
        "models": names,
        "layers": first.layers,
        "heads": [str(head) for head in range(first.heads)],
        "best": best and [names.index(best[0]), *best[1:]],
        "about": about,
        "examples": [_example(same, phrases) for same in examples],
    }


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


def _example(same: Sequence[ExampleAttention], phrases: Sequence[Phrase]) -> Fields:
    """The data of one captioned image, with the attention of each model."""
    first = same[0]
    if first.gold is None:
        gold = None
    else:
        gold = [np.nonzero(row)[0].tolist() for row in first.gold]
    boxes = np.clip(first.boxes.astype(float), 0, 1).round(5)
    past_the_words = [(0, 0), (0, 0), (0, 0), (0, len(phrases))]
    separator = " · "
    spoken = [first.caption[phrase.start : phrase.end] for phrase in phrases]
    texts = [first.caption]
    if spoken:
        texts.append(separator.join(spoken))
    words = [(start, end, 0) for start, end in first.words]
    place = 0
    for text in spoken:
        words.append((place, place + len(text), 1))
        place += len(text) + len(separator)
    to = []
    back = []
    for one in same:
        # The attention (L, H, W + phrases, R) of each word, then of each phrase: the mean of its words.
        rows = [one.attention[:, :, one.words_of(phrase)].mean(2, keepdims=True) for phrase in phrases]
        to.append([pack(np.concatenate([one.attention, *rows], axis=2))])
        back.append(None if one.back is None else pack(np.pad(one.back, past_the_words)))
    return {
        "texts": texts,
        "roles": ["", "phrases"],
        "words": words,
        "first": opening_word(texts[:1], words),
        "pictures": [picture(first.image, first.boxes, LONGEST) | {"boxes": boxes.tolist()}],
        "labels": first.labels or [""] * len(first.boxes),
        "gold": gold and gold + [[]] * len(phrases),
        "to": to,
        "back": back,
    }


def opening_word(texts: Sequence[str], words: Sequence[tuple[int, int, int]]) -> int:
    """The word that a page opens on: the longest content word of the last text that has one."""
    for number in reversed(range(len(texts))):
        lengths = {}
        for place, (start, end, text) in enumerate(words):
            word = texts[number][start:end].lower()
            if text == number and word not in NO_CONTENT and word[:1].isalpha():
                lengths[place] = len(word)
        if lengths:
            return max(lengths, key=lambda place: lengths[place])
    return 0


def picture(image: Image.Image, boxes: np.ndarray, longest: int, label: str = "") -> Fields:
    """The data of a picture; what the boxes do not show is hatched."""
    frame = empty_frame(*image.size, longest)
    shown = embed(attention_overlay(image, boxes, None, (frame.width, frame.height)), longest)
    return {**vars(shown), "label": label}


def pack(attention: np.ndarray) -> str:
    """Packs floats (..., rows, columns) of at least 0 as base64: the largest of each row (float32), then bytes."""
    values = np.clip(np.asarray(attention, dtype=np.float64), 0, None)
    largest = values.max(-1, keepdims=True)
    steps = np.divide(STEPS * values, largest, out=np.zeros_like(values), where=largest > 0).round()
    # Other values stay below the largest, so the most-attended region is the same.
    steps = np.where(values < largest, np.minimum(steps, STEPS - 1), steps)
    packed = largest.astype("<f4").tobytes() + steps.astype(np.uint8).tobytes()
    return base64.b64encode(packed).decode("ascii")
