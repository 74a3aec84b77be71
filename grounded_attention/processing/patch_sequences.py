# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Arrays from the sequences of a vision-language model: the tokens of texts and the image tokens, padded.

Shapes: B batch, N sequence, S texts of an example, T text tokens, R image tokens.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..utils.plain_text import REPLACEMENT
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


class AnswerText:
    """The text of tokens that come one by one, without special ones, and of each its characters in it; none: (n, n).

    Args:
        tokenizer (`PreTrainedTokenizerFast`): its tokenizer.
    """

    def __init__(self, tokenizer: Any):
        self.text = ""
        self.spans: list[tuple[int, int]] = []
        self._kept: list[int] = []
        self._tokenizer = tokenizer
        # Some tokens that end a turn are special, but none of the tokenizer's named ones: <end_of_turn> of Gemma.
        added = [token for token, each in tokenizer.added_tokens_decoder.items() if each.special]
        self.special = {*tokenizer.all_special_ids, *added}

    def add(self, token: int) -> None:
        """The next token."""
        before = len(self.text.rstrip(REPLACEMENT))
        if token in self.special:
            self.spans.append((before, before))
            return
        self._kept.append(token)
        self.text = self._tokenizer.decode(self._kept, clean_up_tokenization_spaces=False)
        # Bytes that do not end a character belong to the character that they begin.
        self.spans.append((before, max(len(self.text.rstrip(REPLACEMENT)), before + 1)))


def decode_each(tokenizer: Any, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
    """The text of some tokens, without special ones, and the characters of each token in it; none: (n, n)."""
    answer = AnswerText(tokenizer)
    for token in ids:
        answer.add(token)
    return answer.text, answer.spans


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
    for row, sequence in zip(labels, sequences, strict=True):
        ids = sequence.ids
        in_text = sequence.spans[..., 0] >= 0
        for index, part in enumerate(sequence.prompt.parts):
            tokens = np.flatnonzero(in_text[index])
            if not part.answer or not len(tokens):
                continue
            stop = tokens[-1] + 1
            while stop < len(ids) and ids[stop] not in special_ids and not in_text[:, stop].any():
                stop += 1
            if stop < len(ids) and ids[stop] in special_ids:
                tokens = np.append(tokens, np.arange(tokens[-1] + 1, stop + 1))
            row[sequence.positions[tokens]] = ids[tokens]
    return labels


def text_arrays(sequences: list[TokenSequence], length: int) -> tuple[EncodedTexts, TextColumns, np.ndarray]:
    """Collects the tokens of all texts of a batch of sequences of N tokens."""
    most = max((len(sequence.spans) for sequence in sequences), default=0)
    lengths = np.zeros((most, len(sequences)), dtype=np.int64)
    for example, sequence in enumerate(sequences):
        in_text = sequence.spans[..., 0] >= 0
        lengths[: len(in_text), example] = in_text.sum(axis=1)
    first = np.cumsum(lengths, axis=0) - lengths
    width = max(1, int(lengths.sum(axis=0).max(initial=0)))
    # A mask of the whole sequence is recognised by its length, which must not be T.
    positions = np.full((len(sequences), width + (width == length)), -1, dtype=np.int64)
    spans = np.zeros((*lengths.shape, int(lengths.max(initial=0)), 2), dtype=np.int64)
    for example, sequence in enumerate(sequences):
        for index, span in enumerate(sequence.spans):
            tokens = np.flatnonzero(span[:, 0] >= 0)
            spans[index, example, : len(tokens)] = span[tokens]
            start = first[index, example]
            positions[example, start : start + len(tokens)] = sequence.positions[tokens]
    encoded = EncodedTexts(np.zeros(spans.shape[:3], dtype=np.int64), spans, lengths)
    return encoded, TextColumns({}, lengths, first), positions


def region_arrays(image_tokens: list[ImageTokens]) -> dict[str, np.ndarray]:
    """Pads the image tokens of B examples to R columns, at least one: the keys `region_...` of a batch."""
    most = max(1, *(len(tokens.positions) for tokens in image_tokens))
    shape = (len(image_tokens), most)
    positions = np.full(shape, -1, dtype=np.int64)
    boxes = np.zeros((*shape, 4), dtype=np.float32)
    candidates = np.zeros(shape, dtype=bool)
    images = np.zeros(shape, dtype=np.int64)
    for example, tokens in enumerate(image_tokens):
        count = len(tokens.positions)
        positions[example, :count] = tokens.positions
        boxes[example, :count] = np.nan_to_num(tokens.boxes)
        candidates[example, :count] = tokens.has_box
        images[example, :count] = tokens.images
    return {
        "region_positions": positions,
        "region_boxes": boxes,
        "region_attention_mask": (positions >= 0).astype(np.int64),
        "region_candidate_mask": candidates,
        "region_image": images,
    }
