# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Steers chosen attention heads towards parts of the image, also while a model generates text.

A number is added to the scores of chosen columns before the softmax, as Gaze Heads does (arXiv 2606.14703). Shape
letters: B batch, H heads, N query positions, M key positions, K steered columns.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from grounded_attention.utils.named_types import Head

from .attention_function import eager_function, reads_other_sequence
from .head_masking import attention_modules, group_heads
from .supervise import find_language_model, reads_image_apart, unwrap_model

PREFIX = "steered_"
STEERED = ("sdpa", "eager", "supervised_sdpa", "supervised_eager")


class SteeredColumns(NamedTuple):
    """The positions of a sequence that heads are steered to, and from where on."""

    columns: Tensor  # (B, K) int64 positions in the sequence; -1 is padding
    first_row: Tensor  # (B,) int64: rows from this position on are steered


class _Steering(NamedTuple):
    """What an attention module adds to its scores."""

    heads: list[int]
    target: SteeredColumns
    strength: float


@contextmanager
def steer_heads(
    model: Any, heads: Iterable[Head], columns: SteeredColumns | Tensor, strength: float
) -> Iterator[None]:
    """Adds a number to the scores of chosen heads at chosen columns, before the softmax.

    Inside the context `model(...)` and `model.generate(...)` are steered, with a cache of keys too. The columns are
    those of the batch that the model reads. Beams and several sequences for each prompt are supported.

    Args:
        model (`PreTrainedModel`): the model, on the back ends sdpa or eager: a decoder, or a model of this project
            with one sequence of words and regions (VL-BERT, VisualBERT).
        heads (`Iterable[tuple[int, int]]`): pairs of layer and head, counted from 0.
        columns (`SteeredColumns` or `Tensor`): of `box_columns`; or positions (B, K), -1 for padding, then rows
            after the last of them are steered, or all rows of a model that reads regions.
        strength (`float`): the number; each steered column gets exp(strength) times its weight before normalisation.
            Negative numbers steer away.

    Raises:
        ValueError: if the back end takes no bias for single heads (FlashAttention, flex), a layer has a sliding window
            (its cache forgets positions) or attends to another sequence, or a head, a position or the strength is not
            valid.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from grounded_attention import steer_heads
        >>> sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=99, **sizes))
        >>> with steer_heads(model, [(1, 3)], torch.tensor([[2, 3]]), strength=4.0):
        ...     text = model.generate(torch.arange(6)[None], max_new_tokens=3, do_sample=False)
    """
    language_model = find_language_model(model)
    grouped = group_heads(model, heads)
    modules = attention_modules(model)
    before = language_model.config._attn_implementation or "eager"
    _check(language_model, before, [modules[layer] for layer in grouped], strength)
    config = unwrap_model(model).config
    reads_regions = getattr(config, "grounding_calls", None) is not None or reads_image_apart(model)
    target = _check_columns(columns, reads_regions)
    language_model.set_attn_implementation(PREFIX + before)
    try:
        for layer, chosen in grouped.items():
            modules[layer].head_steering = _Steering(chosen, target, float(strength))
        yield
    finally:
        for layer in grouped:
            modules[layer].__dict__.pop("head_steering", None)
        language_model.set_attn_implementation(before)


def _check(model: Any, back_end: str, modules: Sequence[Any], strength: float) -> None:
    if back_end.startswith(PREFIX):
        raise ValueError("the model is steered already; leave the first context, or give all heads to one")
    if back_end not in STEERED:
        raise ValueError(
            f"attention back end '{back_end}' takes no bias for single heads: load the model with "
            "attn_implementation='sdpa'"
        )
    if not math.isfinite(strength):
        raise ValueError(f"strength={strength}, expected a finite number")
    apart = reads_image_apart(model)
    alike = [each for each in modules if reads_other_sequence(each) is apart and "Merged" not in type(each).__name__]
    other = [module.layer_idx for module in modules if module not in alike]
    if other:
        raise ValueError(
            f"layers {other} of {type(model).__name__} attend to another sequence than that of the image "
            "(cross-attention): they cannot be steered; choose heads of other layers"
        )
    own = [module for module in modules if not reads_other_sequence(module)]
    sliding = [module.layer_idx for module in own if _slides(model.config, module)]
    if sliding:
        raise ValueError(
            f"layers {sliding} of {type(model).__name__} attend in a sliding window, whose cache forgets positions: "
            "they cannot be steered; choose heads of other layers"
        )


def _slides(config: Any, module: Any) -> bool:
    """Whether a layer sees the last positions only; models without kinds of layers have one window for all."""
    if getattr(config, "layer_types", None):
        return config.layer_types[module.layer_idx] in ("sliding_attention", "hybrid_sliding")
    return getattr(config, "sliding_window", None) is not None


def _check_columns(columns: SteeredColumns | Tensor, reads_regions: bool) -> SteeredColumns:
    positions = columns.columns if isinstance(columns, SteeredColumns) else columns
    if positions.dim() != 2 or positions.dtype != torch.int64 or (positions < -1).any():
        raise ValueError(f"columns of shape {tuple(positions.shape)} {positions.dtype}, expected (B, K) int64 from -1")
    if isinstance(columns, SteeredColumns):
        return columns
    if not positions.shape[1]:
        raise ValueError("columns is empty; give at least one position for each sequence, -1 for none")
    last = columns.amax(1)
    return SteeredColumns(columns, torch.zeros_like(last) if reads_regions else last + 1)


def _steered_mask(module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, steering: _Steering) -> Tensor:
    """The mask of all heads with the bias, (B, H, N, M), additive."""
    rows = query.shape[2]
    length = key.shape[2]
    batch = len(steering.target.columns)
    if query.shape[0] % batch:
        raise ValueError(f"columns for {batch} sequences, but the model reads {query.shape[0]}")
    columns, first_row = (
        part.to(query.device).repeat_interleave(query.shape[0] // batch, 0) for part in steering.target
    )
    if columns.numel() and int(columns.max()) >= length:
        raise ValueError(f"position {int(columns.max())} is outside of the sequence of {length} tokens")
    visible = _visible(module, rows, length, mask, query)
    hidden = torch.finfo(query.dtype).min
    bias = torch.zeros(len(columns), length + 1, device=query.device, dtype=query.dtype)
    bias.scatter_(1, columns.masked_fill(columns < 0, length), steering.strength)
    if not reads_other_sequence(module):
        places = _row_positions(visible, rows, length)
    elif rows > 1:  # a whole prompt; keys of an image do not tell where its rows are
        places = torch.arange(rows, device=query.device)[None]
    else:
        places = first_row[:, None]  # a new token comes after all of them
    steered = places >= first_row[:, None]  # (B, N)
    added = (steered[..., None] * bias[:, None, :length])[:, None]  # (B, 1, N, M)
    chosen = torch.zeros(query.shape[1], device=query.device, dtype=query.dtype)
    chosen[steering.heads] = 1
    if visible.dtype != torch.bool:
        plain = visible
    else:
        plain = torch.zeros_like(added).masked_fill(~visible, hidden)
    # Adding to the lowest number of the type could make it infinite.
    return (plain + added * chosen[:, None, None]).clamp(min=hidden)


def _visible(module: nn.Module, rows: int, length: int, mask: Tensor | None, query: Tensor) -> Tensor:
    """The mask of the back end, (B or 1, 1 or H, N, M); without one, SDPA hides later keys in a longer prompt."""
    if mask is not None:
        return mask[..., :length]
    places = torch.arange(length, device=query.device)
    if rows > 1 and not reads_other_sequence(module) and getattr(module, "is_causal", True):
        return (places <= places[length - rows :, None])[None, None]
    return torch.ones(1, 1, rows, length, dtype=torch.bool, device=query.device)


def _row_positions(visible: Tensor, rows: int, length: int) -> Tensor:
    """The position of each row in the sequence, (1 or B, N)."""
    if rows in (1, length):  # a whole prompt, or one new token at the end
        return torch.arange(length - rows, length, device=visible.device)[None]
    # A part of a prompt, or a cache with room for later keys: a row sees itself, and nothing after it.
    if visible.dtype == torch.bool:
        shown = visible
    else:
        shown = visible > torch.finfo(visible.dtype).min / 2
    return (shown[:, 0] * torch.arange(1, length + 1, device=visible.device)).argmax(-1)


def _steered(back_end: str) -> Callable:
    def steered_attention_forward(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """The attention of a back end, with the bias of `steer_heads` on the heads of this module."""
        steering = getattr(module, "head_steering", None)
        if steering is not None:
            attention_mask = _steered_mask(module, query, key, attention_mask, steering)
        function = eager_function(module) if back_end == "eager" else ALL_ATTENTION_FUNCTIONS[back_end]
        return function(module, query, key, value, attention_mask, **kwargs)

    return steered_attention_forward


for _back_end in STEERED:
    AttentionInterface.register(PREFIX + _back_end, _steered(_back_end))
    # A name without a mask function gets no mask, and padding would be attended.
    AttentionMaskInterface.register(PREFIX + _back_end, ALL_MASK_ATTENTION_FUNCTIONS[_back_end])
