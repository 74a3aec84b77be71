# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One prompt with its answer as a sequence of tokens: its words, its image tokens, and the attention of its rows.

Shape letters: N sequence, Q rows, R image tokens, L layers, H heads.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from PIL import Image
from torch import Tensor

from grounded_attention.heads.example_attention import find_words
from grounded_attention.heads.reading import inputs_on
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase
from grounded_attention.processing.videos import Video
from grounded_attention.supervision import supervise
from grounded_attention.supervision.attention_function import SupervisedAttention, attend_late_rows, layer_numbers
from grounded_attention.supervision.method import observed_layers
from grounded_attention.supervision.row_plans import RowPlans
from grounded_attention.supervision.row_states import AttentionPair
from grounded_attention.supervision.score_masks import is_hidden
from grounded_attention.supervision.supervise import (
    PREFIX_MODELS,
    find_calls,
    find_language_model,
    head_layers,
    unwrap_model,
)
from grounded_attention.utils.plain_text import REPLACEMENT

# Rows of all heads that are read in one pass, in bytes; more rows take further passes.
MOST_BYTES = 2**28


@dataclass(frozen=True)
class Word:
    """A word of a prompt or of its answer.

    Args:
        text (`str`): the word.
        start (`int`): its first character in its text.
        end (`int`): the character after the last one.
        sentence (`int`): its text: an index into `Lens.texts`.
        answer (`bool`): whether it is a word of the answer.
        rows (`tuple[int, ...]`): the positions of its tokens in the sequence.
    """

    text: str
    start: int
    end: int
    sentence: int
    answer: bool
    rows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sequenced:
    """A prompt with its answer as the model reads it."""

    inputs: dict[str, Any]
    prompt_length: int
    texts: tuple[str, ...]
    words: tuple[Word, ...]
    batch: Mapping[str, Any]

    @property
    def token_images(self) -> Tensor:
        """(R,) int64: the image of each image token, -1 for tokens without a place in it."""
        return self.batch["region_image"][0].masked_fill(~self.batch["region_candidate_mask"][0], -1)


def read_prompt(
    patches: PatchGroundingProcessor, chat: Any, texts: Sequence[str], images: Sequence[Image.Image | Video]
) -> Sequenced:
    """Makes the sequence of a prompt without an answer, and finds its words."""
    phrases = [
        Phrase(text[start:end], start, end, sentence=number)
        for number, text in enumerate(texts)
        for start, end in find_words(text)
    ]
    batch = patches([chat], images=[images], phrases=[phrases])
    positions, words = batch["text_positions"][0], []
    for phrase, mask in zip(phrases, batch["phrase_mask"][0], strict=False):
        rows = positions[mask.nonzero().flatten()].tolist()
        if rows:
            words.append(Word(phrase.text, phrase.start, phrase.end, phrase.sentence, False, tuple(rows)))
    inputs = PatchGroundingProcessor.model_inputs(batch)
    return Sequenced(inputs, inputs["input_ids"].shape[1], tuple(texts), tuple(words), batch)


def add_answer(model: Any, tokenizer: Any, prompt: Sequenced, ids: Sequence[int]) -> Sequenced:
    """Appends the tokens of an answer, (n,), and finds its words; the tokens are not decoded and encoded again."""
    text, spans = decode_each(tokenizer, ids)
    words = []
    for start, end in find_words(text):
        rows = [prompt.prompt_length + place for place, (low, high) in enumerate(spans) if low < end and high > start]
        words.append(Word(text[start:end], start, end, len(prompt.texts), True, tuple(rows)))
    inputs = dict(prompt.inputs)
    more = torch.tensor([list(ids)], dtype=torch.long)
    prefix = unwrap_model(model).config.model_type in PREFIX_MODELS
    # What each position is: an answer is read from the left, also where images and prompt see each other.
    added = {"input_ids": more, "attention_mask": torch.ones_like(more), "token_type_ids": more * 0 + int(prefix)}
    added |= dict.fromkeys(("mm_token_type_ids", "moe_mm_token_type_ids"), more * 0)
    for name, values in added.items():
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], values.to(inputs[name].dtype)], 1)
    return replace(prompt, inputs=inputs, texts=(*prompt.texts, text), words=(*prompt.words, *words))


def decode_each(tokenizer: Any, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
    """The text of some tokens, without special ones, and the characters of each token in it; none: (n, n)."""
    # Some tokens that end a turn are special, but none of the tokenizer's named ones: <end_of_turn> of Gemma.
    special = {*tokenizer.all_special_ids, *(n for n, each in tokenizer.added_tokens_decoder.items() if each.special)}
    kept, text = [], ""
    spans: list[tuple[int, int]] = []
    for token in ids:
        before = len(text.rstrip(REPLACEMENT))
        if token in special:
            spans.append((before, before))
            continue
        kept.append(token)
        text = tokenizer.decode(kept, clean_up_tokenization_spaces=False)
        # Bytes that do not end a character belong to the character that they begin.
        spans.append((before, max(len(text.rstrip(REPLACEMENT)), before + 1)))
    return text, spans


@torch.no_grad()
def generate(model: Any, patches: PatchGroundingProcessor, prompt: Sequenced, **options: Any) -> list[int]:
    """The tokens of the answer that a model generates, greedily by default, none of them an image."""
    tokenizer = patches.tokenizer
    inputs = inputs_on(prompt.inputs, model)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    pictures = tokenizer.convert_tokens_to_ids(patches.picture_tokens)
    greedy = {"do_sample": False, "num_beams": 1, "pad_token_id": pad, "bad_words_ids": [[each] for each in pictures]}
    made = model.generate(**inputs, **greedy | options | {"return_dict_in_generate": False})
    return made[0, prompt.prompt_length :].tolist()


# Options of `generate` with which each pass reads the tokens that follow, of one sequence.
ONE_SEQUENCE = {"max_new_tokens", "min_new_tokens", "suppress_tokens", "do_sample", "temperature", "top_k", "top_p"}


class Rows(NamedTuple):
    """The attention of rows of a sequence: their `positions`, and layer -> (H, Q, R) float32 on the CPU."""

    positions: tuple[int, ...]
    layers: dict[int, Tensor]

    def of(self, wanted: Sequence[int]) -> dict[int, Tensor] | None:
        """Layer -> the rows at these positions; `None` if one was not read."""
        if not {*wanted} <= {*self.positions}:
            return None
        places = [self.positions.index(row) for row in wanted]
        return {layer: each[:, places] for layer, each in self.layers.items()}


class _Late(NamedTuple):
    """Queries of a layer whose attention is read after the last pass: their places, the last keys, how they score."""

    places: list[int]
    queries: list[Tensor]
    key: Tensor
    rule: tuple[Any, ...]


class _RowReader:
    """Reads rows while a model generates: of the prompt, up to `start`, the asked ones, of the answer all.

    A token of the answer sees all before it, and the last pass has the keys of all: until then its query is kept, and
    a step of generation takes no longer. A GPU is not waited for before the end.
    """

    def __init__(self, start: int, rows: Sequence[int], columns: Tensor, layers: Iterable[int]):
        self.rows, self.columns, self.start = sorted({*rows}), columns[None], start
        self.read: dict[int, list[tuple[list[int], Tensor]]] = {layer: [] for layer in layers}
        self._late: dict[int, _Late] = {}
        self._seen = dict.fromkeys(self.read, 0)
        self._pass: tuple[int, list[int], tuple, RowPlans] = (-1, [], (), RowPlans())
        self.complete = True

    def keep(self, layer: int, query: Tensor, key: Tensor, rule: tuple[Any, ...]) -> bool:
        """Keeps the query of one token of the answer that sees all `key`; False if this is not what the pass has."""
        first = self._seen.get(layer, 0)
        if layer not in self.read or first < self.start or (query.shape[2], key.shape[2]) != (1, first + 1):
            return False
        self._seen[layer] = first + 1
        late = self._late[layer] = self._late.get(layer, _Late([], [], key, rule))._replace(key=key)
        late.places.append(first)
        late.queries.append(query)
        return True

    def ask(self, layer: int, length: int, keys: int) -> tuple[tuple, RowPlans]:
        """The rows of a pass of `length` tokens; none in a layer whose cache has not kept all `keys`."""
        first = self._seen.get(layer, 0)
        end = first + length
        if layer not in self.read or keys != end:
            self.complete = self.complete and layer not in self.read
            return (), RowPlans()
        self._seen[layer] = end
        if self._pass[0] != end:  # the first layer of this pass
            rows = [row for row in self.rows if first <= row < end] if first < self.start else [*range(first, end)]
            asked = ((torch.tensor([rows], device=self.columns.device) - first, self.columns),) if rows else ()
            self._pass = (end, rows, asked, RowPlans())
        return self._pass[2:]

    def take(self, report: SupervisedAttention) -> None:
        """Keeps what a layer reports of the pass."""
        self.read[cast(int, report.layer)].append((self._pass[1], _attention(report.pairs[0])))

    def result(self) -> Rows | None:
        for layer, kept in self._late.items():
            columns = self.columns.to(kept.key.device)
            pair = attend_late_rows(torch.cat(kept.queries, 2), kept.key, kept.places, columns, *kept.rule)
            self.read[layer].append((kept.places, _attention(pair)))
        self._late.clear()
        places = {layer: [row for part, _ in parts for row in part] for layer, parts in self.read.items()}
        order = sorted(next(iter(places.values()), ()))
        if not self.complete or any(sorted(each) != order for each in places.values()):
            return None
        rows = {}
        for layer, parts in self.read.items():
            found = torch.cat([part for _, part in parts], 1).cpu()
            rows[layer] = found[:, [places[layer].index(row) for row in order]]
        return Rows(tuple(order), rows)


@torch.no_grad()
def generate_and_read(
    model: Any, patches: PatchGroundingProcessor, prompt: Sequenced, layers: Iterable[int], **options: Any
) -> tuple[list[int], Rows | None]:
    """The tokens of `generate`, and the attention of the prompt's words, its end and all tokens of the answer, read in
    the same passes; `None` where that is not possible: several sequences, much memory, a cache that forgets positions.
    """
    columns, layers = prompt.batch["region_positions"][0], sorted({*layers})
    rows = [*(row for word in prompt.words for row in word.rows), prompt.prompt_length - 1]
    most = len(rows) + options["max_new_tokens"]
    if not options.keys() <= ONE_SEQUENCE or most > rows_at_once(model, len(layers), len(columns)):
        return generate(model, patches, prompt, **options), None
    with reading(model, prompt.prompt_length, rows, columns, layers) as reader:
        # One token more than asked for, in whose pass the last one is read.
        ids = generate(model, patches, prompt, **options | {"max_new_tokens": options["max_new_tokens"] + 1})
    return ids[: options["max_new_tokens"]], reader.result()


@contextmanager
def reading(
    model: Any, start: int, rows: Sequence[int], columns: Tensor, layers: Iterable[int]
) -> Iterator[_RowReader]:
    """Inside it, one generation of one sequence is read."""
    inner = unwrap_model(model)
    reader = _RowReader(start, rows, columns.to(next(inner.parameters()).device), layers)
    inside = find_language_model(inner).modules()
    modules: list[Any] = [each for each in inside if getattr(each, "layer_idx", None) is not None]
    with supervise(inner):
        for module in modules:
            module.row_reader = reader
        try:
            yield reader
        finally:
            for module in modules:
                del module.row_reader


def _attention(pair: AttentionPair | None) -> Tensor:
    """(H, Q, R) float32: the ordinary attention of the rows of one sequence on the columns."""
    log_alpha, log_share = cast(AttentionPair, pair)
    return (log_alpha + cast(Tensor, log_share)[..., None]).exp().masked_fill(is_hidden(log_alpha), 0.0)[0].float()


def rows_at_once(model: Any, layers: int, columns: int) -> int:
    """How many rows of all heads of some layers one pass reads."""
    width = max(call.num_heads for call in find_calls(model))
    return max(1, MOST_BYTES // (4 * layers * width * max(1, columns)))


@torch.no_grad()
def read_rows(
    model: Any, inputs: Mapping[str, Any], rows: Sequence[int], columns: Tensor, layers: Iterable[int] | None = None
) -> dict[int, Tensor]:
    """Layer -> attention (H, Q, R) float32 of Q rows to R columns of one sequence, read without attention maps."""
    inner = unwrap_model(model)
    base = getattr(inner, "base_model", inner)
    device = next(inner.parameters()).device
    layers = head_layers(model) if layers is None else sorted({*layers})
    step = rows_at_once(model, len(layers), len(columns))
    read: dict[int, list[Tensor]] = {}
    with supervise(inner):
        for start in range(0, len(rows), step):
            asked = torch.tensor([list(rows[start : start + step])], device=device)
            outputs = base(
                **inputs_on(inputs, model),
                attention_queries=((asked, columns[None].to(device)),),
                attention_layers=tuple(layers),
                attention_plans=RowPlans(),
                output_attentions=True,
                use_cache=False,
            )
            reports = observed_layers(outputs)
            for number, report in zip(layer_numbers(reports), reports, strict=True):
                read.setdefault(number, []).append(_attention(report.pairs[0]).cpu())
    return {number: torch.cat(parts, 1) for number, parts in read.items()}


@torch.no_grad()
def read_means(model: Any, inputs: Mapping[str, Any]) -> list[Tensor]:
    """The attention maps of all layers, averaged over heads: (N, N) float32 each, on the device of the model."""
    inner = unwrap_model(model)
    base = getattr(inner, "base_model", inner)
    with supervise(inner):
        outputs = base(**inputs_on(inputs, model), attention_mean=True, output_attentions=True, use_cache=False)
    return [cast(Tensor, report.mean)[0].float() for report in observed_layers(outputs)]
