# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Model families for the Hub. Importing this package registers them and processors with Auto classes."""

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from transformers import AutoModel
from transformers.pipelines import PIPELINE_REGISTRY

from ..processing.processor_registration import register_processors
from .configuration_backbone_regions import *
from .configuration_fast_rcnn import *
from .configuration_lxmert import *
from .configuration_vilbert import *
from .configuration_visualbert import *
from .configuration_vl_bert import *
from .modeling_backbone_regions import *
from .modeling_fast_rcnn import *
from .modeling_lxmert import *
from .modeling_vilbert import *
from .modeling_visualbert import *
from .modeling_vl_bert import *
from .pipeline_visual_grounding import VisualGroundingPipeline
from .region_feature_models import load_region_features
from .registration import register_models
from .task_config import CUSTOM_PIPELINES

register_models()
register_processors()

for task, entry in CUSTOM_PIPELINES.items():
    if task not in PIPELINE_REGISTRY.supported_tasks:  # again, it would warn
        PIPELINE_REGISTRY.register_pipeline(task, VisualGroundingPipeline, pt_model=AutoModel, type=entry["type"])
