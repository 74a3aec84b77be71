# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes a model report its attention: the one place that exchanges a model's attention function."""

from types import TracebackType
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from grounded_attention.modeling.attention_calls import AttentionCall, one_stream_calls

from .attention_function import supervised_implementation


class Supervision:
    """A model whose language model has the supervised attention function; `undo()` gives it back its own.

    It is a context manager that undoes itself at the end.

    Attributes:
        model: the module whose attention is supervised: the model itself or, in a model with a vision tower, its
            language model alone.
    """

    def __init__(self, model: PreTrainedModel, before: str):
        self.model, self._before = model, before

    @property
    def calls(self) -> tuple[AttentionCall, ...]:
        """The attention calls that can be supervised or observed, in order."""
        return find_calls(self.model.config)

    def undo(self) -> None:
        """Sets the attention function that the model had before."""
        self.model.set_attn_implementation(self._before)

    def __enter__(self) -> "Supervision":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def supervise(model: nn.Module) -> Supervision:
    """Sets the supervised attention function, which computes the same and reports the attention that is asked for.

    In a model with a vision tower the language model alone is set. The tower would take the arguments that ask for
    attention too (Qwen2.5-VL, Qwen3-VL), and read positions of the text in its own sequence.

    Args:
        model: a model on transformers' `AttentionInterface`, with or without a task's head, or wrapped by PEFT or by
            `DistributedDataParallel`. A model that is supervised already stays so, and `undo()` leaves it so.

    Returns:
        the supervision: call `undo()`, or write `with supervise(model): ...`.

    Raises:
        ValueError: the model is not on the interface, or its back end has no supervised twin.

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
            f"{type(model).__name__} does not use transformers' AttentionInterface: its attention can't be supervised"
        )
    return Supervision(language_model, before)


def find_language_model(model: Any) -> PreTrainedModel:
    """The part of a model whose attention reads words and image: the part that has the configuration of the text.

    Raises:
        ValueError: the model is not a transformers model, or has no such part.
    """
    model = unwrap_model(model)
    config = getattr(model, "config", None)
    if config is None:
        raise ValueError(f"{type(model).__name__} is not a model of transformers: its attention can't be supervised")
    text_config = config.get_text_config()
    if text_config is config:
        return model
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module.config is text_config:
            return module
    raise ValueError(
        f"{type(model).__name__} has no part with its text configuration ({type(text_config).__name__}): give "
        "supervise() the language model itself"
    )


def find_calls(config: Any) -> tuple[AttentionCall, ...]:
    """The attention calls of a model in which words and regions meet, in order.

    They are `config.grounding_calls` where the configuration has them, as those of this project do. Any other model is
    taken to have one sequence: one call a layer of its text configuration.
    """
    own = getattr(config, "grounding_calls", None)
    if own is not None:
        return own
    config = config.get_text_config()
    return one_stream_calls(config.num_hidden_layers, config.num_attention_heads)


def unwrap_model(model: Any) -> Any:
    """The transformers model inside the wrappers of PEFT and of `DistributedDataParallel` and its kin."""
    while isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    if not isinstance(model, PreTrainedModel) and hasattr(model, "get_base_model"):  # PEFT
        return model.get_base_model()
    return model
