# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Processors that convert words and image regions to model inputs. These files are shipped with a checkpoint.

Importing this package makes `AutoProcessor` find the processors without `trust_remote_code`.
"""

from .oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from transformers.models.auto.image_processing_auto import (
    AutoImageProcessor,  # the top-level import requires torchvision in transformers 5.4
)

from ..utils.open_images import open_image, open_images
from .grounded_batch import DroppedPhrase, GroundedBatch
from .image_processing_fast_rcnn import FastRCNNImageProcessor
from .image_tokens import ImageTokens, locate_image_tokens
from .patch_grounding import PatchGroundingProcessor
from .phrase import Phrase, read_phrase
from .processing_grounded import GroundedProcessor
from .processing_two_streams import LXMERTProcessor, ViLBertProcessor
from .processing_visualbert import VisualBERTProcessor
from .processing_vl_bert import VLBertProcessor
from .processor_registration import register_processors
from .sequence_layouts import SEQUENCE_LAYOUTS, SequenceLayout

register_processors()
# One class with PIL serves both backends, so that transformers does not search for a torchvision class.
AutoImageProcessor.register("fast_rcnn", image_processor_classes={"pil": FastRCNNImageProcessor}, exist_ok=True)

__all__ = [
    "OLDEST_TRANSFORMERS",
    "SEQUENCE_LAYOUTS",
    "DroppedPhrase",
    "FastRCNNImageProcessor",
    "GroundedBatch",
    "GroundedProcessor",
    "ImageTokens",
    "LXMERTProcessor",
    "PatchGroundingProcessor",
    "Phrase",
    "SequenceLayout",
    "VLBertProcessor",
    "ViLBertProcessor",
    "VisualBERTProcessor",
    "locate_image_tokens",
    "open_image",
    "open_images",
    "read_phrase",
]
