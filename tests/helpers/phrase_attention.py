# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention of phrases from the pairs that a model reports: what tests compare the pipeline with."""

import torch

from grounded_attention.heads.attention_grounding import DIRECTION
from grounded_attention.supervision.supervise import supervise


@torch.no_grad()
def phrase_attention(model, inputs, layer, head=None, whole_image=False):
    """The attention of each phrase on the regions in one layer."""
    regions = inputs["region_attention_mask" if whole_image else "region_candidate_mask"].bool()
    tokens = inputs["phrase_mask"].any(1)
    rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    columns = torch.arange(regions.shape[1], device=regions.device).expand_as(regions).masked_fill(~regions, -1)
    queries = {DIRECTION: (rows, columns)}
    wanted = {"output_attentions": True, "return_dict": True}
    with supervise(model):
        outputs = model(**inputs, **wanted, grounding_queries=queries, attention_layers=(layer,))
    alpha = outputs.attentions[0].pairs[0][0].exp()  # (B, H, T, R)
    alpha = alpha.mean(1) if head is None else alpha[:, head]
    mask = inputs["phrase_mask"].float()
    return (mask / mask.sum(-1, keepdim=True).clamp(min=1)) @ alpha * regions[:, None]
