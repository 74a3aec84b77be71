# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Model families for the Hub. Importing this package registers them with transformers' Auto classes."""

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from transformers import AutoModel
from transformers.pipelines import PIPELINE_REGISTRY

from .auto_classes import CUSTOM_PIPELINES
from .configuration_backbone_regions import BackboneRegionsConfig
from .configuration_fast_rcnn import FastRCNNConfig
from .configuration_lxmert import LXMERTConfig
from .configuration_vilbert import ViLBertConfig
from .configuration_visualbert import VisualBERTConfig
from .configuration_vl_bert import VLBertConfig
from .modeling_backbone_regions import BackboneRegionFeatures
from .modeling_fast_rcnn import FastRCNNFeatures
from .modeling_lxmert import (
    LXMERTForMultipleChoice,
    LXMERTForPhraseGrounding,
    LXMERTForPreTraining,
    LXMERTForReferringExpression,
    LXMERTForVGP,
    LXMERTForVisualQuestionAnswering,
    LXMERTForVisualReasoning,
    LXMERTModel,
    LXMERTPreTrainedModel,
)
from .modeling_vilbert import (
    ViLBertForMultipleChoice,
    ViLBertForMultiTask,
    ViLBertForPhraseGrounding,
    ViLBertForPreTraining,
    ViLBertForReferringExpression,
    ViLBertForVGP,
    ViLBertForVisualQuestionAnswering,
    ViLBertForVisualReasoning,
    ViLBertModel,
    ViLBertPreTrainedModel,
)
from .modeling_visualbert import (
    VisualBERTForMultipleChoice,
    VisualBERTForPhraseGrounding,
    VisualBERTForPreTraining,
    VisualBERTForReferringExpression,
    VisualBERTForVGP,
    VisualBERTForVisualQuestionAnswering,
    VisualBERTForVisualReasoning,
    VisualBERTModel,
    VisualBERTPreTrainedModel,
)
from .modeling_vl_bert import (
    VLBertForMultipleChoice,
    VLBertForPreTraining,
    VLBertForReferringExpression,
    VLBertForVGP,
    VLBertForVisualQuestionAnswering,
    VLBertModel,
    VLBertPreTrainedModel,
)
from .pipeline_visual_grounding import VisualGroundingPipeline
from .region_feature_models import load_region_features
from .registration import register_models

register_models()

for task, entry in CUSTOM_PIPELINES.items():
    if task not in PIPELINE_REGISTRY.supported_tasks:  # again, it would warn
        PIPELINE_REGISTRY.register_pipeline(task, VisualGroundingPipeline, pt_model=AutoModel, type=entry["type"])

__all__ = [
    "OLDEST_TRANSFORMERS",
    "BackboneRegionFeatures",
    "BackboneRegionsConfig",
    "FastRCNNConfig",
    "FastRCNNFeatures",
    "LXMERTConfig",
    "LXMERTForMultipleChoice",
    "LXMERTForPhraseGrounding",
    "LXMERTForPreTraining",
    "LXMERTForReferringExpression",
    "LXMERTForVGP",
    "LXMERTForVisualQuestionAnswering",
    "LXMERTForVisualReasoning",
    "LXMERTModel",
    "LXMERTPreTrainedModel",
    "VLBertConfig",
    "VLBertForMultipleChoice",
    "VLBertForPreTraining",
    "VLBertForReferringExpression",
    "VLBertForVGP",
    "VLBertForVisualQuestionAnswering",
    "VLBertModel",
    "VLBertPreTrainedModel",
    "ViLBertConfig",
    "ViLBertForMultiTask",
    "ViLBertForMultipleChoice",
    "ViLBertForPhraseGrounding",
    "ViLBertForPreTraining",
    "ViLBertForReferringExpression",
    "ViLBertForVGP",
    "ViLBertForVisualQuestionAnswering",
    "ViLBertForVisualReasoning",
    "ViLBertModel",
    "ViLBertPreTrainedModel",
    "VisualBERTConfig",
    "VisualBERTForMultipleChoice",
    "VisualBERTForPhraseGrounding",
    "VisualBERTForPreTraining",
    "VisualBERTForReferringExpression",
    "VisualBERTForVGP",
    "VisualBERTForVisualQuestionAnswering",
    "VisualBERTForVisualReasoning",
    "VisualBERTModel",
    "VisualBERTPreTrainedModel",
    "VisualGroundingPipeline",
    "load_region_features",
]
