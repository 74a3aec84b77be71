# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""An attention function that reports the attention of chosen rows, on any back end of transformers.

Equation 6 of the VGP paper (Samaran et al., 2021) normalises attention over the supervised columns only. The rest of a
row cancels, so no attention map is needed. The function returns the ordinary output of the back end, and also scores
the queried rows against the keys, from the same queries and keys, before dropout.

Shape letters: B batch, H heads, N query positions, M key positions (N in self-attention), Q queried rows, K queried
columns, d head width.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from grounded_attention.modeling.two_streams import ConfigView, attend_packed_keys
from grounded_attention.utils.named_types import Fields

from .head_mean import head_mean
from .row_plans import AttentionQuery, RowPlans, UnreadRows
from .row_states import AttentionPair, HandedStates, RowStates, layers_at_once
from .score_masks import LOWEST_SCORE, BiasedMask, mask_of_rows, mask_whole_rows

# Back end -> the name to set on a model; other registered ones, such as kernels of the Hub, are added when first used.
# The names have no "flash" and no "/", because transformers tries to load a kernel for every name with one.
SUPERVISED_IMPLEMENTATIONS = {
    "sdpa": "supervised_sdpa",
    "eager": "supervised_eager",
    "flash_attention_2": "supervised_fa2",
    "flex_attention": "supervised_flex_attention",
}
# The back ends that read every mask from their mask argument; others hide later keys and windows themselves.
_MASKED = ("sdpa", "eager", "flex_attention")

_FLEX_BLOCK = 128  # columns

logger = logging.get_logger(__name__)

AttentionQueries = tuple[AttentionQuery | None, ...]


class SupervisedAttention(NamedTuple):
    """The report of one layer, returned instead of its attention weights."""

    # `pairs`, or with `attention_states` what they are made of
    reports: tuple[AttentionPair | RowStates | None, ...] | UnreadRows
    mean: Tensor | None  # (B, N, M) float32, attention averaged over heads, if it was requested
    call: Any = None  # the `AttentionCall` that made it, if the model describes its calls
    layer: int | None = None  # in the model, of a report without `call`

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):  # T5Gemma 2 parts the maps of its merged attention
            return self
        return tuple.__getitem__(self, index)

    @property
    def pairs(self) -> tuple[AttentionPair | None, ...]:
        """The attention of each query (rows, columns); None for a query that this call cannot answer.

        `log_alpha` (B, H, Q, K) float32 are the log-probabilities over the queried columns only (equation 6), -1e9 at
        padded columns and at columns that the mask hides from the row. `log_share` (B, H, Q) float32 is the log of the
        total probability of these columns, or None if it was not requested. `exp(log_alpha + log_share)` is the
        ordinary attention. Values of padded rows have no meaning.
        """
        return tuple(each.pair() if isinstance(each, RowStates) else each for each in self.reports)


def layer_numbers(reports: Sequence[SupervisedAttention]) -> list[int]:
    """The index of the layer of each report in its model; its place where the model numbers no layers."""
    return [place if each.layer is None else each.layer for place, each in enumerate(reports)]


def reads_other_sequence(module: nn.Module) -> bool:
    """Whether the keys of an attention module are not positions of the sequence of its queries (cross-attention)."""
    named = any(part in type(module).__name__ for part in ("CrossAttention", "MergedAttention"))
    return named or getattr(module, "reads_encoder", False) or bool(getattr(module, "is_cross_attention", False))


def supervised_implementation(model_or_config: Any) -> str:
    """Finds the supervised version of the attention back end of a model, for `model.set_attn_implementation(name)`."""
    name = getattr(model_or_config, "config", model_or_config)._attn_implementation or "eager"
    if name in SUPERVISED_IMPLEMENTATIONS.values():
        return name
    if name not in SUPERVISED_IMPLEMENTATIONS:
        if name not in ALL_ATTENTION_FUNCTIONS or name.startswith("paged|"):
            known = ", ".join(SUPERVISED_IMPLEMENTATIONS)
            raise ValueError(
                f"attention back end '{name}' cannot be supervised; expected one of {known}, or a registered kernel: "
                "load the model with attn_implementation='sdpa'"
            )
        SUPERVISED_IMPLEMENTATIONS[name] = "supervised_" + re.sub(r"\W+", "_", name).replace("flash", "fa")
        _register(name)
    return SUPERVISED_IMPLEMENTATIONS[name]


def late_states(
    query: Tensor,
    key: Tensor,
    places: Sequence[int],
    columns: Tensor,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> RowStates:
    """What the attention of rows (1, H, Q, d) at `places` is computed from; a row sees the keys up to its own.

    Their queries were kept while a model generated; `columns` (1, K) and the rest are those of [`read_rows`].
    """
    mask = mask_whole_rows(None, torch.tensor([list(places)], device=key.device), key.shape[2], True)
    padded = (columns < 0)[:, None, None]
    if sinks is not None:
        sinks = sinks[:, None]
    return RowStates(query, key, scaling, mask, softcap, columns.clamp(min=0), padded, sinks)


def read_rows(
    query: Tensor,
    key: Tensor,
    queries: Sequence[AttentionQuery],
    scaling: float,
    mask: Any,
    causal: bool | int,
    plans: RowPlans | None,
    share: bool,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> list[RowStates]:
    """Reads what the attention of chosen rows over chosen columns (equation 6) is computed from, without a map.

    `softcap` limits the scores (Gemma 2); `sinks` are scores of a column without a value, one of each head (gpt-oss)
    or (B, H, N, 1) of each row.
    """
    plan = (plans or RowPlans()).find(queries, query.shape[2], key.shape[2], mask, causal, whole_rows=share)
    rows = plan.rows.read(query)
    if share:
        rests: list[Tensor | None] = [None if sinks is None else sinks[:, None]] * len(rows)
        if sinks is not None and sinks.dim() == 4:
            rests = [each[..., 0] for each in plan.rows.read(sinks)]
        parts = zip(rows, plan.masks, plan.columns.positions, plan.padded, rests, strict=True)
        return [RowStates(each, key, scaling, part, softcap, at, gaps, rest) for each, part, at, gaps, rest in parts]
    read = zip(rows, plan.columns.read(key), plan.masks, strict=True)
    return [RowStates(each, keys, scaling, part, softcap) for each, keys, part in read]


def _observe(
    query: Tensor,
    key: Tensor,
    mask: Any,
    scaling: float,
    causal: bool | int,
    queries: AttentionQueries,
    share: bool,
    mean: bool | tuple[int, ...],
    call: Any,
    plans: RowPlans | None,
    states: bool,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> SupervisedAttention:
    asked = [each for each in queries if each is not None]
    if plans and states and not (share or mean or None in queries or torch.compiler.is_compiling()):
        plan = plans.find(asked, query.shape[2], key.shape[2], mask, causal, whole_rows=False)
        unread = UnreadRows(query, key, plan, scaling, softcap)
        if unread.room() > 1:
            return SupervisedAttention(unread, None, call)
    pairs: Iterator[AttentionPair | RowStates] = iter(())
    if asked:
        read = read_rows(query, key, asked, scaling, mask, causal, plans, share, softcap, sinks)
        # Larger ones are not stacked, and attention takes less memory than they do.
        at_once = [layers_at_once(each.size(), key.device) for each in read]
        pairs = (each if states and n > 1 else each.pair() for each, n in zip(read, at_once, strict=True))
    reports = tuple(None if each is None else next(pairs) for each in queries)
    averaged = None
    if mean:
        all_rows = torch.arange(query.shape[2], device=query.device)[None]
        row_mask = mask_of_rows(mask, all_rows, key.shape[2], causal)
        heads = mean if isinstance(mean, tuple) else None
        averaged = head_mean(query, key, row_mask, scaling, heads, LOWEST_SCORE, softcap, sinks)
    return SupervisedAttention(reports, averaged, call)


def _is_causal(implementation: str, module: nn.Module, mask: Any, query_length: int, kwargs: Fields) -> bool | int:
    """Whether the back end itself hides later keys: SDPA does so without a mask, FlashAttention and kernels always.

    A kernel's window is the number of keys that a row then sees.
    """
    if implementation in ("eager", "flex_attention") or (isinstance(mask, Tensor) and mask.dim() == 4):
        return False
    causal = kwargs.get("is_causal")
    causal = query_length > 1 and (causal if causal is not None else getattr(module, "is_causal", True))
    window = None if implementation in _MASKED else kwargs.get("sliding_window")
    if window is None or not causal:
        return causal
    return window


def eager_function(module: nn.Module) -> Callable:
    """Finds the eager attention function in the file that defines the class; each model file has its own."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise ValueError(f"the file of {type(module).__name__} has no eager_attention_forward; use the sdpa back end")


def _run_back_end(implementation: str, module: Any, *args: Any, **kwargs: Any) -> Tensor:
    if implementation == "eager":
        return eager_function(module)(module, *args, **kwargs)[0]
    if implementation not in _MASKED:
        # The back end reads the name of its kernel from the config, which contains the supervised name.
        module = ConfigView(module, config=ConfigView(module.config, _attn_implementation=implementation))
        # FlashAttention would apply the mask (B, K) of the keys' stream to the queries of the other stream.
        if getattr(module, "is_cross_attention", False) and isinstance(args[3], Tensor) and args[3].dim() == 2:
            return attend_packed_keys(ALL_ATTENTION_FUNCTIONS[implementation], module, *args, **kwargs)[0]
    if implementation == "flex_attention" and not torch.compiler.is_compiling():
        # Gradients were seen to be wrong on a GPU (docs/attention_supervision.md, "Back ends").
        query = args[0]
        wrong = any(states.shape[2] % _FLEX_BLOCK for states in args[:2])
        if query.requires_grad and query.device.type != "cpu" and wrong:
            logger.warning_once(  # once for all lengths
                f"flex_attention: gradients can be wrong for rows or columns that are no multiples of {_FLEX_BLOCK} "
                "(https://github.com/pytorch/pytorch/issues/153799): train with attn_implementation='sdpa' or "
                "'flash_attention_2'"
            )
    return ALL_ATTENTION_FUNCTIONS[implementation](module, *args, **kwargs)[0]


def _supervised(implementation: str) -> Callable:
    """Makes the attention function of a back end that also reports the attention of chosen rows."""

    def supervised_attention_forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        dropout: float = 0.0,
        scaling: float | None = None,
        attention_queries: AttentionQueries | Mapping[str, AttentionQuery] = (),
        attention_share: bool = True,
        attention_mean: bool | tuple[int, ...] = False,
        attention_layers: tuple[int, ...] | None = None,
        attention_call: Any = None,
        attention_plans: RowPlans | None = None,
        attention_states: bool = False,
        attention_seeing: Tensor | None = None,  # (B, 1, N, 1), 0 for words of Mllama that see no image
        attention_encoded: Tensor | None = None,  # (B, K, D), whose keys are behind those of T5Gemma 2's decoder
        output_attentions: bool | None = None,  # not passed on, because the back ends warn about it
        **kwargs: Any,
    ) -> tuple[Tensor, SupervisedAttention | None]:
        """Computes attention and reports the attention of the queried rows."""
        report = None
        # What reads rows while a model generates (lens/sequences.py); `generate` hands on no arguments of ours.
        reader = getattr(module, "row_reader", None)
        if reader is not None and reader.outputs is not None:
            return reader.outputs[module.layer_idx], None
        if scaling is None:
            factor = query.shape[-1] ** -0.5
        else:
            factor = scaling
        sinks = kwargs.get("s_aux", kwargs.get("sinks"))
        bias = kwargs.get("position_bias")
        rule = (kwargs.get("softcap"), sinks)
        key_mask: Any = attention_mask if bias is None else BiasedMask(attention_mask, bias)
        apart = reads_other_sequence(module)
        own = 0 if apart else key.shape[2]
        keys = key
        if apart and attention_encoded is not None:
            own = key.shape[2] - attention_encoded.shape[1]
        if apart and own:  # columns are positions of the encoder
            keys = key.roll(-own, 2)
            key_mask = key_mask.roll(-own, -1)
        if apart and attention_seeing is not None:
            key_mask = attention_mask.masked_fill(attention_seeing == 0, torch.finfo(attention_mask.dtype).min)

        def hides_later() -> bool | int:
            causal = _is_causal(implementation, module, attention_mask, query.shape[2], kwargs)
            # A back end that hides keys in a way that this file does not know.
            in_mask = implementation in _MASKED or (isinstance(attention_mask, Tensor) and attention_mask.dim() == 4)
            if not in_mask and not causal and kwargs.get("sliding_window") is not None:
                raise ValueError(
                    "attention with sliding_window to both sides cannot be supervised: the back end hides keys by "
                    "itself; use the sdpa back end"
                )
            return causal

        has_image = getattr(module, "keys_have_image", not apart)  # as `supervise` says of the model
        if reader is not None and has_image:
            sees_all = key_mask is None and (kwargs.get("sliding_window") or key.shape[2]) >= key.shape[2]
            late = (factor, *rule) if sees_all and not apart else ()

            def read(asked: Sequence[AttentionQuery], plans: RowPlans | None) -> list[RowStates]:
                return read_rows(query, keys, asked, factor, key_mask, hides_later(), plans, True, *rule)

            layer: Any = module.layer_idx
            reader.keep(HandedStates(layer, query, keys, late, own, read))
        reports = attention_layers is None or module.layer_idx in attention_layers
        # A described call names its streams.
        reports = reports and (attention_call is not None or has_image)
        if reports and (attention_queries or attention_mean):
            # Before the back end: autograd then adds the gradients of few rows to those of the back end in place.
            causal = hides_later()
            if isinstance(attention_queries, Mapping):
                attention_queries = tuple(attention_queries.values())
            request = (attention_queries, attention_share, attention_mean, attention_call, attention_plans)
            report = _observe(query, keys, key_mask, factor, causal, *request, attention_states, *rule)
            if attention_call is None:
                report = report._replace(layer=getattr(module, "layer_idx", None))
        output = _run_back_end(
            implementation, module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        if reader is not None:
            output = reader.keep_output(module, value, output)
        return output, report

    return supervised_attention_forward


def _register(implementation: str) -> None:
    name = SUPERVISED_IMPLEMENTATIONS[implementation]
    AttentionInterface.register(name, _supervised(implementation))
    # A name without a mask function gets no mask, and padding would be attended.
    if implementation in ALL_MASK_ATTENTION_FUNCTIONS:
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])


for _implementation in SUPERVISED_IMPLEMENTATIONS:
    _register(_implementation)
