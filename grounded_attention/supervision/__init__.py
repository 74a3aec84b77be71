# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Methods that supervise attention with visual grounding; `registry.py` has them by name."""

from typing import TYPE_CHECKING

import lazy_loader

from .registry import METHODS, get_method, method_names, split_name

if TYPE_CHECKING:
    from .alignment import DIRECTIONS, GroundingTargets, align, first_region, grounding_targets, sequence_pairs
    from .attention_function import SUPERVISED_IMPLEMENTATIONS, SupervisedAttention, supervised_implementation
    from .combined import CombinedSupervision
    from .grounding_alignment import GroundingAlignment
    from .losses import from_attention_maps
    from .method import AttentionMethod, SupervisionMethod
    from .rollout import attention_rollout
    from .supervise import Supervision, supervise

__getattr__, __dir__, _names = lazy_loader.attach(
    __name__,
    submod_attrs={
        "alignment": [
            "DIRECTIONS",
            "GroundingTargets",
            "align",
            "first_region",
            "grounding_targets",
            "sequence_pairs",
        ],
        "attention_function": ["SUPERVISED_IMPLEMENTATIONS", "SupervisedAttention", "supervised_implementation"],
        "combined": ["CombinedSupervision"],
        "grounding_alignment": ["GroundingAlignment"],
        "losses": ["from_attention_maps"],
        "method": ["AttentionMethod", "SupervisionMethod"],
        "rollout": ["attention_rollout"],
        "supervise": ["Supervision", "supervise"],
    },
)

__all__ = [
    "DIRECTIONS",
    "METHODS",
    "SUPERVISED_IMPLEMENTATIONS",
    "AttentionMethod",
    "CombinedSupervision",
    "GroundingAlignment",
    "GroundingTargets",
    "SupervisedAttention",
    "Supervision",
    "SupervisionMethod",
    "align",
    "attention_rollout",
    "first_region",
    "from_attention_maps",
    "get_method",
    "grounding_targets",
    "method_names",
    "sequence_pairs",
    "split_name",
    "supervise",
    "supervised_implementation",
]
