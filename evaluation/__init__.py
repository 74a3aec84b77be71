# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What trained models are worth: metrics, where their attention looks, figures and tables."""

from .attention_grounding import AttentionGrounding, phrase_attention, summarise
from .classification import ClassificationAccuracy

__all__ = ["AttentionGrounding", "ClassificationAccuracy", "phrase_attention", "summarise"]
