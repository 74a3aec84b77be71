# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Words and image regions -> model inputs. These files travel to the Hub with a checkpoint.

Importing this package makes `AutoProcessor` find the processors without `trust_remote_code`.
"""

from .check_processor_transformers import OLDEST_TRANSFORMERS  # isort: skip

from transformers import AutoProcessor

from .grounded_batch import DroppedPhrase, GroundedBatch
from .processing_vl_bert import VLBertProcessor
from .sequence_layouts import SEQUENCE_LAYOUTS, SequenceLayout

# A checkpoint names its processor class, so the key is not looked up; rooms do not import one another.
AutoProcessor.register("vl_bert", VLBertProcessor, exist_ok=True)
# Makes `save_pretrained` write these files and their `auto_map` entry beside the weights.
VLBertProcessor.register_for_auto_class("AutoProcessor")

__all__ = [
    "OLDEST_TRANSFORMERS",
    "SEQUENCE_LAYOUTS",
    "DroppedPhrase",
    "GroundedBatch",
    "SequenceLayout",
    "VLBertProcessor",
]
