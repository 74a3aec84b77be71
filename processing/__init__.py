# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Words and image regions -> model inputs. These files travel to the Hub with a checkpoint.

Importing this package makes `AutoProcessor` find the processors without `trust_remote_code`.
"""

from .check_processor_transformers import OLDEST_TRANSFORMERS  # isort: skip

from transformers import AutoProcessor
from transformers.models.auto.image_processing_auto import AutoImageProcessor  # at top 5.4 wants torchvision for it

from .grounded_batch import DroppedPhrase, GroundedBatch
from .horizontal_flip import flip_boxes, flip_image, flip_phrases, swap_left_right, swap_left_right_spans
from .image_processing_fast_rcnn import FastRCNNImageProcessor
from .open_images import open_image, open_images
from .processing_grounded import GroundedProcessor
from .processing_visualbert import VisualBERTProcessor
from .processing_vl_bert import VLBertProcessor
from .sequence_layouts import SEQUENCE_LAYOUTS, SequenceLayout

# The `model_type` of a family -> its processor.
PROCESSORS: dict[str, type[GroundedProcessor]] = {"vl_bert": VLBertProcessor, "visualbert": VisualBERTProcessor}

for _family, _processor in PROCESSORS.items():
    # A checkpoint names its processor class, so the key is not looked up; rooms do not import one another.
    AutoProcessor.register(_family, _processor, exist_ok=True)
    # Makes `save_pretrained` write these files and their `auto_map` entry beside the weights.
    _processor.register_for_auto_class("AutoProcessor")
# One class with PIL for both backends, so that transformers does not look for a torchvision one.
AutoImageProcessor.register("fast_rcnn", image_processor_classes={"pil": FastRCNNImageProcessor}, exist_ok=True)
FastRCNNImageProcessor.register_for_auto_class("AutoImageProcessor")

__all__ = [
    "OLDEST_TRANSFORMERS",
    "PROCESSORS",
    "SEQUENCE_LAYOUTS",
    "DroppedPhrase",
    "FastRCNNImageProcessor",
    "GroundedBatch",
    "GroundedProcessor",
    "SequenceLayout",
    "VLBertProcessor",
    "VisualBERTProcessor",
    "flip_boxes",
    "flip_image",
    "flip_phrases",
    "open_image",
    "open_images",
    "swap_left_right",
    "swap_left_right_spans",
]
