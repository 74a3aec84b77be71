# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
# The names of the package: `__init__.py` reads them here, and so do type checkers and editors.
from .dataset_scripts.builders import BUILDERS
from .dataset_scripts.regions.table import RegionTable, RegionTableWriter
from .dataset_scripts.rows import GroundedRows, grounded_rows
from .families import FAMILIES, Family
from .heads.attention_grounding import AttentionGrounding
from .heads.boxes import box_columns
from .heads.examples import AuditExample, grounded_examples
from .heads.heads_file import ChosenHeads
from .heads.measure import audit
from .heads.pipeline import PatchGroundingPipeline
from .heads.ranking import HeadRanking, evaluate_heads, rank_heads
from .heads.table import AuditResult, HeadTable
from .lens.look import look
from .lens.page import lens_page
from .lens.pointing import Pointed, point
from .lens.word_maps import Lens
from .modeling import (
    BackboneRegionFeatures,
    BackboneRegionsConfig,
    FastRCNNConfig,
    FastRCNNFeatures,
    LXMERTConfig,
    LXMERTForMultipleChoice,
    LXMERTForPhraseGrounding,
    LXMERTForPreTraining,
    LXMERTForReferringExpression,
    LXMERTForVGP,
    LXMERTForVisualQuestionAnswering,
    LXMERTForVisualReasoning,
    LXMERTModel,
    LXMERTPreTrainedModel,
    ViLBertConfig,
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
from .processing import (
    FastRCNNImageProcessor,
    GroundedProcessor,
    ImageTokens,
    LXMERTProcessor,
    PatchGroundingProcessor,
    Phrase,
    ViLBertProcessor,
    VisualBERTProcessor,
    VLBertProcessor,
    locate_image_tokens,
    read_phrase,
)
from .supervision import attention_rollout, get_method, method_names, supervise
from .supervision.distillation import AttentionDistillation
from .supervision.earlier import EarlierAttention
from .supervision.head_masking import mask_heads
from .supervision.margin import AttentionMargin
from .supervision.steering import steer_heads
from .tasks import TASKS, Task
from .training.loop.data import GroundingCollator
from .training.loop.responses import response_batch
from .training.loop.rewarded import AttentionTeacher, GroundedDPOTrainer, GroundedGRPOTrainer
from .training.loop.trainer import GroundingTrainer
from .training.loop.trainer_mixin import GroundingTrainerMixin, grounding_loss
from .training.recipes.recipe import load_recipe

__version__: str

__all__ = [
    "BUILDERS",
    "FAMILIES",
    "TASKS",
    "AttentionDistillation",
    "AttentionGrounding",
    "AttentionMargin",
    "AttentionTeacher",
    "AuditExample",
    "AuditResult",
    "BackboneRegionFeatures",
    "BackboneRegionsConfig",
    "ChosenHeads",
    "EarlierAttention",
    "Family",
    "FastRCNNConfig",
    "FastRCNNFeatures",
    "FastRCNNImageProcessor",
    "GroundedDPOTrainer",
    "GroundedGRPOTrainer",
    "GroundedProcessor",
    "GroundedRows",
    "GroundingCollator",
    "GroundingTrainer",
    "GroundingTrainerMixin",
    "HeadRanking",
    "HeadTable",
    "ImageTokens",
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
    "LXMERTProcessor",
    "Lens",
    "PatchGroundingPipeline",
    "PatchGroundingProcessor",
    "Phrase",
    "Pointed",
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
    "ViLBertProcessor",
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
    "box_columns",
    "evaluate_heads",
    "get_method",
    "grounded_examples",
    "grounded_rows",
    "grounding_loss",
    "lens_page",
    "load_recipe",
    "load_region_features",
    "locate_image_tokens",
    "look",
    "mask_heads",
    "method_names",
    "point",
    "rank_heads",
    "read_phrase",
    "response_batch",
    "steer_heads",
    "supervise",
]
