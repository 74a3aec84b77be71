# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""KLAL: the attention of the answer's last token follows a distribution over the image tokens."""

from .soft_attention import SoftAttention


class KLAttention(SoftAttention):
    """KL divergence of a layer's attention, averaged over heads, from a target over the image tokens.

    Args:
        layers, heads, rows, target, spread, background, reduction, top_queries, divergence, outside: see
            [`SoftAttention`]. By default `rows="last_answer"`, `target="overlap"`, `reduction="mean"`,
            `divergence="kl"`; all layers, whose losses are averaged.

    References:
        Esmaeilkhani and Latecki (2026), arXiv 2511.12738.

    Requirements:
        As `direct`; rows of an answer need `labels`.

    Inputs:
        | batch entry      | shape        | meaning                                               |
        |------------------|--------------|-------------------------------------------------------|
        | `phrase_mask`    | (B, P, T)    | the tokens of each phrase                             |
        | `phrase_regions` | (B, P, R)    | its regions; with `target="given"` their weights      |
        | `phrase_boxes`   | (B, P, G, 4) | its boxes, for targets of boxes; -1 for padding      |
        | `region_boxes`   | (B, R, 4)    | the part of the image that each region shows          |
        | `labels`         | (B, N)       | for rows of answers: not negative for their tokens    |
        | `text_positions` | (B, T)       | with `region_positions` (B, R): as for `direct`       |

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from grounded_attention import get_method
        >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99))
        >>> method = get_method("kl_attention", rows="words", target="given")
        >>> method.prepare(model)
        >>> batch = {  # four tokens, three regions; how much tokens 1 and 2 should look at each
        ...     "phrase_mask": torch.tensor([[[0, 1, 1, 0]]]), "phrase_regions": torch.tensor([[[0.5, 0.25, 0.25]]]),
        ...     "text_positions": torch.arange(4)[None], "region_positions": torch.arange(4, 7)[None]}
        >>> outputs = model(inputs_embeds=torch.randn(1, 7, 32), **method.forward_kwargs(batch))
        >>> total, count = method.losses(outputs, batch)["text_to_region"]
        >>> total.backward(); int(count)
        2
    """

    name = "kl_attention"
    citation = """@inproceedings{esmaeilkhani-latecki-2026-direct,
    title = "Direct Visual Grounding by Directing Attention of Visual Tokens",
    author = "Esmaeilkhani, Parsa and Latecki, Longin Jan",
    booktitle = "IEEE/CVF Winter Conference on Applications of Computer Vision (WACV)",
    year = "2026",
}"""
    defaults = {"rows": "last_answer", "target": "overlap", "reduction": "mean"}
