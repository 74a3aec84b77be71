# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
# The names of the package: `__init__.py` reads them here, and so do type checkers and editors.
from .grounded_batch import DroppedPhrase as DroppedPhrase
from .grounded_batch import GroundedBatch as GroundedBatch
from .image_processing_fast_rcnn import FastRCNNImageProcessor as FastRCNNImageProcessor
from .image_processing_fast_rcnn import open_images as open_images
from .image_tokens import ImageTokens as ImageTokens
from .image_tokens import locate_image_tokens as locate_image_tokens
from .oldest_transformers import OLDEST_TRANSFORMERS as OLDEST_TRANSFORMERS
from .patch_grounding import PatchGroundingProcessor as PatchGroundingProcessor
from .phrase import Phrase as Phrase
from .phrase import read_phrase as read_phrase
from .processing_grounded import GroundedProcessor as GroundedProcessor
from .processing_two_streams import LXMERTProcessor as LXMERTProcessor
from .processing_two_streams import ViLBertProcessor as ViLBertProcessor
from .processing_visualbert import VisualBERTProcessor as VisualBERTProcessor
from .processing_vl_bert import VLBertProcessor as VLBertProcessor
from .sequence_layouts import SEQUENCE_LAYOUTS as SEQUENCE_LAYOUTS
from .sequence_layouts import SequenceLayout as SequenceLayout
from .videos import open_image as open_image
