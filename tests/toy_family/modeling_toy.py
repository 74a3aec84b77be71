# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A toy family's model: [text][regions] through BERT's encoder; see `configuration_toy.py`."""

from typing import Any

import torch
from torch import nn
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import PreTrainedModel
from transformers.models.bert.modeling_bert import BertEmbeddings, BertEncoder, BertLayer, BertSelfAttention
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_toy import ToyConfig
from .sequence_inputs import drop_unread, locate_queries
from .task_heads import VGPHeads
from .task_outputs import GroundedModelOutput, VGPOutput


class ToyPreTrainedModel(PreTrainedModel):
    config: ToyConfig
    config_class = ToyConfig
    base_model_prefix = "toy"
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": BertLayer, "attentions": BertSelfAttention}
    accepts_loss_kwargs = False


class ToyModel(ToyPreTrainedModel):
    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)
        self.project = nn.Linear(config.region_feature_size + 4, config.hidden_size)
        self.encoder = BertEncoder(config)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_boxes: torch.Tensor | None = None,
        region_attention_mask: torch.Tensor | None = None,
        grounding_queries: dict[str, tuple[torch.Tensor, torch.Tensor]] | None = None,
        **kwargs: Any,
    ) -> GroundedModelOutput:
        kwargs = drop_unread(kwargs)
        places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        text = self.embeddings(input_ids=input_ids, token_type_ids=token_type_ids, position_ids=places)
        regions = self.project(torch.cat([region_features, region_boxes], dim=-1))
        if grounding_queries is not None:
            kwargs["attention_queries"] = locate_queries(grounding_queries, text.shape[1])
        states = torch.cat([text, regions], 1)
        columns = torch.cat([attention_mask, region_attention_mask], 1).bool()
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=states, attention_mask=columns)
        states = self.encoder(states, attention_mask=mask, **kwargs).last_hidden_state
        words, seen = states.split([text.shape[1], regions.shape[1]], dim=1)
        return GroundedModelOutput(states, words[:, 0], words, seen)


class ToyForVGP(VGPHeads, ToyPreTrainedModel):
    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.toy = ToyModel(config)
        self.make_vgp_heads()
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        phrase_mask: torch.Tensor | None = None,
        phrase_pairs: torch.Tensor | None = None,
        identification_labels: torch.Tensor | None = None,
        vgp_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> VGPOutput:
        outputs, boxes = self.encode_for_vgp(self.toy, input_ids, attention_mask=attention_mask, **kwargs)
        labels = (identification_labels, vgp_labels)
        return self.score_vgp(outputs, boxes, attention_mask, phrase_mask, phrase_pairs, *labels)
