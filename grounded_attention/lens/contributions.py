# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What each position adds, through the attention heads, to the logit of a token that a decoder says.

The share of position m in head h of layer l is alpha * (v · g): the attention of the row, the value at m, and the
gradient of the logit with respect to the output of the head along the direct path ([`direct_path`]). All shares add up
to the part of the logit that attention gave; embeddings, feed-forward layers, other mixers, biases and a limit of the
logits are the rest.

Queries, keys, values and outputs are kept while the model answers. On the direct path all layers work on one position
at a time, so the rows that are asked for are computed once more alone, with the outputs of attention as they were.

Shape letters: N sequence, M key positions, Q rows, L layers, H heads, G heads of values, d head width, D width.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import align_module_device
from torch import Tensor, nn
from transformers import PreTrainedModel

from grounded_attention.heads.attention_readers import AttentionReader, reading
from grounded_attention.heads.direct_path import NotFollowed, direct_path, innermost
from grounded_attention.heads.reading import inputs_on
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.head_masking import output_projections
from grounded_attention.supervision.row_states import RowStates, score
from grounded_attention.supervision.row_states import cap as limit
from grounded_attention.supervision.score_masks import LOWEST_SCORE
from grounded_attention.supervision.supervise import (
    find_language_model,
    head_layers,
    numbered_attention,
    reads_image_apart,
    returns_maps,
    unwrap_model,
)
from grounded_attention.utils.named_types import Batch, Fields, Head

from .sequences import RowReader, Sequenced, Word
from .two_hop import join_hops

# How far the states of rows that are computed again may be from those of the answer, beside rounding.
STATE_ERROR = 1e-3


@dataclass(frozen=True, eq=False)
class Unembedding:
    """How a model makes logits of its last states: `factor` * (weight @ state + bias), within a limit `cap`.

    Args:
        weight (`Tensor`): (V, D).
        bias (`Tensor`, *optional*): (V,).
        factor (`float`): of all logits (Granite, Cohere).
        cap (`float`, *optional*): of cap * tanh(logit / cap) (Gemma).
    """

    weight: Tensor
    bias: Tensor | None
    factor: float
    cap: float | None

    @classmethod
    @torch.no_grad()
    def of_model(cls, model: Any, state: Tensor, logits: Tensor) -> "Unembedding":
        """Finds the factor from the last state (D,) of a position and all its logits (V,)."""
        inner = unwrap_model(model)
        head = inner.get_output_embeddings() or find_language_model(inner).get_output_embeddings()
        if head is None or head.weight.shape[1] != len(state):
            raise NotFollowed(f"the last states of {type(inner).__name__} are not known, so what adds to them is not")
        with align_module_device(head):  # accelerate may have put its weight elsewhere
            weight = head.weight.detach()
            bias = getattr(head, "bias", None)
        linear = nn.functional.linear(state.to(weight.device, weight.dtype), weight, bias).float()
        cap = getattr(inner.config.get_text_config(), "final_logit_softcapping", None)
        given = logits.to(linear.device).float()
        known = given > LOWEST_SCORE  # a model may forbid tokens
        given, linear = given[known], linear[known]
        if cap is not None:
            given = cap * torch.atanh(given / cap)
        factor = float((given @ linear) / (linear @ linear))
        error = float((given - factor * linear).norm() / given.norm())
        if not error <= STATE_ERROR + 8 * torch.finfo(logits.dtype).eps:
            raise NotFollowed(
                f"the logits of {type(inner).__name__} are {error:.2g} from a factor times its output embeddings, so "
                "what adds to them cannot be read; take another form"
            )
        return cls(weight, bias, factor, cap)

    def directions(self, tokens: Tensor) -> Tensor:
        """(Q, D) float32: what last states are multiplied by to give logits of tokens (Q,), without bias and cap."""
        return self.factor * self.weight[tokens.to(self.weight.device)].float()

    def of_tokens(self, tokens: Tensor) -> "Unembedding":
        """That of some tokens (T,) alone, in their order."""
        tokens = tokens.to(self.weight.device)
        return replace(self, weight=self.weight[tokens], bias=None if self.bias is None else self.bias[tokens])

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """The logits (Q, V) float32 of states (Q, D), as the model gives them."""
        linear = nn.functional.linear(states.to(self.weight.device), self.weight, self.bias).float()
        return limit(self.factor * linear, self.cap)


class PathReader(RowReader):
    """Keeps also what contributions of rows are computed from: values and outputs of attention, inputs, and states.

    Args:
        start, rows, columns, layers: as for [`RowReader`]; `columns` are the image tokens.
    """

    def __init__(self, start: int, rows: Sequence[int], columns: Tensor, layers: Iterable[int]):
        super().__init__(start, rows, columns, layers)
        self._wanted = {*rows, start - 1}
        self.length = 0
        self._count = 0  # positions of this pass
        self._index: list[int] = []  # the wanted rows among them
        self._places: dict[int, int] = {}  # row -> its place in what is kept
        self._values: dict[int, Tensor] = {}
        self._given: dict[int, list[Tensor]] = {}
        self._mixed: dict[nn.Module, list[Any]] = {}
        self._inputs: dict[str, list[Tensor]] = {}
        self._last: list[Tensor] = []
        self._logits = torch.empty(0)

    def watch(self, model: Any) -> Sequence[Any]:
        check_followed(model)
        decoder = find_decoder(model)
        handles = [decoder.register_forward_pre_hook(self._begin, with_kwargs=True)]
        handles.append(decoder.register_forward_hook(self._end))
        for part in {model, find_language_model(model)}:  # generate of others may run the latter alone
            handles.append(part.register_forward_hook(self._keep_logits))
        for mixer in other_mixers(decoder):
            handles.append(mixer.register_forward_hook(self._keep_mixed))
        return handles

    def _begin(self, decoder: Any, args: tuple, kwargs: Fields) -> None:
        call = inspect.signature(decoder.forward).bind(*args, **kwargs).arguments
        given = {**call, **call.get("kwargs", {})}
        if given.get("inputs_embeds") is None:
            given["inputs_embeds"] = decoder.get_input_embeddings()(given["input_ids"])
        first = self.length
        count = given["inputs_embeds"].shape[1]
        self._count = count
        self.length += count
        rows = [row for row in range(first, self.length) if row in self._wanted or row >= self._start]
        self._index = [row - first for row in rows]
        for row in rows:
            self._places[row] = len(self._places)
        for name, value in given.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.shape[:2] == (1, count):
                self._inputs.setdefault(name, []).append(self._of_rows(value))

    def _of_rows(self, states: Tensor) -> Tensor:
        """The wanted rows of (1, N, ...)."""
        if len(self._index) == states.shape[1]:
            return states
        return states[:, self._index]

    def _end(self, decoder: Any, args: tuple, outputs: Any) -> None:
        self._last.append(self._of_rows(outputs[0]))

    def _keep_logits(self, model: Any, args: tuple, outputs: Any) -> None:
        if hasattr(outputs, "logits"):
            self._logits = outputs.logits[0, -1].clone()  # not a part of all

    def unembedding(self, model: Any) -> Unembedding:
        """How the model makes logits, from those of the last position."""
        return Unembedding.of_model(model, self._last[-1][0, -1], self._logits)

    def _keep_mixed(self, mixer: nn.Module, args: tuple, output: Any) -> None:
        kept = _first(output)
        if not isinstance(kept, Tensor) or kept.shape[:2] != (1, self._count):
            return  # no states of positions, such as the tokens that an indexer chooses
        kept = self._of_rows(kept)
        if isinstance(output, tuple):
            output = (kept, *(None for _ in output[1:]))
        else:
            output = kept
        self._mixed.setdefault(mixer, []).append(output)

    def keep_output(self, module: Any, value: Tensor, output: Tensor) -> Tensor:
        if module.layer_idx in self._seen:
            self._values[module.layer_idx] = value
            self._given.setdefault(module.layer_idx, []).append(self._of_rows(output))
        return output

    def states(self, rows: Sequence[int]) -> Tensor:
        """The last states of rows, (Q, D), after the last norm."""
        return self._choose(self._last, rows)[0]

    def _choose(self, parts: Sequence[Tensor], rows: Sequence[int]) -> Tensor:
        return torch.cat(list(parts), 1)[:, [self._places[row] for row in rows]]

    def gradients(self, model: Any, rows: Sequence[int], directions: Tensor) -> dict[int, Tensor]:
        """Layer -> (H, Q, d) float32: what the output of each head adds to `directions` (Q, D) · last state."""
        decoder = find_decoder(model)
        projections = [module for modules, _ in output_projections(model).values() for module in modules]
        replay = AttentionReader()
        replay.outputs = {}
        for layer, parts in self._given.items():
            replay.outputs[layer] = self._choose(parts, rows).detach().requires_grad_()
        inputs = {name: self._choose(parts, rows) for name, parts in self._inputs.items()}
        with torch.enable_grad(), ExitStack() as stack:
            stack.enter_context(reading(model, replay))
            stack.enter_context(direct_path(decoder, projections))
            for mixer, parts in self._mixed.items():
                stack.enter_context(_gives(mixer, parts, lambda parts: self._choose(parts, rows)))
            last = decoder(**inputs, use_cache=False)[0][0]
            self._check(type(decoder).__name__, last.detach(), self.states(rows))
            read = (last.float() * directions.to(last.device)).sum()
            leaves = replay.outputs
            found = torch.autograd.grad(read, [*leaves.values()], allow_unused=True) if read.requires_grad else [None]
        gradients = {}
        for layer, gradient in zip(leaves, found, strict=False):
            if gradient is None:
                raise NotFollowed(
                    f"{type(decoder).__name__}: what the heads of layer {layer} give reaches the logits along a path "
                    "that is not known, so contributions cannot be read; take another form"
                )
            gradients[layer] = gradient[0].transpose(0, 1).float()
        return gradients

    def _check(self, name: str, again: Tensor, states: Tensor) -> None:
        error = float((again.float() - states.float()).norm() / states.float().norm())
        if not error <= STATE_ERROR + 8 * torch.finfo(states.dtype).eps:
            raise NotFollowed(
                f"the rows of {name}, computed once more alone, are {error:.2g} from those of the answer: its layers "
                "mix positions outside of attention, so contributions cannot be read; take another form"
            )

    @property
    def is_complete(self) -> bool:
        """Whether the cache had all keys, so that the rows of all passes can be read."""
        return self._complete

    def paths(self, rows: Sequence[int], gradients: dict[int, Tensor]) -> Iterator["HeadPath"]:
        """The rows of each layer, a few at once; their attention has a bound."""
        number = {row: place for place, row in enumerate(rows)}
        for layer, of_layer in gradients.items():
            for places, states in self._states(layer):
                asked = [place for place, row in enumerate(places) if row in number]
                if not asked:
                    continue
                found = [number[places[place]] for place in asked]
                values = self._values[layer][0, :, : states.keys.shape[2]]
                yield HeadPath(layer, found, states.select_rows(asked), values, of_layer[:, found])

    def flow(self, path: "HeadPath", through: Sequence[int]) -> Tensor:
        """(H, Q, M): attention of rows to the positions `through`, and from there to the image tokens."""
        seen = path.attention()
        flow = torch.zeros_like(seen)
        read = self.of(through, [path.layer]) or {}
        flow[..., self._columns[0].to(seen.device)] = join_hops(seen[..., through], read[path.layer].to(seen.device))
        return flow


@dataclass(frozen=True, eq=False)
class HeadPath:
    """What rows of a layer read: `rows` are their places among those asked for, `gradients` are (H, Q, d)."""

    layer: int
    rows: list[int]
    states: RowStates
    values: Tensor  # (G, M, d)
    gradients: Tensor

    def attention(self) -> Tensor:
        """(H, Q, M) float32."""
        return self.states.attention()[0]

    def readings(self) -> Tensor:
        """(H, Q, M) float32: what the value at each position adds to the logit of a row that attends to it alone."""
        return score(self.gradients, self.values[..., : self.gradients.shape[-1]].float())


def _first(output: Any) -> Tensor:
    if isinstance(output, tuple):
        return output[0]
    return output


def check_followed(model: Any) -> None:
    """Raises [`NotFollowed`] for a model whose words read the image by cross-attention, or in attention of its own."""
    if reads_image_apart(model) or returns_maps(model):
        raise NotFollowed(
            f"{type(unwrap_model(model)).__name__} reads the image by cross-attention, or in attention of its own "
            "code, along which contributions are not followed; take another form"
        )


@contextmanager
def _gives(mixer: Any, outputs: Sequence[Any], choose: Callable[[Sequence[Tensor]], Tensor]) -> Iterator[None]:
    """Inside it a mixer of positions gives the rows of its outputs that `choose` takes."""
    states = choose([_first(each) for each in outputs])
    if isinstance(outputs[0], tuple):
        given: Any = (states, *(None for _ in outputs[0][1:]))
    else:
        given = states
    forward = mixer.forward
    mixer.forward = lambda *args, **kwargs: given
    try:
        yield
    finally:
        mixer.forward = forward


def find_decoder(model: Any) -> Any:
    """The innermost model that has all layers of the language model; its output is the last state."""
    return innermost(find_language_model(model), PreTrainedModel)


def other_mixers(decoder: nn.Module) -> list[nn.Module]:
    """The innermost modules with the number of a layer that are no softmax attention: state spaces, convolutions."""
    numbered = [module for module in decoder.modules() if getattr(module, "layer_idx", None) is not None]
    attention = {*numbered_attention(decoder)}
    mixers = []
    for module in numbered:
        inside = {*module.modules()} - {module}
        if module not in attention and inside.isdisjoint(numbered):
            mixers.append(module)
    return mixers


def read_path(
    model: Any,
    inputs: Batch,
    start: int,
    rows: Sequence[int],
    columns: Tensor,
    **options: Any,
) -> PathReader:
    """Reads a sequence in one pass; the arguments are those of [`PathReader`], with all layers by default."""
    inner = unwrap_model(model)
    options.setdefault("layers", head_layers(model))
    reader = PathReader(start, rows, columns, **options)
    asked = inputs_on(inputs, model)
    if "logits_to_keep" in inspect.signature(inner.forward).parameters:
        asked["logits_to_keep"] = 1
    with torch.no_grad(), reading(model, reader):
        inner(**asked, use_cache=False, return_dict=True)
    return reader


def contributions(
    model: Any,
    reader: PathReader,
    rows: Sequence[int],
    directions: Tensor,
    heads: Collection[Head] = (),
    through: Sequence[int] = (),
) -> Tensor:
    """What each position adds to a logit of each row, through some heads or all.

    Args:
        model (`PreTrainedModel`): the decoder that was read.
        reader ([`PathReader`]): what was kept of its pass.
        rows (`Sequence[int]`): Q rows, each once.
        directions (`Tensor`): (Q, D), of [`Unembedding.directions`]; of two tokens their difference, for a contrast.
        heads (collection of (layer, head), *optional*): the heads; by default all.
        through (`Sequence[int]`, *optional*): positions before the rows, such as those of a reasoning. Read is then
            only what image tokens add along two hops of a head: from a row to these, and from there to the image.

    Returns:
        `Tensor`: (Q, N) float32 on the CPU, in logits, of either sign.

    Raises:
        NotFollowed: if the layers of the model cannot be followed; the message says why.
    """
    total = torch.zeros(len(rows), reader.length)
    for path in reader.paths(rows, reader.gradients(model, rows, directions)):
        attention = reader.flow(path, through) if through else path.attention()
        shares = attention * path.readings()
        if heads:
            chosen = [head for layer, head in heads if layer == path.layer]
            shares = shares[chosen]
        summed = shares.sum(0).cpu()
        total[path.rows, : summed.shape[-1]] += summed
    return total


def word_contributions(
    model: Any,
    patches: PatchGroundingProcessor,
    whole: Sequenced,
    shift: int,
    heads: Collection[Head] = (),
    against: Mapping[str, str] | None = None,
    reader: PathReader | None = None,
    through: Sequence[int] = (),
) -> Tensor:
    """What each position adds to the logits of the tokens of words, (W, N) float32: the mean of a word's tokens.

    Args:
        model (`PreTrainedModel`): the decoder.
        patches (`PatchGroundingProcessor`): its processor.
        whole ([`Sequenced`]): the prompt with its answer, with W words.
        shift (`int`): how many positions after a row the token is whose logit is read: 0 of rows of the words' own
            tokens, 1 of the rows before them. Rows of image tokens say no word and add nothing.
        heads (collection of (layer, head), *optional*): the heads; by default all.
        against (`Mapping[str, str]`, *optional*): word -> the word instead of it. Read is then the difference of the
            two logits, at the first token that is another one.
        reader ([`PathReader`], *optional*): what was kept while the model answered; by default a pass reads it.
        through (`Sequence[int]`, *optional*): as for [`contributions`].
    """
    check_followed(model)
    ids = whole.inputs["input_ids"][0]
    columns = whole.batch["region_positions"][0]
    words, instead = _contrasted(patches.tokenizer, whole.words, ids.tolist(), shift, against or {})
    images = {*columns.tolist()}
    rows = sorted({row for word in words for row in word.rows} - images)
    if not rows:
        return torch.zeros(len(words), len(ids))
    if reader is None or not reader.is_complete:
        reader = read_path(model, whole.inputs, whole.prompt_length, [*rows, *through], columns)
    unembedding = reader.unembedding(model)
    directions = unembedding.directions(ids[[row + shift for row in rows]])
    for row, token in instead.items():
        directions[rows.index(row)] -= unembedding.directions(torch.tensor([token]))[0]
    return word_weights(words, rows) @ contributions(model, reader, rows, directions, heads, through)


def word_weights(words: Sequence[Word], rows: Sequence[int]) -> Tensor:
    """(W, Q): of each word the mean of those of its rows that are among `rows`."""
    weights = torch.zeros(len(words), len(rows))
    places = {row: place for place, row in enumerate(rows)}
    for number, word in enumerate(words):
        found = [places[row] for row in word.rows if row in places]
        weights[number, found] = 1 / max(len(found), 1)
    return weights


def _contrasted(
    tokenizer: Any, words: Sequence[Word], ids: Sequence[int], shift: int, against: Mapping[str, str]
) -> tuple[list[Word], dict[int, int]]:
    """The words, those with another word at one row alone; and of these rows the token of the other word."""
    missing = against.keys() - {word.text for word in words}
    if missing:
        raise ValueError(f"against: prompt and answer have no word {sorted(missing)[0]!r}")
    read = []
    instead = {}
    for word in words:
        if word.text in against:
            row, token = _first_other(tokenizer, word, [ids[row + shift] for row in word.rows], against[word.text])
            word = replace(word, rows=(row,))
            instead[row] = token
        read.append(word)
    return read, instead


def _first_other(tokenizer: Any, word: Word, tokens: Sequence[int], other: str) -> tuple[int, int]:
    """The row of the first of the tokens of a word that `other` has not, and what this has there."""
    for before in ("", " "):
        if tokenizer(before + word.text, add_special_tokens=False)["input_ids"] == tokens:
            others = tokenizer(before + other, add_special_tokens=False)["input_ids"]
            for row, token, another in zip(word.rows, tokens, others, strict=False):
                if token != another:
                    return row, another
            raise ValueError(f"against: {word.text!r} and {other!r} begin with the same tokens; give another word")
    raise ValueError(
        f"against: the tokens of {word.text!r} here are not those of the word alone, so that what they are for "
        f"{other!r} is not known; give another word"
    )
