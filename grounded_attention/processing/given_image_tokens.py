# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Image tokens that a function of the user finds, where nothing is known of the model's processor.

Shapes: B batch, N sequence, n image tokens of one image, R those of all images of an example.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .chat_prompts import MARK, Prompt
from .image_tokens import ImageTokenFamily, ImageTokens, Token
from .patch_sequences import AnswerText, text_spans
from .region_boxes import find_bad_box

# ids (N,), outputs of the processor, sizes of the images -> positions (n,) and boxes (n, 4) of each image.
ImageTokenFunction = Callable[[np.ndarray, Mapping[str, Any], list[tuple[int, int]]], Sequence[tuple[Any, Any]]]


def _not_known(settings: Any) -> Any:
    raise ValueError("the image tokens are known to the function image_tokens= alone, which is not asked here.")


GIVEN = ImageTokenFamily("", _not_known, image_token=Token(""), placeholder=Token(MARK))


def run_processor(processor: Any, prompts: Sequence[Prompt], **options: Any) -> dict[str, Any]:
    """What a processor of any kind makes of a batch."""
    name = type(processor).__name__
    try:
        inputs = dict(processor(text=[prompt.text for prompt in prompts], **options))
    except TypeError as error:
        called = f"text, {', '.join(options)}"
        raise ValueError(f"{name} cannot be called with {called} ({error}); give an object that can.") from error
    for key in ("input_ids", "attention_mask"):
        shape: tuple[int, ...] = getattr(inputs.get(key), "shape", ())
        if len(shape) != 2 or shape[0] != len(prompts):
            raise ValueError(f"{name} makes {key} of the shape {shape}, expected a tensor ({len(prompts)}, N).")
    return inputs


def read_image_tokens(given: Any, count: int, length: int, name: str) -> ImageTokens:
    """The image tokens of an example of N tokens, as a user's function gives them for each of its images."""
    parts = [np.zeros((0, 6))]
    try:
        for image, (places, areas) in zip(range(count), given, strict=True):
            parts.append(np.insert(np.column_stack([places, areas]), 5, image, axis=1))
        columns = np.concatenate(parts).T
    except (TypeError, ValueError, IndexError) as error:
        form = f"positions (n,) and boxes (n, 4) of each of {count} images"
        raise ValueError(f"{name}: image_tokens gives {given!r:.60} ({error}), expected {form}.") from error
    columns = columns[:, columns[0].argsort(kind="stable")]
    positions = columns[0].astype(np.int64)
    boxes = columns[1:5].T.astype(np.float32)
    images = columns[5].astype(np.int64)
    wrong = (positions != columns[0]) | (positions >= length) | (np.diff(positions, prepend=-1) < 1)
    if wrong.any():
        first = columns[0][wrong][0]
        raise ValueError(f"{name}: image_tokens has position {first:g}; expected 0 to {length - 1}, each once.")
    has_box = np.asarray(~np.isnan(boxes).all(axis=1))
    problem = find_bad_box(boxes[has_box], pixels_hint=False)
    if problem is not None:
        raise ValueError(f"{name}: image_tokens: {problem[1]}, or four NaN for a token without a place.")
    return ImageTokens(positions, boxes.clip(0, 1), has_box, images, np.zeros_like(images))


def find_spans(prompt: Prompt, tokenizer: Any, ids: Sequence[int], name: str) -> np.ndarray:
    """The characters of each text that each token covers, see [`text_spans`], by what the tokens say; -1 says nothing.

    Between special tokens, all of a prompt must stand there, in order, as often as in the prompt.
    """
    words = AnswerText(tokenizer)
    special = tokenizer.convert_ids_to_tokens([*words.special])
    words.special.add(-1)
    for token in ids:
        words.add(token)
    said = words.text
    text = re.sub("|".join(map(re.escape, special)), lambda token: MARK * len(token[0]), prompt.text)
    segments = []
    end = 0
    for piece in re.finditer(rf"[^{MARK}\s]([^{MARK}]*[^{MARK}\s])?", text):
        if said.count(piece[0], end) != text.count(piece[0], piece.start()):
            raise ValueError(
                f"{name}: {piece[0]!r:.60} of the prompt is not found, or not once, in what its tokens say, which is "
                f"{said[end:]!r:.60}; only image tokens and special tokens may be others."
            )
        start = said.index(piece[0], end)
        end = start + len(piece[0])
        segments.append((start, end, piece.start()))
    offsets = np.array(words.spans, dtype=np.int64).reshape(-1, 2)
    return text_spans(prompt, offsets, np.array(segments, dtype=np.int64).reshape(-1, 3))
