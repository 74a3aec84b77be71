# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes a model report its attention: the only file that replaces the attention function of a model."""

from types import TracebackType
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from grounded_attention.modeling.attention_calls import AttentionCall, one_stream_calls

from .attention_function import supervised_implementation

# Causal models in which an image and its prompt attend to each other.
PREFIX_MODELS = ("paligemma",)


class Supervision:
    """A model whose language model has the supervised attention function; `undo()` restores the original function.

    As a context manager it calls `undo()` at the end.

    Attributes:
        model (`PreTrainedModel`): the module whose attention is supervised: the model itself, or the language model
            of a model with a vision tower.
    """

    def __init__(self, model: PreTrainedModel, before: str):
        self.model, self._before = model, before

    @property
    def calls(self) -> tuple[AttentionCall, ...]:
        """The attention calls that can be supervised or observed, in order (`tuple[AttentionCall, ...]`)."""
        return find_calls(self.model.config)

    def undo(self) -> None:
        """Restores the attention function that the model had before."""
        self.model.set_attn_implementation(self._before)

    def __enter__(self) -> "Supervision":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    before = language_model.config._attn_implementation or "eager"
    name = supervised_implementation(language_model)
    language_model.set_attn_implementation(name)
    if language_model.config._attn_implementation != name:
        raise ValueError(
            f"{type(model).__name__} does not use the AttentionInterface of transformers: its attention cannot be "
            "supervised"
        )
    return Supervision(language_model, before)


def find_language_model(model: Any) -> PreTrainedModel:
    """Finds the part of a model whose attention reads words and image: the part with the text configuration.

    Args:
        model (`nn.Module`): a model, or a model in a wrapper.

    Returns:
        `PreTrainedModel`: the part; the model itself if it has no separate text configuration.

    Raises:
        ValueError: if the model is not a transformers model, or has no such part.
    """
    model = unwrap_model(model)
    config = getattr(model, "config", None)
    if config is None:
        raise ValueError(f"{type(model).__name__} is not a transformers model: its attention cannot be supervised")
    text_config = config.get_text_config()
    if text_config is config:
        return model
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module.config is text_config:
            return module
    raise ValueError(
        f"{type(model).__name__} has no part with its text configuration ({type(text_config).__name__}): call "
        "supervise() with the language model itself"
    )


def find_calls(config: Any) -> tuple[AttentionCall, ...]:
    """Finds the attention calls of a model in which words and regions meet, in order.

    These are `config.grounding_calls` if the configuration has this field, as all configurations of this package do.
    Any other model is treated as a model with one sequence: one call per layer of its text configuration.

    Args:
        config (`PreTrainedConfig`): configuration of the model.

    Returns:
        `tuple[AttentionCall, ...]`: the calls.
    """
    own = getattr(config, "grounding_calls", None)
    if own is not None:
        return own
    config = config.get_text_config()
    return one_stream_calls(config.num_hidden_layers, config.num_attention_heads)


def hides_later_words(model: Any) -> bool:
    """
    Returns whether image tokens cannot attend to the words after them (`bool`): the attention of the model is causal.

    Args:
        model (`nn.Module`): a model, or a model in a wrapper.
    """
    config = unwrap_model(model).config
    if config.model_type in PREFIX_MODELS or getattr(config, "grounding_calls", None) is not None:
        return False
    layers = [module for module in find_language_model(model).modules() if hasattr(module, "layer_idx")]
    return any(getattr(module, "is_causal", False) for module in layers)


def unwrap_model(model: Any) -> Any:
    """Returns the transformers model inside wrappers of PEFT, `DistributedDataParallel` and similar classes."""
    while isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    if not isinstance(model, PreTrainedModel) and hasattr(model, "get_base_model"):  # PEFT
        return model.get_base_model()
    return model
