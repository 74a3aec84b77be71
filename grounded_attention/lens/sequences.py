# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One prompt with its answer as a sequence of tokens: its words, its image tokens, and the attention of its rows.

Shape letters: N sequence, Q rows, R image tokens, L layers, H heads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import torch
from PIL import Image
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from grounded_attention.heads.attention_readers import AttentionReader, reading
from grounded_attention.heads.reading import attention_of, inputs_on
from grounded_attention.modeling.finite_numbers import finite_scores
from grounded_attention.processing.grounded_batch import word_inputs
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.patch_sequences import decode_each
from grounded_attention.processing.phrase import Phrase
from grounded_attention.processing.videos import Video
from grounded_attention.supervision import supervise
from grounded_attention.supervision.attention_function import late_states
from grounded_attention.supervision.method import observed_layers
from grounded_attention.supervision.row_plans import AttentionQuery, RowPlans
from grounded_attention.supervision.row_states import HandedStates, RowStates
from grounded_attention.supervision.supervise import (
    PREFIX_MODELS,
    find_encoder,
    is_others,
    returns_maps,
    unwrap_model,
)
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.whole_words import find_words

# Rows of all heads that are read in one pass, or scored at once, in bytes; more rows take further ones.
MOST_BYTES = 2**28
# Inputs of a model with a value for each token.
TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids",
                "cross_attention_mask")  # fmt: skip
DECODER_INPUTS = ("decoder_input_ids", "decoder_attention_mask")
REGIONS = ("region_positions", "region_boxes", "region_image", "region_candidate_mask")


@dataclass(frozen=True)
class Word:
    """A word of a prompt or of its answer.

    Args:
        text (`str`): the word.
        start (`int`): its first character in its text.
        end (`int`): the character after the last one.
        sentence (`int`): its text: an index into `Lens.texts`.
        answer (`bool`): whether it is a word of the answer.
        rows (`tuple[int, ...]`): the positions whose attention is its map: of its tokens, or before them.
    """

    text: str
    start: int
    end: int
    sentence: int
    answer: bool
    rows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sequenced:
    """A prompt with its answer as the model reads it; `batch` has its image tokens, with a batch dimension of 1."""

    inputs: Fields
    prompt_length: int
    texts: tuple[str, ...]
    words: tuple[Word, ...]
    batch: Batch

    @property
    def token_images(self) -> Tensor:
        """(R,) int64: the image of each image token, -1 for tokens without a place in it."""
        return self.batch["region_image"][0].masked_fill(~self.batch["region_candidate_mask"][0], -1)


def read_prompt(
    patches: PatchGroundingProcessor, chat: Any, texts: Sequence[str], images: Sequence[Image.Image | Video]
) -> Sequenced:
    """Makes the sequence of a prompt without an answer, and finds its words."""
    inputs, [prompt] = read_prompts(patches, [chat], [texts], [images])
    return replace(prompt, inputs=inputs)


def read_prompts(
    patches: PatchGroundingProcessor,
    chats: Sequence[Any],
    texts: Sequence[Sequence[str]],
    images: Sequence[Sequence[Image.Image | Video]],
) -> tuple[Fields, list[Sequenced]]:
    """The inputs of a batch of prompts; and each prompt alone, without padding, whose inputs are its tokens."""
    phrases: list[list[Phrase]] = []
    for of_chat in texts:
        phrases.append([])
        # A decoder that answers apart has no rows of the prompt.
        for number, text in enumerate(of_chat if patches.family.decoder is None else ()):
            for start, end in find_words(text):
                phrases[-1].append(Phrase(text[start:end], start, end, sentence=number))
    batch = patches(list(chats), images=list(images), phrases=phrases)
    inputs = PatchGroundingProcessor.model_inputs(batch)
    prompts = []
    for example, of_chat in enumerate(texts):
        kept = batch[word_inputs(batch)[1]][example].bool()
        first = int(kept.int().argmax())
        positions = batch["text_positions"][example] - first
        words = []
        for phrase, mask in zip(phrases[example], batch["phrase_mask"][example], strict=False):
            rows = positions[mask.nonzero().flatten()].tolist()
            if rows:
                words.append(Word(phrase.text, phrase.start, phrase.end, phrase.sentence, False, tuple(rows)))
        tokens = {name: inputs[name][example : example + 1, kept] for name in token_inputs(inputs)}
        shown = batch["region_attention_mask"][example].bool()
        regions = {name: batch[name][example : example + 1, shown] for name in REGIONS}
        if patches.family.decoder is None and patches.family.keys == "sequence":
            regions["region_positions"] = regions["region_positions"] - first
        prompts.append(Sequenced(tokens, int(kept.sum()), tuple(of_chat), tuple(words), regions))
    return inputs, prompts


def token_inputs(inputs: Batch) -> list[str]:
    """The names of the inputs with a value for each token of the sequence in which words are."""
    names = DECODER_INPUTS if DECODER_INPUTS[0] in inputs else TOKEN_INPUTS
    return [name for name in names if name in inputs]


def add_answer(model: Any, tokenizer: Any, prompt: Sequenced, ids: Sequence[int]) -> Sequenced:
    """Appends the tokens of an answer, (n,), and finds its words; the tokens are not decoded and encoded again."""
    text, spans = decode_each(tokenizer, ids)
    words = []
    for start, end in find_words(text):
        rows = []
        for place, (low, high) in enumerate(spans):
            if low < end and high > start:
                rows.append(prompt.prompt_length + place)
        words.append(Word(text[start:end], start, end, len(prompt.texts), True, tuple(rows)))
    inputs = dict(prompt.inputs)
    more = torch.tensor([list(ids)], dtype=torch.long)
    prefix = unwrap_model(model).config.model_type in PREFIX_MODELS
    # What each position is: an answer is read from the left, also where images and prompt see each other.
    added = dict.fromkeys(token_inputs(inputs), more * 0)
    ids_name, mask_name = word_inputs(inputs)
    added |= {ids_name: more, mask_name: torch.ones_like(more), "token_type_ids": more * 0 + int(prefix)}
    if "cross_attention_mask" in inputs:  # an answer sees what the end of its prompt sees
        last = inputs["cross_attention_mask"][:, -1:]
        added["cross_attention_mask"] = last.expand(-1, len(ids), *last.shape[2:])
    for name, values in added.items():
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], values.to(inputs[name].dtype)], 1)
    return replace(prompt, inputs=inputs, texts=(*prompt.texts, text), words=(*prompt.words, *words))


def words_before(sequenced: Sequenced, first: int = 0) -> Sequenced:
    """The words from the first one on with the rows before their own; the first row of all stays."""
    moved = []
    for word in sequenced.words[first:]:
        moved.append(replace(word, rows=tuple(max(row - 1, 0) for row in word.rows)))
    return replace(sequenced, words=(*sequenced.words[:first], *moved))


class _FiniteLogits(LogitsProcessor):
    """Changes nothing. The scores of forbidden tokens are -inf, so the highest one is looked at."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        finite_scores(scores.amax(), "a logit of the answer")
        return scores


def pad_token(tokenizer: Any) -> int:
    """The token with which sequences are padded: any, since it is masked."""
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((token for token in known if token is not None), 0)


@torch.no_grad()
def generate_tokens(model: Any, patches: PatchGroundingProcessor, inputs: Batch, **options: Any) -> Tensor:
    """The tokens of the answers that a model generates, (B, n), greedily by default, none of them an image.

    Prompts of several lengths are padded on the left.
    """
    inputs = inputs_on(inputs, model)
    pictures = [[each] for each in patches.picture_ids]
    pad = pad_token(patches.tokenizer)
    greedy = {"do_sample": False, "num_beams": 1, "pad_token_id": pad, "bad_words_ids": pictures}
    checks = LogitsProcessorList([*options.get("logits_processor", ()), _FiniteLogits()])
    fixed = {"return_dict_in_generate": False, "logits_processor": checks}
    asked = inputs[word_inputs(inputs)[0]]
    count, length = asked.shape
    why = f"its generate gives no answer to the prompt of {length} tokens"
    try:
        tokens = model.generate(**inputs, **greedy | options | fixed)
        tokens = tokens[:: len(tokens) // count]  # of several answers to one prompt the first
    except (AttributeError, TypeError) as error:
        if not is_others(unwrap_model(model)):
            raise
        raise ValueError(f"{type(model).__name__}: {why} ({error}): give answer=") from error
    if tokens[:, :length].equal(asked):
        return tokens[:, length:]
    if tokens.shape[1] >= length:  # fewer are the answer alone
        raise ValueError(f"{type(model).__name__}: {why}, but {tokens.shape[1]} tokens: give answer=")
    return tokens


def generate(model: Any, patches: PatchGroundingProcessor, prompt: Sequenced, **options: Any) -> list[int]:
    """The tokens of the answer to one prompt, see `generate_tokens`."""
    return generate_tokens(model, patches, prompt.inputs, **options)[0].tolist()


# Options of `generate` with which each pass reads the tokens that follow, of one sequence.
ONE_SEQUENCE = {"max_new_tokens", "min_new_tokens", "suppress_tokens", "do_sample", "temperature", "top_k", "top_p"}
ONE_SEQUENCE |= {"stopping_criteria"}


class _Part(NamedTuple):
    """Rows that one pass has in a layer: their places, what they are computed from but for the keys, and how many."""

    places: list[int]
    states: RowStates
    keys: int


class RowReader(AttentionReader):
    """Keeps what rows are computed from while a model generates, and computes those that are asked for afterwards.

    Of the prompt, up to `start`, it has the given rows and the last one, of the answer all. Queries are small, and the
    cache of the last pass has the keys of all: a step of generation takes no longer, and a GPU is not waited for.
    """

    def __init__(self, start: int, rows: Sequence[int], columns: Tensor, layers: Iterable[int]):
        self._start = start
        self._columns = columns[None]
        # The last row apart, since heads are chosen by it alone.
        self._prompt = [sorted({*rows} - {start - 1}), [start - 1]]
        self._seen = dict.fromkeys(layers, 0)
        self._parts: dict[int, list[_Part]] = {layer: [] for layer in self._seen}
        self._late: dict[int, tuple[list[int], list[Tensor], tuple[Any, ...]]] = {}
        self._keys: dict[int, Tensor] = {}
        self._pass: tuple[Any, list[tuple[list[int], AttentionQuery]], RowPlans] = (None, [], RowPlans())
        self._complete = True

    def keep(self, handed: HandedStates) -> None:
        layer, query, key, late, own, read = handed
        if layer not in self._seen or not self._complete:
            return
        first = self._seen[layer]
        length = first + query.shape[2]
        keys = key.shape[2]
        if own not in (0, length):  # the cache has not kept all
            self._complete = False
            self._parts = {}
            self._late = {}
            self._keys = {}
            return
        self._seen[layer], self._keys[layer] = length, key
        if late and first >= self._start and query.shape[2] == 1:
            places, queries, _ = self._late.setdefault(layer, ([], [], late))
            places.append(first)
            queries.append(query)
            return
        if self._pass[0] != (length, key.device):  # the first layer of this pass on this device
            if first < self._start:
                parts = self._prompt
            else:
                parts = [[*range(first, length)]]
            inside = [[row for row in part if first <= row < length] for part in parts]
            columns = self._columns.to(key.device)
            columns = columns.masked_fill(columns >= keys, -1)  # of a prompt that is read in parts
            asked = [(part, (torch.tensor([part], device=key.device) - first, columns)) for part in inside if part]
            self._pass = (length, key.device), asked, RowPlans()
        _, asked, plans = self._pass
        for part, one in asked:
            (states,) = read((one,), plans)
            kept = states._replace(rows=states.rows.clone(), keys=key.new_empty(0))  # no parts of large tensors
            self._parts[layer].append(_Part(part, kept, keys))

    @torch.no_grad()
    def of(self, wanted: Sequence[int], layers: Iterable[int] | None = None) -> dict[int, Tensor] | None:
        """Layer -> attention of rows (H, Q, R), float32 on the CPU; `None` if not all of them were kept."""
        read = {}
        if not self._complete:
            return None
        for layer in self._seen if layers is None else layers:
            index: dict[int, int] = {}
            found = []
            for places, states in self._states(layer):
                if not {*places}.isdisjoint(wanted):
                    index |= {row: len(index) + number for number, row in enumerate(places)}
                    found.append(attention_of(states.pair())[0].float())
            if not {*wanted} <= index.keys():
                return None
            read[layer] = torch.cat(found, 1)[:, [index[row] for row in wanted]].cpu()
        return read

    def _states(self, layer: int) -> Iterator[tuple[list[int], RowStates]]:
        """What rows are computed from, a few at once: their scores of all keys have a bound."""
        for places, states in self._kept(layer):
            for part in few_at_once(states):
                yield places[part], states.select_rows(part)

    def _kept(self, layer: int) -> Iterator[tuple[list[int], RowStates]]:
        for places, states, number in self._parts[layer]:
            yield places, states._replace(keys=self._keys[layer][:, :, :number])
        if layer in self._late:
            places, queries, rule = self._late[layer]
            key = self._keys[layer]
            yield places, late_states(torch.cat(queries, 2), key, places, self._columns.to(key.device), *rule)


Reader = TypeVar("Reader", bound=RowReader)


@torch.no_grad()
def generate_and_read(
    model: Any,
    patches: PatchGroundingProcessor,
    prompt: Sequenced,
    layers: Iterable[int],
    make_reader: Callable[..., Reader] = RowReader,  # type: ignore[assignment]
    **options: Any,
) -> tuple[list[int], Reader | None]:
    """The tokens of `generate`, and what the attention of the prompt's words, its end and all tokens of the answer is
    computed from, kept in the same passes; `None` for several sequences.
    """
    has_maps = returns_maps(model) and make_reader is RowReader
    if has_maps or not options.keys() <= ONE_SEQUENCE:
        return generate(model, patches, prompt, **options), None
    rows = [row for word in prompt.words for row in word.rows]
    reader = make_reader(prompt.prompt_length, rows, prompt.batch["region_positions"][0], layers)
    with reading(model, reader):
        # One token more than asked for, in whose pass the last one is read.
        ids = generate(model, patches, prompt, **options | {"max_new_tokens": options["max_new_tokens"] + 1})
    return ids[: options["max_new_tokens"]], reader


def few_at_once(states: RowStates) -> Iterator[slice]:
    """Parts of the rows of one sequence, whose scores of all keys have a bound."""
    count = states.rows.shape[2]
    most = max(1, MOST_BYTES // (4 * states.rows.shape[1] * states.keys.shape[2]))
    for start in range(0, count, most):
        yield slice(start, start + most)


@torch.no_grad()
def read_means(model: Any, inputs: Batch) -> list[Tensor]:
    """The attention maps of all layers, averaged over heads: (N, N) float32 each, on the device of the model."""
    inner = unwrap_model(model)
    base = find_encoder(inner)
    with supervise(inner):
        outputs = base(**inputs_on(inputs, model), attention_mean=True, output_attentions=True, use_cache=False)
    return [cast(Tensor, report.mean)[0].float() for report in observed_layers(outputs)]
