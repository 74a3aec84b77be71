# Copyright 2026 The grounded-attention authors. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""VisualBERT model configuration"""

from .check_transformers import OLDEST_TRANSFORMERS  # isort: skip

import os
from typing import TYPE_CHECKING, Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.utils import auto_docstring

from .attention_calls import AttentionCall
from .auto_classes import make_auto_map
from .pipeline_entry import PipelineEntry
from .task_config import OneStreamConfig

if TYPE_CHECKING:
    # The pipeline and what it imports. Transformers copies what a file names, so these travel with every checkpoint;
    # transformers 5.4 copies only what is named here, beside this file, out of it.
    from .asked_rows import ASKED_ROWS as ASKED_ROWS
    from .caption_phrases import find_phrases as find_phrases
    from .configuration_backbone_regions import BackboneRegionsConfig as BackboneRegionsConfig
    from .configuration_fast_rcnn import FastRCNNConfig as FastRCNNConfig
    from .grounding_items import GroundingItem as GroundingItem
    from .modeling_backbone_regions import BackboneRegionFeatures as BackboneRegionFeatures
    from .modeling_fast_rcnn import FastRCNNFeatures as FastRCNNFeatures
    from .pipeline_visual_grounding import VisualGroundingPipeline as VisualGroundingPipeline
    from .region_feature_models import load_region_features as load_region_features
    from .roi_align import roi_align as roi_align

# transformers' own class, whose checkpoints these models read.
_THEIR_MODEL_TYPE = "visual_bert"

# Every class that travels with a checkpoint.
AUTO_MAP = make_auto_map(
    "visualbert",
    "VisualBERTConfig",
    "VisualBERTModel",
    "VisualBERTForMultipleChoice",
    "VisualBERTForPreTraining",
    "VisualBERTForVisualQuestionAnswering",
    "VisualBERTForPhraseGrounding",
    "VisualBERTForReferringExpression",
    "VisualBERTForVGP",
    "VisualBERTForVisualReasoning",
)


@auto_docstring(
    custom_intro="""
    Configuration of the VisualBERT models (https://huggingface.co/papers/1908.03557). It reads the configurations of
    transformers' VisualBERT too, whose weights have the same names here. The defaults are what the public checkpoints
    need; where the paper differs from the public code, the other choice is named below.
    """
)
@strict
class VisualBERTConfig(PipelineEntry, OneStreamConfig):
    r"""
    visual_embedding_dim (`int`, *optional*, defaults to 2048):
        Width of the region features; `region_feature_size` is another name for it.
    special_visual_initialize (`bool`, *optional*, defaults to `True`):
        Whether the token types and positions of regions start as copies of those of the text (public code).
    bypass_transformer (`bool`, *optional*, defaults to `False`):
        Whether regions join the text only in one further layer behind the encoder (the public code's "without early
        fusion").
    vqa_loss (`str`, *optional*, defaults to `"kl_divergence"`):
        Loss of [`VisualBERTForVisualQuestionAnswering`]: `"kl_divergence"` from the answers' scores as they are,
        summed over the answers (public code), `"binary_cross_entropy"`, one decision an answer, or `"cross_entropy"`,
        with the scores divided by their sum.
    choice_loss (`str`, *optional*, defaults to `"softmax"`):
        Loss of [`VisualBERTForMultipleChoice`]: `"softmax"`, one choice among all (public code), or `"sigmoid"`, one
        decision a choice.
    phrase_scorer (`str`, *optional*, defaults to `"single_head"`):
        How [`VisualBERTForPhraseGrounding`] scores regions: `"single_head"`, one attention head as wide as those of
        the encoder, on phrases and regions alone (public code), or `"self_attention"`, the mean over the heads of a
        further self-attention over the whole sequence (paper, appendix B.4).

    Raises:
        StrictDataclassFieldValidationError: when a field has the wrong type or an unknown choice.
        StrictDataclassClassValidationError: when fields contradict each other; the message names them.

    Example:

    ```python
    >>> from grounded_attention import VisualBERTConfig, VisualBERTModel

    >>> configuration = VisualBERTConfig(num_hidden_layers=2)
    >>> model = VisualBERTModel(configuration)
    ```"""

    model_type = "visualbert"
    attribute_map = {"region_feature_size": "visual_embedding_dim"}
    code_places = AUTO_MAP

    visual_embedding_dim: int = 2048
    bypass_transformer: bool = False
    special_visual_initialize: bool = True
    vqa_loss: Literal["kl_divergence", "binary_cross_entropy", "cross_entropy"] = "kl_divergence"
    choice_loss: Literal["softmax", "sigmoid"] = "softmax"
    phrase_scorer: Literal["single_head", "self_attention"] = "single_head"

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields of a saved configuration, of this family or of transformers' VisualBERT, as here."""
        fields, rest = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        return _adapt_fields(fields), rest

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "VisualBERTConfig":
        """A configuration from the fields of this family or of transformers' VisualBERT; `kwargs` win."""
        return super().from_dict(_adapt_fields(config_dict), **kwargs)

    @property
    def grounding_calls(self) -> tuple[AttentionCall, ...]:
        """The attention calls in which words and regions meet, in order; none with `bypass_transformer`."""
        return () if self.bypass_transformer else super().grounding_calls

    def validate_architecture(self):
        """Part of `@strict`-powered validation. Validates that the fields fit together."""
        super().validate_architecture()
        if self.visual_embedding_dim < 1:
            raise ValueError(f"visual_embedding_dim must be positive, found {self.visual_embedding_dim}.")


def _adapt_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of transformers' VisualBERT as this family has them; others as they are."""
    if fields.get("model_type") != _THEIR_MODEL_TYPE:
        return fields
    # Their special tokens are RoBERTa's by default; the vocabulary of every public checkpoint is BERT's, whose [PAD]
    # is row 0 and whose row 1 is another word.
    kept = {name: value for name, value in fields.items() if name not in ("bos_token_id", "eos_token_id")}
    # 512 is what their configuration means where it does not say.
    return {"visual_embedding_dim": 512, **kept, "model_type": VisualBERTConfig.model_type, "pad_token_id": 0}


VisualBERTConfig.register_for_auto_class("AutoConfig")

__all__ = ["OLDEST_TRANSFORMERS", "VisualBERTConfig"]
