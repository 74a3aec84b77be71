# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A minimal model with two streams: in each layer words and regions attend to themselves, then to each other.

One module computes both directions of a co-attention, as in LXMERT. The model has all that supervision and the shared
heads require of a family: `config.grounding_calls`, `grounding_queries`, one report per call, states of text and
regions, and their sizes, which differ here.
"""

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import eager_attention_forward as eager_attention_forward

from grounded_attention.modeling.attention_calls import DIRECTION_STREAMS, REGIONS, TEXT, AttentionCall
from grounded_attention.modeling.task_config import TaskConfig
from grounded_attention.modeling.task_forward import choose_region, score_answers
from grounded_attention.modeling.task_heads import ClassificationHead, ReferringHead, VGPHeads
from grounded_attention.modeling.task_outputs import GroundedModelOutput, TaskOutput, VGPOutput

WIDTH, HEADS, LAYERS = 16, 2, 2


@strict
class ToyConfig(TaskConfig):
    model_type = "toy_two_streams"

    hidden_act: str = "gelu"
    # Sizes of the text states, of the region states after the last layer, and of the pooled state.
    text_hidden_size: int = WIDTH
    region_hidden_size: int = 24
    pooled_hidden_size: int = 20

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


class ToyPreTrainedModel(PreTrainedModel):
    config: ToyConfig
    config_class = ToyConfig
    base_model_prefix = "toy"
    _supports_sdpa = True
    _supports_attention_backend = True


class ToyModel(ToyPreTrainedModel):
    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.own = nn.ModuleList(
            nn.ModuleDict({stream: ToyAttention(config, layer) for stream in (TEXT, REGIONS)})
            for layer in range(LAYERS)
        )
        self.cross = nn.ModuleList(ToyAttention(config, layer) for layer in range(LAYERS))
        self.region_output = nn.Linear(WIDTH, config.region_hidden_size)
        self.pooler = nn.Linear(WIDTH + config.region_hidden_size, config.pooled_hidden_size)
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
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> GroundedModelOutput:
        masks = {TEXT: attention_mask.bool()[:, None, None], REGIONS: region_attention_mask.bool()[:, None, None]}
        if self.config._attn_implementation.endswith("eager"):
            masks = {name: (~mask).float() * torch.finfo(torch.float32).min for name, mask in masks.items()}
        states, reports, layers = {TEXT: text, REGIONS: regions}, [], [text]

        def attend(module: Any, call: AttentionCall) -> torch.Tensor:
            arguments: dict[str, Any] = {"attention_call": call, "attention_mean": attention_mean}
            reports_layer = attention_layers is None or int(call.name.split()[1]) in attention_layers
            if grounding_queries and call.directions and reports_layer:
                arguments["attention_queries"] = tuple(
                    grounding_queries[name] if name in call.directions else None
                    for name in DIRECTION_STREAMS
                    if name in grounding_queries
                )
            keys = call.key_stream
            output, weights = module(states[call.query_stream], states[keys], masks[keys], **arguments, **kwargs)
            reports.append(weights)
            return output

        for layer in range(LAYERS):
            own = {s: attend(self.own[layer][s], AttentionCall(f"{s} {layer}", s, s, HEADS)) for s in states}
            states = own
            calls = self.config.grounding_calls[2 * layer : 2 * layer + 2]
            states = {call.query_stream: attend(self.cross[layer], call) for call in calls}
            layers.append(states[TEXT])
        found = self.region_output(states[REGIONS])
        return GroundedModelOutput(
            last_hidden_state=torch.cat(list(states.values()), 1),
            pooler_output=self.pooler(torch.cat([states[TEXT][:, 0], found.mean(1)], dim=-1)).tanh(),
            text_hidden_state=states[TEXT],
            region_hidden_state=found,
            hidden_states=tuple(layers) if output_hidden_states else None,
            attentions=tuple(each for each in reports if each is not None),
        )


class ToyForVGP(VGPHeads, ToyPreTrainedModel):
    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.toy = ToyModel(config)
        self.make_vgp_heads()
        self.post_init()

    def forward(
        self,
        attention_mask: torch.Tensor,
        phrase_mask: torch.Tensor | None = None,
        phrase_pairs: torch.Tensor | None = None,
        identification_labels: torch.Tensor | None = None,
        vgp_labels: torch.Tensor | None = None,
        **inputs: Any,
    ) -> VGPOutput:
        outputs, boxes = self.encode_for_vgp(self.toy, attention_mask=attention_mask, **inputs)
        labels = (identification_labels, vgp_labels)
        return self.score_vgp(outputs, boxes, attention_mask, phrase_mask, phrase_pairs, *labels)


class ToyForReferringExpression(ToyPreTrainedModel):
    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.toy = ToyModel(config)
        self.referring_head = ReferringHead(config)
        self.post_init()

    def forward(
        self, region_attention_mask: torch.Tensor, region_targets: torch.Tensor | None = None, **inputs: Any
    ) -> TaskOutput:
        outputs = self.toy(region_attention_mask=region_attention_mask, **inputs)
        return choose_region(self.referring_head, outputs, region_attention_mask, region_targets)


class ToyForVisualQuestionAnswering(ToyPreTrainedModel):
    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.toy = ToyModel(config)
        self.answer_head = ClassificationHead(config.text_hidden_size, None, len(config.answers), 0.0)
        self.post_init()

    def forward(self, answer_positions: torch.Tensor, labels: torch.Tensor | None = None, **inputs: Any) -> TaskOutput:
        outputs = self.toy(**inputs)
        return score_answers(self.answer_head, outputs, answer_positions, labels, self.config.vqa_loss)


def toy_model(back_end: str = "sdpa", cls: type[ToyPreTrainedModel] = ToyModel, **fields: Any) -> Any:
    torch.manual_seed(0)
    model = cls._from_config(ToyConfig(**fields), attn_implementation=back_end)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.15)
    return model.eval()
