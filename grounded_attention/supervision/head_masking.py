# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Removes the output of chosen attention heads, to see what a model does without them."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from grounded_attention.modeling.attention_calls import SEQUENCE
from grounded_attention.utils.named_types import Head

from .attention_function import reads_other_sequence
from .supervise import find_language_model, head_count, numbered_attention, reads_image_apart, unwrap_model

# How models name the layer after attention that mixes the heads.
OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "dense", "c_proj", "wo")


def attention_modules(model: Any) -> dict[int, Any]:
    """Finds the attention modules of the language model, by the index of their layer."""
    blocks = _region_blocks(model)
    if blocks:
        return {attention.layer_idx: attention for _, attention in blocks}
    language_model = find_language_model(model)
    config = language_model.config
    layers = getattr(config, "decoder_layers", config.num_hidden_layers)
    known = numbered_attention(language_model)
    modules: list[Any] = known or [each for each in language_model.modules() if hasattr(each, "layer_idx")]
    modules = [each for each in modules if any(hasattr(each, name) for name in OUTPUT_PROJECTIONS)]
    apart = reads_image_apart(model)
    own = [each for each in modules if reads_other_sequence(each) is apart]
    other = []
    if not getattr(language_model.config, "is_encoder_decoder", False):  # two more modules have the number of a layer
        other = [each for each in modules if reads_other_sequence(each) is not apart]
    by_layer = {module.layer_idx: module for module in (*other, *own)}
    complete = len({module.layer_idx for module in own}) == len(own) and set(by_layer) <= set(range(layers))
    if not by_layer or not complete or (not known and len(by_layer) < layers):
        raise ValueError(
            f"{type(language_model).__name__} has {layers} layers, but attention modules for the layers "
            f"{sorted(by_layer)}; its heads cannot be changed one by one"
        )
    return {layer: by_layer[layer] for layer in sorted(by_layer)}


@contextmanager
def mask_heads(model: Any, heads: Iterable[Head]) -> Iterator[None]:
    """Sets the output of chosen heads to zero, before the output projection, for any family and back end.

    Args:
        model (`PreTrainedModel`): a decoder, or a model of this project that reads regions; with or without a head of
            a task, or in a wrapper of PEFT.
        heads (`Iterable[tuple[int, int]]`): pairs of layer and head, counted from 0, as `heads.json` has them. A head
            of a co-attention is removed in both directions.

    Raises:
        ValueError: if the model does not have a layer or head, or is built in another way than transformers' decoders.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from grounded_attention import mask_heads
        >>> sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=99, **sizes))
        >>> with mask_heads(model, [(0, 1), (1, 3)]):
        ...     logits = model(torch.arange(6)[None]).logits
    """
    grouped = group_heads(model, heads)
    mixing = output_projections(model)
    with ExitStack() as stack:
        for layer, chosen in grouped.items():
            modules, count = mixing[layer]
            for module in modules:
                stack.callback(module.register_forward_pre_hook(_zero(chosen, count)).remove)
        yield


def group_heads(model: Any, heads: Iterable[Head]) -> dict[int, list[int]]:
    """Groups (layer, head) pairs by layer; a `ValueError` names one that the model does not have."""
    widths = {layer: count for layer, (_, count) in output_projections(model).items()}
    grouped: dict[int, list[int]] = {}
    for layer, head in sorted({(int(layer), int(head)) for layer, head in heads}):
        width = widths.get(layer, max(widths.values()))
        if layer not in widths or not 0 <= head < width:
            known = f"the layers 0 to {len(widths) - 1}"
            if max(widths) >= len(widths):
                known = f"softmax attention in the layers {', '.join(map(str, widths))} only"
            raise ValueError(f"layer {layer}, head {head}: the model has {known}, with the heads 0 to {width - 1}")
        grouped.setdefault(layer, []).append(head)
    return grouped


def _region_blocks(model: Any) -> list[tuple[Any, Any]]:
    """The blocks of `grounding_calls`, each with its attention module; none for models of other projects."""
    calls = getattr(unwrap_model(model).config, "grounding_calls", None) or ()
    crossing = any(call.query_stream != SEQUENCE for call in calls)
    blocks = []
    for block in unwrap_model(model).modules() if calls else ():
        for attention in block.children():
            if hasattr(attention, "layer_idx") and getattr(attention, "is_cross_attention", False) is crossing:
                blocks.append((block, attention))
    return blocks


def _region_projections(model: Any) -> dict[int, tuple[list[nn.Module], int]]:
    """As `output_projections`, by layer of `grounding_calls`; empty for models of other projects."""
    mixing = {}
    for block, attention in _region_blocks(model):
        mixing[attention.layer_idx] = (block_projections(block), attention.num_attention_heads)
    return mixing


def block_projections(block: Any) -> list[nn.Module]:
    """The output projections of a block of attention in a model of this project."""
    output = getattr(block, "output", None) or block.biOutput
    return [module for name, module in output.named_children() if name.startswith("dense")]


def output_projections(model: Any) -> dict[int, tuple[list[nn.Module], int]]:
    """By layer: the modules that read the outputs of its heads (..., H * d), and the number H of the heads."""
    regions = _region_projections(model)
    if regions:
        return regions
    config = find_language_model(model).config
    projections = {}
    for layer, module in attention_modules(model).items():
        projections[layer] = (
            [next(getattr(module, name) for name in OUTPUT_PROJECTIONS if hasattr(module, name))],
            head_count(module, config),
        )
    return projections


def _zero(heads: list[int], count: int) -> Any:
    """A hook that sets the parts of some heads in the input (..., H * d) of a layer to zero."""

    def zero(module: nn.Module, args: tuple) -> tuple:
        states = args[0].unflatten(-1, (count, -1)).clone()
        states[..., heads, :] = 0
        return (states.flatten(-2), *args[1:])

    return zero
