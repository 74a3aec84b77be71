# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes a model report its attention: the only file that replaces the attention function of a model."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel

from grounded_attention.modeling.attention_calls import (
    REGIONS,
    SEQUENCE,
    TEXT,
    AttentionCall,
    layer_labels,
    one_stream_calls,
)
from grounded_attention.utils.named_types import Fields

from .attention_function import reads_other_sequence, supervised_implementation

# Causal models in which an image and its prompt attend to each other.
PREFIX_MODELS = ("paligemma",)
# The argument of Mllama that says which words see an image, and that of decoders that are given an encoder's states.
SEEING = "full_text_row_masked_out_mask"
ENCODED = "encoder_hidden_states"


class Supervision(AbstractContextManager["Supervision"]):
    """A model whose language model has the supervised attention function; `undo()` restores the original function.

    As a context manager it calls `undo()` at the end.

    Attributes:
        model (`PreTrainedModel`): the module whose attention is supervised: the model itself, or the language model
            of a model with a vision tower.
    """

    def __init__(self, model: PreTrainedModel, before: Sequence[tuple[Any, str]], hooks: Mapping[nn.Module, Any]):
        self.model = model
        self._before = before
        self._handles = [each.register_forward_pre_hook(hook, with_kwargs=True) for each, hook in hooks.items()]

    @property
    def calls(self) -> tuple[AttentionCall, ...]:
        """The attention calls that can be supervised or observed, in order (`tuple[AttentionCall, ...]`)."""
        return find_calls(self.model)

    def undo(self) -> None:
        """Restores the attention function that the model had before."""
        for config, name in self._before:  # not by the model's method, which would load a kernel of the Hub again
            config._attn_implementation = name
        for handle in self._handles:
            handle.remove()

    def __exit__(self, *error: Any) -> None:
        self.undo()


def supervise(model: nn.Module) -> Supervision:
    """Sets the supervised attention function, which gives the same output and also reports the requested attention.

    In a model with a vision tower only the language model is changed. The vision tower would also receive the
    arguments of the query (Qwen2.5-VL, Qwen3-VL) and read positions of the text in its own sequence.

    Args:
        model (`nn.Module`): a model on transformers' `AttentionInterface`, with or without a task head, or such a
            model in a wrapper of PEFT or `DistributedDataParallel`. If the model is already supervised, neither this
            function nor `undo()` changes it.

    Returns:
        `Supervision`: call its `undo()`, or write `with supervise(model): ...`.

    Raises:
        ValueError: if the model does not use the interface, or its back end has no supervised version.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from grounded_attention import supervise
        >>> sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
        >>> model = BertModel(BertConfig(vocab_size=99, **sizes))
        >>> rows, columns = torch.tensor([[1, 2]]), torch.tensor([[3, 4, 5]])
        >>> with supervise(model):
        ...     outputs = model(torch.arange(6)[None], attention_queries=((rows, columns),), output_attentions=True)
        >>> outputs.attentions[0].pairs[0][0].shape  # of layer 0, its first pair: log_alpha (B, H, Q, K)
        torch.Size([1, 4, 2, 3])
        >>> model.config._attn_implementation
        'sdpa'
    """
    language_model = find_language_model(model)
    configs = [part.config for part in language_model.modules() if isinstance(part, PreTrainedModel)]
    before = [(config, config._attn_implementation or "eager") for config in configs]
    name = supervised_implementation(language_model)
    if not returns_maps(model):
        language_model.set_attn_implementation(name)
    if language_model.config._attn_implementation != name:
        raise ValueError(
            f"{type(model).__name__} does not use the AttentionInterface of transformers: its attention cannot be "
            "supervised"
        )
    others = {*unwrap_model(model).modules()} - {*language_model.modules()}
    apart = reads_image_apart(model)
    for module in numbered_attention(language_model):
        module.keys_have_image = reads_other_sequence(module) is apart
    hooks: dict[nn.Module, Any] = {}
    if {SEEING, ENCODED} & inspect.signature(language_model.forward).parameters.keys():
        hooks[language_model] = _name_keys
    for each in others:
        if isinstance(each, PreTrainedModel) and language_model not in each.modules():
            hooks[each] = _drop_request
    if is_others(unwrap_model(model)):
        hooks |= _hand_on(unwrap_model(model), language_model)
    return Supervision(language_model, before, hooks)


def _drop_request(module: nn.Module, args: tuple, kwargs: Fields) -> tuple[tuple, Fields]:
    """Qwen's models also pass this to their vision tower, whose SDPA warns about it."""
    return args, {name: value for name, value in kwargs.items() if name != "output_attentions"}


def _name_keys(module: nn.Module, args: tuple, kwargs: Fields) -> tuple[tuple, Fields]:
    """Hands on which words see an image (Mllama's mask shows it to those before it too), and an encoder's states."""
    for name, given in (("attention_seeing", SEEING), ("attention_encoded", ENCODED)):
        if kwargs.get(given) is not None:
            kwargs = {**kwargs, name: kwargs[given]}
    return args, kwargs


def is_others(model: Any) -> bool:
    """Whether the code of a model is neither of transformers nor of this package, but perhaps of the Hub."""
    known = type(model).__module__.partition(".")[0] in ("transformers", "grounded_attention")
    return not known and not hasattr(model.config, "grounding_calls")


def returns_maps(model: Any) -> bool:
    """Whether attention in code of others is not on the interface, so that maps are read which it returns itself."""
    inner = unwrap_model(model)
    return is_others(inner) and not numbered_attention(find_language_model(inner))


def _hand_on(model: nn.Module, language_model: nn.Module) -> dict[nn.Module, Any]:
    """Brings requests for attention to the language model, past code of others, which need not hand them on."""
    asked: Fields = {}

    def take(module: nn.Module, args: tuple, kwargs: Fields) -> tuple[tuple, Fields]:
        for name in {*kwargs} - {"attention_mask"}:
            if name.startswith("attention_"):
                asked[name] = kwargs.pop(name)
        asked["ids"] = kwargs.get("input_ids")
        return args, kwargs

    def give(module: nn.Module, args: tuple, kwargs: Fields) -> tuple[tuple, Fields]:
        sequences = (asked.pop("ids", None), kwargs.get("inputs_embeds"))
        lengths = [each.shape[1] for each in sequences if each is not None]
        if len({*lengths}) > 1:
            raise ValueError(
                f"{type(model).__name__}: {lengths} are the tokens of its processor and the positions that it reads; "
                "give an id to each image token"
            )
        handed = kwargs | asked
        asked.clear()
        return args, handed

    return {model: take, language_model: give}


def find_encoder(model: Any) -> Any:
    """The part of a model to run for its attention: without its head, or all of it where its code is of others."""
    inner = unwrap_model(model)
    if is_others(inner):
        return inner
    return getattr(inner, "base_model", inner)


def check_model(model: Any, processor: Any = None) -> None:
    """Checks that what a user gives as a model is a loaded one of transformers, and is not given as its processor."""
    if isinstance(model, type):
        named = model.__name__
    else:
        named = type(model).__name__
    if isinstance(model, type):
        raise ValueError(f"{named} is a class, expected a loaded model: {named}.from_pretrained(NAME)")
    if isinstance(processor, nn.Module) and not isinstance(model, nn.Module):
        raise ValueError(f"the model is {named} and the processor {type(processor).__name__}: give the model first")
    if not isinstance(model, nn.Module) or getattr(unwrap_model(model), "config", None) is None:
        raise ValueError(f"{named} is not a transformers model: its attention cannot be supervised")


def model_device(model: Any) -> torch.device:
    """Where a model takes its inputs; one whose weights accelerate has put elsewhere says it in its hooks."""
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for each in getattr(hook, "hooks", (hook,)):
            device = getattr(each, "execution_device", None)
            if device is not None:
                return torch.device(device)
    return torch.device(next(model.parameters()).device)


def find_language_model(model: Any) -> PreTrainedModel:
    """Finds the part of a model whose attention reads words and image: the part with the text configuration."""
    check_model(model)
    model = unwrap_model(model)
    config = model.config
    text_config = config.get_text_config()
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel) or module is model]
    if is_others(model):
        parts = _parts_of_words(model, parts)
    for module in parts:
        if module.config is text_config:
            return module
    if is_others(model):
        return parts[0]
    raise ValueError(
        f"{type(model).__name__} has no part with its text configuration ({type(text_config).__name__}): call "
        "supervise() with the language model itself"
    )


def _parts_of_words(model: nn.Module, parts: list[Any]) -> list[Any]:
    """The parts in which all parts have the words, the largest embeddings: those without a vision tower."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    words = max(tables, key=lambda table: table.num_embeddings, default=None)
    towers = {part for part in parts if words not in {*part.modules()}}
    return [part for part in parts if towers.isdisjoint(part.modules())] or parts


def find_calls(model: Any) -> tuple[AttentionCall, ...]:
    """Finds the attention calls of a model in which words and regions meet, in order.

    These are `config.grounding_calls` if the configuration has this field, as all configurations of this package do.
    Any other model has one call for each layer of its language model with softmax attention over the keys that have
    the image, named by the index of the layer: over its one sequence, or, if its words read the image by
    cross-attention, over what they read so. Other layers, such as linear attention and state spaces, have no call.
    """
    model = unwrap_model(model)
    config = getattr(model, "config", model)
    own = getattr(config, "grounding_calls", None)
    if own is not None:
        return own
    text = config.get_text_config()
    if model is config:
        try:
            with torch.device("meta"):
                model = AutoModel.from_config(copy.deepcopy(config), attn_implementation="eager")
        except Exception:  # any: code of others; what it builds is checked again when the model is loaded
            return one_stream_calls(text.num_hidden_layers, text.num_attention_heads)
    language_model = find_language_model(model)
    text = language_model.config
    apart = reads_image_apart(model)
    modules = [each for each in numbered_attention(language_model) if reads_other_sequence(each) is apart]
    heads = {module.layer_idx: head_count(module, text) for module in modules}
    if len(heads) < len(modules) or min(heads, default=0) < 0:
        raise ValueError(
            f"{type(language_model).__name__} has attention modules with the layer indices "
            f"{sorted(module.layer_idx for module in modules)}, expected each once: its heads cannot be told apart"
        )
    streams = (TEXT, REGIONS) if apart else (SEQUENCE, SEQUENCE)
    calls = [AttentionCall(f"layer {layer}", *streams, heads[layer]) for layer in sorted(heads)]
    return tuple(calls) or one_stream_calls(text.num_hidden_layers, text.num_attention_heads)


def call_layers(calls: Sequence[AttentionCall]) -> list[int]:
    """The number of each layer of the calls: that of `layer 3`, and the place of names such as `cross 3`."""
    return [int(label) if label.isdigit() else place for place, label in enumerate(layer_labels(calls))]


def head_layers(model: Any) -> list[int]:
    """The layers of a decoder that have heads over the image, see [`find_calls`]."""
    return call_layers(find_calls(model))


def numbered_attention(language_model: nn.Module) -> list[Any]:
    """The modules with a layer index that call an attention function of transformers' interface."""
    numbered = []
    for name, module in language_model.named_modules():
        if getattr(module, "layer_idx", None) is not None:
            numbered.append(module)
            if name.endswith(".encoder_attn"):  # of Bart, whose class is that of all its attention
                module.reads_encoder = True
    codes = [getattr(inspect.unwrap(type(module).forward), "__code__", None) for module in numbered]
    supervised = []
    for module, code in zip(numbered, codes, strict=True):
        if "ALL_ATTENTION_FUNCTIONS" in getattr(code, "co_names", ()):
            supervised.append(module)
    return supervised


def reads_image_apart(model: Any) -> bool:
    """Whether words read the image by cross-attention, in keys that are no positions of their own sequence."""
    if getattr(unwrap_model(model).config, "grounding_calls", None) is not None:
        return False
    return any(map(reads_other_sequence, numbered_attention(find_language_model(model))))


def head_count(module: nn.Module, config: Any) -> int:
    """The number of heads of an attention module; layers of some models have different numbers."""
    return int(getattr(module, "num_heads", None) or config.num_attention_heads)


def hides_later_words(model: Any) -> bool:
    """Whether image tokens cannot attend to the words after them: the attention of the model is causal."""
    config = unwrap_model(model).config
    if config.model_type in PREFIX_MODELS or getattr(config, "grounding_calls", None) is not None:
        return False
    if reads_image_apart(model):
        return True
    layers = [module for module in find_language_model(model).modules() if hasattr(module, "layer_idx")]
    return any(getattr(module, "is_causal", False) for module in layers)


def unwrap_model(model: Any) -> Any:
    """Returns the transformers model inside wrappers of PEFT, `DistributedDataParallel` and similar classes.

    Of a model that also speaks (Qwen-Omni) it is the part that reads and answers.
    """
    while isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    if not isinstance(model, PreTrainedModel) and hasattr(model, "get_base_model"):  # PEFT
        model = model.get_base_model()
    return getattr(model, "thinker", model)
