# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
# The names of the package: `__init__.py` reads them here, and so do type checkers and editors.
from .analysis.audit.examples import AuditExample
from .analysis.audit.result import AuditResult
from .analysis.audit.run import audit
from .dataset_scripts.builders import BUILDERS
from .dataset_scripts.regions.table import RegionTable, RegionTableWriter
from .families import FAMILIES, Family
from .metrics.attention_grounding import AttentionGrounding
from .modeling import (
    BackboneRegionFeatures,
    BackboneRegionsConfig,
    FastRCNNConfig,
    FastRCNNFeatures,
    VisualBERTConfig,
    VisualBERTForMultipleChoice,
    VisualBERTForPhraseGrounding,
    VisualBERTForPreTraining,
    VisualBERTForReferringExpression,
    VisualBERTForVGP,
    VisualBERTForVisualQuestionAnswering,
    VisualBERTForVisualReasoning,
    VisualBERTModel,
    VisualBERTPreTrainedModel,
    VisualGroundingPipeline,
    VLBertConfig,
    VLBertForMultipleChoice,
    VLBertForPreTraining,
    VLBertForReferringExpression,
    VLBertForVGP,
    VLBertForVisualQuestionAnswering,
    VLBertModel,
    VLBertPreTrainedModel,
    load_region_features,
)
from .processing import FastRCNNImageProcessor, GroundedProcessor, VisualBERTProcessor, VLBertProcessor
from .supervision import attention_rollout, get_method, method_names, supervise
from .tasks import TASKS, Task
from .training.loop.trainer import GroundingTrainer
from .training.recipes.recipe import load_recipe

__version__: str

__all__ = [
    "BUILDERS",
    "FAMILIES",
    "TASKS",
    "AttentionGrounding",
    "AuditExample",
    "AuditResult",
    "BackboneRegionFeatures",
    "BackboneRegionsConfig",
    "Family",
    "FastRCNNConfig",
    "FastRCNNFeatures",
    "FastRCNNImageProcessor",
    "GroundedProcessor",
    "GroundingTrainer",
    "RegionTable",
    "RegionTableWriter",
    "Task",
    "VLBertConfig",
    "VLBertForMultipleChoice",
    "VLBertForPreTraining",
    "VLBertForReferringExpression",
    "VLBertForVGP",
    "VLBertForVisualQuestionAnswering",
    "VLBertModel",
    "VLBertPreTrainedModel",
    "VLBertProcessor",
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
    "VisualBERTProcessor",
    "VisualGroundingPipeline",
    "attention_rollout",
    "audit",
    "get_method",
    "load_recipe",
    "load_region_features",
    "method_names",
    "supervise",
]
