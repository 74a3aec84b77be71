# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The smallest model of two streams: words and regions attend to themselves, then to each other, layer by layer.

One module serves both directions of a co-attention, as LXMERT's does. It has what supervision asks of a family:
`config.grounding_calls`, `grounding_queries`, and a report of its own for every call.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import eager_attention_forward as eager_attention_forward

from grounded_attention.modeling.attention_calls import DIRECTION_STREAMS, REGIONS, TEXT, AttentionCall

WIDTH, HEADS, LAYERS = 16, 2, 2


class ToyConfig(PreTrainedConfig):
    model_type = "toy_two_streams"

    @property
    def grounding_calls(self) -> tuple[AttentionCall, ...]:
        return tuple(
            AttentionCall(f"cross {layer}", *streams, HEADS)
            for layer in range(LAYERS)
            for streams in DIRECTION_STREAMS.values()
        )


class ToyAttention(nn.Module):
    def __init__(self, config: ToyConfig, layer_idx: int):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, False
        self.num_key_value_groups, self.scaling = 1, (WIDTH // HEADS) ** -0.5
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, states: torch.Tensor, others: torch.Tensor, mask: torch.Tensor, **kwargs: Any) -> Any:
        heads = [
            layer(given).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer, given in ((self.query, states), (self.key, others), (self.value, others))
        ]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        output, weights = attend(self, *heads, mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return states + output.flatten(2), weights


class ToyModel(PreTrainedModel):
    config: ToyConfig
    config_class = ToyConfig
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.own = nn.ModuleList(
            nn.ModuleDict({stream: ToyAttention(config, layer) for stream in (TEXT, REGIONS)})
            for layer in range(LAYERS)
        )
        self.cross = nn.ModuleList(ToyAttention(config, layer) for layer in range(LAYERS))
        self.post_init()

    def forward(
        self,
        text: torch.Tensor,
        regions: torch.Tensor,
        attention_mask: torch.Tensor,
        region_attention_mask: torch.Tensor,
        grounding_queries: dict[str, Any] | None = None,
        attention_mean: Any = False,
        attention_layers: tuple[int, ...] | None = None,
        **kwargs: Any,
    ) -> SimpleNamespace:
        masks = {TEXT: attention_mask.bool()[:, None, None], REGIONS: region_attention_mask.bool()[:, None, None]}
        if self.config._attn_implementation.endswith("eager"):
            masks = {name: (~mask).float() * torch.finfo(torch.float32).min for name, mask in masks.items()}
        states, reports = {TEXT: text, REGIONS: regions}, []

        def attend(module: Any, call: AttentionCall) -> torch.Tensor:
            asked: dict[str, Any] = {"attention_call": call, "attention_mean": attention_mean}
            wanted = attention_layers is None or int(call.name.split()[1]) in attention_layers
            if grounding_queries and call.directions and wanted:
                asked["attention_queries"] = tuple(
                    grounding_queries[name] if name in call.directions else None
                    for name in DIRECTION_STREAMS
                    if name in grounding_queries
                )
            keys = call.key_stream
            output, weights = module(states[call.query_stream], states[keys], masks[keys], **asked, **kwargs)
            reports.append(weights)
            return output

        for layer in range(LAYERS):
            own = {s: attend(self.own[layer][s], AttentionCall(f"{s} {layer}", s, s, HEADS)) for s in states}
            states = own
            calls = self.config.grounding_calls[2 * layer : 2 * layer + 2]
            states = {call.query_stream: attend(self.cross[layer], call) for call in calls}
        return SimpleNamespace(
            last_hidden_state=torch.cat(list(states.values()), 1),
            attentions=tuple(each for each in reports if each is not None),
        )


def toy_model(back_end: str = "sdpa") -> ToyModel:
    torch.manual_seed(0)
    model = ToyModel._from_config(ToyConfig(), attn_implementation=back_end)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.15)
    return model.eval()
