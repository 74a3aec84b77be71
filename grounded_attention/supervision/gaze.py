# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Given maps, such as human gaze or masks, as targets of attention."""

from .soft_attention import SoftAttention


class Gaze(SoftAttention):
    """KL divergence of a layer's attention, averaged over heads, from maps that rows give.

    Args:
        layers, heads, rows, target, spread, background, reduction, top_queries, divergence, outside: see
            [`SoftAttention`]. By default `rows="words"`, `target="given"`, `reduction="mean"`, `divergence="kl"`.

    References:
        Pani and Yang (2026), arXiv 2603.23202, whose rows and layers are not published.

    Requirements:
        As `direct`.

    Inputs:
        | batch entry      | shape     | meaning                                         |
        |------------------|-----------|-------------------------------------------------|
        | `phrase_mask`    | (B, P, T) | the tokens of each phrase                       |
        | `phrase_regions` | (B, P, R) | how much each region is looked at, at least 0   |
        | `text_positions` | (B, T)    | with `region_positions` (B, R): as for `direct` |

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from grounded_attention import get_method
        >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99))
        >>> method = get_method("gaze")
        >>> method.prepare(model)
        >>> batch = {  # four tokens, three regions; how long people looked at each region when they said token 1
        ...     "phrase_mask": torch.tensor([[[0, 1, 0, 0]]]), "phrase_regions": torch.tensor([[[0.9, 0.2, 0.0]]]),
        ...     "text_positions": torch.arange(4)[None], "region_positions": torch.arange(4, 7)[None]}
        >>> outputs = model(inputs_embeds=torch.randn(1, 7, 32), **method.forward_kwargs(batch))
        >>> total, count = method.losses(outputs, batch)["text_to_region"]
        >>> total.backward(); int(count)
        1
    """

    name = "gaze"
    citation = """@misc{pani-yang-2026-gaze,
    title = "Gaze-Regularized Vision-Language-Action Models for Robotic Manipulation",
    author = "Pani, Anupam and Yang, Yanchao",
    eprint = "2603.23202",
    archivePrefix = "arXiv",
    year = "2026",
}"""
    defaults = {"rows": "words", "target": "given", "reduction": "mean"}
