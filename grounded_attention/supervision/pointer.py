# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GUI-AIMA: the attention of an anchor token, over all heads weighted by the question, points at a place."""

from .soft_attention import SoftAttention


class Pointer(SoftAttention):
    """KL divergence of one map of all heads, in the row of an anchor token, from a Gaussian in the box.

    Heads count by how much the words between image and anchor look at the image (`reduction`). The anchor is a token
    that was added to the model (`model.tokens` of a recipe), and a phrase of its own whose boxes are the target.

    Args:
        layers, heads, rows, target, spread, background, reduction, top_queries, divergence, outside: see
            [`SoftAttention`]. By default `rows="anchor"`, `target="gaussian"`, `spread=0.8`,
            `reduction="queries_hard"`, `top_queries=1`, `divergence="kl"`. `target="fitts"` with `spread=1` and
            `outside=1` is the loss of V2P.

    References:
        Zhou et al. (2025), arXiv 2511.00810. Unlike the authors' code, thin boxes keep their target, and a map without
        attention on a patch has no gradient of NaN.

    Requirements:
        As `direct`, of a model that returns hidden states.

    Inputs:
        | batch entry      | shape        | meaning                                               |
        |------------------|--------------|-------------------------------------------------------|
        | `phrase_mask`    | (B, P, T)    | the tokens of each phrase                             |
        | `phrase_anchor`  | (B, P)       | whether a phrase is one added token                   |
        | `phrase_boxes`   | (B, P, G, 4) | its boxes; -1 for padding                            |
        | `region_boxes`   | (B, R, 4)    | the part of the image that each region shows          |
        | `text_positions` | (B, T)       | with `region_positions` (B, R): as for `direct`       |

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from grounded_attention import get_method
        >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99))
        >>> method = get_method("pointer", target="given")
        >>> method.prepare(model)
        >>> batch = {  # three regions, three tokens of a question, and the anchor
        ...     "phrase_mask": torch.tensor([[[0, 0, 0, 1]]]), "phrase_anchor": torch.tensor([[True]]),
        ...     "phrase_regions": torch.tensor([[[0.5, 0.25, 0.25]]]),
        ...     "text_positions": torch.arange(3, 7)[None], "region_positions": torch.arange(3)[None]}
        >>> outputs = model(inputs_embeds=torch.randn(1, 7, 32), **method.forward_kwargs(batch))
        >>> total, count = method.losses(outputs, batch)["text_to_region"]
        >>> total.backward(); int(count)
        1
    """

    name = "pointer"
    citation = """@misc{zhou-etal-2025-gui-aima,
    title = "GUI-AIMA: Aligning Intrinsic Multimodal Attention with a Context Anchor for GUI Grounding",
    author = "Zhou, Shijie and Lai, Viet Dac and Tan, Hao and Kil, Jihyung and Zhu, Wanrong and Chen, Changyou
        and Zhang, Ruiyi",
    eprint = "2511.00810",
    archivePrefix = "arXiv",
    year = "2025",
}"""
    effect = "the attention of its anchor token was taught to point"
    defaults = {"rows": "anchor", "target": "gaussian", "reduction": "queries_hard"}
