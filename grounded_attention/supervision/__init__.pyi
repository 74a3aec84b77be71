# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
# The names of the package: `__init__.py` reads them here, and so do type checkers and editors.
from .alignment import DIRECTIONS as DIRECTIONS
from .alignment import GroundingTargets as GroundingTargets
from .alignment import align as align
from .alignment import grounding_targets as grounding_targets
from .alignment import sequence_pairs as sequence_pairs
from .attention_function import SUPERVISED_IMPLEMENTATIONS as SUPERVISED_IMPLEMENTATIONS
from .attention_function import SupervisedAttention as SupervisedAttention
from .attention_function import supervised_implementation as supervised_implementation
from .combined import CombinedSupervision as CombinedSupervision
from .grounding_alignment import GroundingAlignment as GroundingAlignment
from .method import AttentionMethod as AttentionMethod
from .method import SupervisionMethod as SupervisionMethod
from .method import from_attention_maps as from_attention_maps
from .registry import METHODS as METHODS
from .registry import get_method as get_method
from .registry import method_names as method_names
from .registry import split_name as split_name
from .rollout import attention_rollout as attention_rollout
from .supervise import Supervision as Supervision
from .supervise import supervise as supervise
