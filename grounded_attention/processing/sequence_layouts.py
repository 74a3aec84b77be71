# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Sequence layouts: the positions of special tokens and texts, and the conversion of token ids to padded arrays.

Shapes: S texts of an example, B batch, L tokens of the longest text, T columns of the text part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from .number_arrays import Arrays


@dataclass(frozen=True)
class SequenceLayout:
    """The text part of an input sequence."""

    name: str  # The name of the layout, by which a task selects it
    pieces: tuple[tuple[int | str, int], ...]  # (index of a text or name of a special token, token type)
    text_end: str = ""  # The end of the last text; it is added if missing

    @cached_property
    def text_count(self) -> int:
        """Number of texts of an example."""
        return sum(isinstance(piece, int) for piece, _ in self.pieces)

    @cached_property
    def special_count(self) -> int:
        """Number of columns for special tokens."""
        return len(self.pieces) - self.text_count


# A model reads the answer at the column of this special token.
ANSWER_TOKEN = "mask_token"

SEQUENCE_LAYOUTS = {
    layout.name: layout
    for layout in (
        # [CLS] text [SEP]
        SequenceLayout("caption", (("cls_token", 0), (0, 0), ("sep_token", 0))),
        # [CLS] text [SEP] text_pair [SEP]
        SequenceLayout("caption_pair", (("cls_token", 0), (0, 0), ("sep_token", 0), (1, 1), ("sep_token", 1))),
        # [CLS] question [SEP] [MASK] [SEP]: the answer is read at [MASK] (VL-BERT public code, VQA)
        SequenceLayout(
            "masked_answer", (("cls_token", 0), (0, 0), ("sep_token", 0), (ANSWER_TOKEN, 1), ("sep_token", 1))
        ),
        # [CLS] question ? [MASK] [SEP]: the answer is read at [MASK] (VisualBERT public code, VQA)
        SequenceLayout("question_mask", (("cls_token", 0), (0, 0), (ANSWER_TOKEN, 0), ("sep_token", 0)), "?"),
        # text, as the VL-BERT public code feeds its text corpus
        SequenceLayout("plain", ((0, 0),)),
    )
}


@dataclass
class EncodedTexts:
    """Word pieces of every text, without special tokens."""

    ids: np.ndarray  # (S, B, L) int64, 0 past a text's end
    spans: np.ndarray  # (S, B, L, 2) int64, the characters [start, end) of each piece
    lengths: np.ndarray  # (S, B) int64, pieces of each text


@dataclass
class TextColumns:
    """The padded text part of a batch."""

    arrays: Arrays  # (B, T) int64; `answer_positions` (B,), -1 for an example without
    kept: np.ndarray  # (S, B) int64, number of pieces of each text that stay
    first: np.ndarray  # (S, B) int64, column of the first piece of each text


def get_layouts(names: str | Sequence[str] | None, text_counts: Sequence[int]) -> list[SequenceLayout]:
    """Returns the layout of each of B examples."""
    if names is None:
        names = [("caption", "caption_pair")[count - 1] for count in text_counts]
    if isinstance(names, str):
        names = [names] * len(text_counts)
    else:
        names = list(names)
    if len(names) != len(text_counts):
        raise ValueError(f"layout has {len(names)} entries, but `text` has {len(text_counts)}.")
    return [_get_layout(i, name, count) for i, (name, count) in enumerate(zip(names, text_counts, strict=True))]


def _get_layout(example: int, name: str, text_count: int) -> SequenceLayout:
    layout = SEQUENCE_LAYOUTS.get(name)
    if layout is None:
        raise ValueError(
            f"Example {example}: Unknown sequence layout {name!r}; known: {', '.join(sorted(SEQUENCE_LAYOUTS))}."
        )
    if layout.text_count != text_count:
        raise ValueError(
            f"Example {example}: Layout {name!r} takes {layout.text_count} text(s) an example, found {text_count}; "
            "add or remove `text_pair`, or choose another layout."
        )
    return layout


def end_texts(layouts: Sequence[SequenceLayout], texts: list[list[str]]) -> list[list[str]]:
    """Adds the end that the layout requires to each example's last text."""
    ended = [list(row) for row in texts]
    for example, layout in enumerate(layouts):
        last = ended[layout.text_count - 1]
        if not last[example].rstrip().endswith(layout.text_end):
            last[example] += layout.text_end
    return ended


def check_tokenizer(tokenizer: Any, needed_by: str = "") -> None:
    """Raises a `ValueError` for a tokenizer without words, and for one that is not fast, if something needs character
    spans."""
    if needed_by and not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{needed_by} needs a fast tokenizer for character spans, found {type(tokenizer)}.")
    words = tokenizer.get_vocab().keys() - tokenizer.get_added_vocab().keys() - set(tokenizer.all_special_tokens)
    if not words - {"▁"}:  # the mark of a space is no word
        name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        raise ValueError(
            f"{name} has no words, only {len(tokenizer)} special tokens: tokenizer.json is missing there."
        )


def encode_texts(tokenizer: Any, texts: list[list[str]]) -> EncodedTexts:
    """Tokenizes all texts of a batch in one call of the tokenizer."""
    try:
        encoding = tokenizer(
            list(chain.from_iterable(texts)),
            add_special_tokens=False,
            split_special_tokens=True,
            padding=False,
            truncation=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
    except Exception as error:
        if type(error) is not Exception:  # which `tokenizers` raises for its own errors
            raise
        raise ValueError(
            f"the tokenizer cannot encode a text ({error}); its tokenizer.json is damaged: copy the checkpoint again."
        ) from error
    count = len(encoding["input_ids"])
    lengths = np.fromiter(map(len, encoding["input_ids"]), dtype=np.int64, count=count)
    filled = np.arange(lengths.max(initial=0)) < lengths[:, None]
    ids = np.zeros(filled.shape, dtype=np.int64)
    spans = np.zeros((*filled.shape, 2), dtype=np.int64)
    # A boolean mask is filled row by row, in the order of the texts.
    ids[filled] = np.fromiter(chain.from_iterable(encoding["input_ids"]), dtype=np.int64)
    offsets = chain.from_iterable(chain.from_iterable(encoding["offset_mapping"]))
    spans[filled] = np.fromiter(offsets, dtype=np.int64).reshape(-1, 2)
    shape = (len(texts), count // len(texts))
    return EncodedTexts(ids.reshape(*shape, -1), spans.reshape(*shape, -1, 2), lengths.reshape(shape))


def kept_lengths(lengths: np.ndarray, budget: np.ndarray, strategy: str) -> np.ndarray:
    """Computes the number of pieces of each text that fit; texts are cut at their end."""
    if strategy == "longest_first":
        return _cut_longest_first(lengths, budget)
    names = ("only_first", "only_second")[: len(lengths)]
    if strategy not in names:
        raise ValueError(f"Unknown truncation {strategy!r}; expected one of longest_first, {', '.join(names)}.")
    cut = names.index(strategy)
    kept = lengths.copy()
    room = budget - (lengths.sum(axis=0) - lengths[cut])
    if (room < 0).any():
        example = int(np.argmax(room < 0))
        raise ValueError(
            f"Example {example}: {strategy} cannot make {lengths[:, example].tolist()} tokens fit into "
            f"{budget[example]}; "
            "raise max_length or use truncation='longest_first'."
        )
    kept[cut] = np.minimum(lengths[cut], room)
    return kept


def _cut_longest_first(lengths: np.ndarray, budget: np.ndarray) -> np.ndarray:
    if len(lengths) == 1:
        return np.minimum(lengths, budget)
    short = lengths.argmin(axis=0)
    long = 1 - lengths.argmin(axis=0)
    batch = np.arange(lengths.shape[1])
    kept = lengths.copy()
    fits = lengths.sum(axis=0) <= budget
    kept[short, batch] = np.where(fits, lengths[short, batch], np.minimum(lengths[short, batch], budget // 2))
    kept[long, batch] = np.minimum(lengths[long, batch], budget - kept[short, batch])
    return kept


def arrange_columns(
    layouts: Sequence[SequenceLayout],
    tokenizer: Any,
    texts: EncodedTexts,
    kept: np.ndarray,
    min_width: int,
    multiple_of: int,
) -> TextColumns:
    """Writes special tokens and the kept pieces of the texts into their columns, padded on the right. T is at least
    `min_width`, at least the longest example, and a multiple of `multiple_of`.
    """
    specials = np.array([layout.special_count for layout in layouts])
    width = max(min_width, int((kept.sum(axis=0) + specials).max(initial=0)))
    shape = (kept.shape[1], -(-width // multiple_of) * multiple_of)
    ids = np.full(shape, tokenizer.pad_token_id, dtype=np.int64)
    types = np.zeros(shape, dtype=np.int64)
    first = np.zeros_like(kept)
    end = np.zeros(len(specials), dtype=np.int64)
    answers = np.full(len(specials), -1, dtype=np.int64)
    for layout in dict.fromkeys(layouts):
        rows = np.array([i for i, other in enumerate(layouts) if other == layout])
        for piece, token_type in layout.pieces:
            if isinstance(piece, str):
                token_id = getattr(tokenizer, f"{piece}_id")
                if token_id is None:
                    raise ValueError(f"The tokenizer has no {piece}; layout {layout.name!r} needs it.")
                ids[rows, end[rows]] = token_id
                answers[rows] = end[rows] if piece == ANSWER_TOKEN else answers[rows]
                types[rows, end[rows]] = token_type
                end[rows] += 1
                continue
            row, token = np.nonzero(np.arange(texts.ids.shape[2]) < kept[piece, rows, None])
            row = rows[row]
            ids[row, end[row] + token] = texts.ids[piece, row, token]
            types[row, end[row] + token] = token_type
            first[piece, rows] = end[rows]
            end[rows] += kept[piece, rows]
    mask = (np.arange(shape[1]) < end[:, None]).astype(np.int64)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    if (answers >= 0).any():
        arrays["answer_positions"] = answers
    return TextColumns(arrays, kept, first)


# Columns that a text keeps at least when text and regions share a limit (VL-BERT public code).
MIN_TEXT = 2
# A tokenizer without a limit has a huge number instead.
NO_LIMIT = 1_000_000


def fit_lengths(
    layouts: Sequence[SequenceLayout],
    lengths: np.ndarray,
    regions: np.ndarray,
    truncation: bool | str,
    max_length: int,
    max_sequence_length: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes how many word pieces of each text and how many regions stay."""
    specials = np.array([layout.special_count for layout in layouts])
    if truncation in (False, None, "do_not_truncate"):
        if max_sequence_length is not None:
            raise ValueError("max_sequence_length also cuts texts; remove it, or set truncation=True.")
        return lengths, regions
    strategy = "longest_first" if truncation is True else str(truncation)
    if max_length < specials.max(initial=0):
        raise ValueError(f"max_length={max_length} is too small for {specials.max()} special tokens; increase it.")
    budget = max_length - specials
    kept = kept_lengths(lengths, budget, strategy)
    if max_sequence_length is None:
        return kept, regions
    shortest = np.maximum(specials, MIN_TEXT)
    needed = int((shortest + (regions > 0)).max(initial=0))
    if max_sequence_length < needed:
        raise ValueError(f"max_sequence_length={max_sequence_length}, expected at least {needed} for these examples.")
    text, regions = share_columns(kept.sum(axis=0) + specials, shortest, regions, max_sequence_length)
    return kept_lengths(lengths, np.minimum(budget, text - specials), strategy), regions


def share_columns(
    text: np.ndarray, shortest: np.ndarray, regions: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Shares a limit between text and regions: the longer side loses one column at a time until both fit. If both
    sides are equal, the text loses one, but it keeps `shortest` columns (VL-BERT public code).
    """
    kept = np.maximum(np.maximum(limit // 2, limit - regions), shortest)
    kept = np.minimum(kept, text)
    return kept, np.minimum(regions, limit - kept)


def min_width(padding: bool | str, limit: int, lengths: np.ndarray) -> int:
    """Returns the smallest width T that `padding` requires."""
    if padding in (True, "longest"):
        return 0
    if padding == "max_length":
        if limit >= NO_LIMIT:
            raise ValueError("padding='max_length' needs max_length, since the tokenizer has no model_max_length.")
        return limit
    if padding not in (False, None, "do_not_pad"):
        raise ValueError(f"Unknown padding {padding!r}; known: True, 'longest', 'max_length', False.")
    if len(set(lengths.tolist())) > 1:
        raise ValueError(f"padding=False, but the examples have {lengths.tolist()} tokens; use padding=True.")
    return 0
