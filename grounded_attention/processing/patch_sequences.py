# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Arrays from the sequences of a vision-language model: the tokens of texts and the image tokens, padded.

Shapes: B batch, N sequence, S texts of an example, T text tokens, R image tokens.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from .chat_prompts import Prompt
from .image_tokens import ImageTokens
from .sequence_layouts import EncodedTexts, TextColumns

IGNORED = -100  # label of tokens that are not learned


@dataclass(frozen=True)
class TokenSequence:
    """One example after the processor: its prompt, its image tokens, and the tokens of its texts."""

    prompt: Prompt  # The prompt, with S texts
    image_tokens: ImageTokens
    positions: np.ndarray  # (tokens,) int64, the position of each token in the padded sequence
    # (S, tokens, 2) int64, the characters [start, end) of each text that a token covers; (-1, -1) if it covers none
    spans: np.ndarray
    ids: np.ndarray  # (tokens,) int64, the tokens
    images: int  # How many images the example has, with the steps of its videos


def text_spans(prompt: Prompt, offsets: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Finds the characters of each text that each token covers, (S, tokens, 2) int64, as in [`TokenSequence`].

    `offsets` (tokens, 2) are characters of the prompt with its image tokens; `segments` (n, 3) are the parts of it
    that stand in the prompt too: start, end, and start in the prompt.
    """
    in_prompt = np.full_like(offsets, -1)
    for start, end, place in segments:
        covered = (offsets[:, 0] < end) & (offsets[:, 1] > start)
        in_prompt[covered] = offsets[covered].clip(start, end) - start + place
    spans = np.full((len(prompt.parts), *offsets.shape), -1, dtype=np.int64)
    for span, part in zip(spans, prompt.parts, strict=True):
        covered = (in_prompt[:, 0] < part.end) & (in_prompt[:, 1] > part.start)
        span[covered] = in_prompt[covered].clip(part.start, part.end) - part.start + part.first
    return spans


def answer_labels(sequences: list[TokenSequence], length: int, special_ids: Collection[int]) -> np.ndarray:
    """Makes the labels (B, N) int64 of a language model that learns the answers. They are the tokens of the answers,
    and what follows an answer up to the first of the special tokens, if no other text comes before it; -100 elsewhere.
    """
    labels = np.full((len(sequences), length), IGNORED, dtype=np.int64)
    for row, each in zip(labels, sequences, strict=True):
        in_text = each.spans[..., 0] >= 0
        for index, part in enumerate(each.prompt.parts):
            tokens = np.flatnonzero(in_text[index])
            if not part.answer or not len(tokens):
                continue
            after = np.arange(tokens[-1] + 1, len(each.ids))
            stops = []
            for place in after:
                if in_text[:, place].any() or each.ids[place] in special_ids:
                    stops.append(place)
            if stops and each.ids[stops[0]] in special_ids:
                tokens = np.append(tokens, np.arange(tokens[-1] + 1, stops[0] + 1))
            row[each.positions[tokens]] = each.ids[tokens]
    return labels


def text_arrays(sequences: list[TokenSequence], length: int) -> tuple[EncodedTexts, TextColumns, np.ndarray]:
    """Collects the tokens of all texts of a batch of sequences of N tokens."""
    most = max((len(each.spans) for each in sequences), default=0)
    lengths = np.zeros((most, len(sequences)), dtype=np.int64)
    for example, each in enumerate(sequences):
        lengths[: len(each.spans), example] = (each.spans[..., 0] >= 0).sum(axis=1)
    first = np.cumsum(lengths, axis=0) - lengths
    width = max(1, int(lengths.sum(axis=0).max(initial=0)))
    # A mask of the whole sequence is recognised by its length, which must not be T.
    positions = np.full((len(sequences), width + (width == length)), -1, dtype=np.int64)
    spans = np.zeros((*lengths.shape, int(lengths.max(initial=0)), 2), dtype=np.int64)
    for example, each in enumerate(sequences):
        for index, span in enumerate(each.spans):
            tokens = np.flatnonzero(span[:, 0] >= 0)
            spans[index, example, : len(tokens)] = span[tokens]
            start = first[index, example]
            positions[example, start : start + len(tokens)] = each.positions[tokens]
    encoded = EncodedTexts(np.zeros(spans.shape[:3], dtype=np.int64), spans, lengths)
    return encoded, TextColumns({}, lengths, first), positions


def region_arrays(image_tokens: list[ImageTokens]) -> dict[str, np.ndarray]:
    """Pads the image tokens of B examples to R columns, at least one: the keys `region_...` of a batch."""
    shape = (len(image_tokens), max(1, *(len(each.positions) for each in image_tokens)))
    arrays: dict[str, np.ndarray] = {
        "region_positions": np.full(shape, -1, dtype=np.int64),
        "region_boxes": np.zeros((*shape, 4), dtype=np.float32),
        "region_attention_mask": np.zeros(shape, dtype=np.int64),
        "region_candidate_mask": np.zeros(shape, dtype=bool),
        "region_image": np.zeros(shape, dtype=np.int64),
    }
    for example, each in enumerate(image_tokens):
        count = len(each.positions)
        arrays["region_positions"][example, :count] = each.positions
        arrays["region_boxes"][example, :count] = np.nan_to_num(each.boxes)
        arrays["region_attention_mask"][example, :count] = 1
        arrays["region_candidate_mask"][example, :count] = each.has_box
        arrays["region_image"][example, :count] = each.images
    return arrays
