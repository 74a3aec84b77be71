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

from ..utils.named_types import Fields

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers.utils import auto_docstring

from .attention_calls import AttentionCall
from .task_config import OneStreamConfig, PipelineEntry, TextFirstPooledConfig, make_auto_map

# The VisualBERT of transformers; these models read its checkpoints.
_THEIR_MODEL_TYPE = "visual_bert"

# Every class that is saved with a checkpoint.
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
    Configuration of the VisualBERT models (https://huggingface.co/papers/1908.03557). It also reads configurations of
    the VisualBERT in transformers, which uses the same names of weights. The defaults match the public checkpoints.
    Where the paper differs from the public code, the description of the field gives both.
    """
)
@strict
class VisualBERTConfig(PipelineEntry, TextFirstPooledConfig, OneStreamConfig):
    r"""
    visual_embedding_dim (`int`, *optional*, defaults to 2048):
        Width of the region features; `region_feature_size` is another name for it.
    special_visual_initialize (`bool`, *optional*, defaults to `True`):
        Whether the token types and positions of regions start as copies of those of the text (public code).
    bypass_transformer (`bool`, *optional*, defaults to `False`):
        Whether regions join the text only in one additional layer after the encoder ("without early fusion" in the
        public code).
    pooler_size (`int`, *optional*):
        Width of the pooled state; `hidden_size` when not given.
    pooler_act (`str`, *optional*, defaults to `"tanh"`):
        Activation of the pooled state; `"relu"` in the checkpoints of VOLTA.
    fusion_method (`str`, *optional*, defaults to `"text"`):
        The pooled state: `"text"`, of the first token, or the product (`"mul"`) or sum (`"sum"`) with that of the
        first region, which is then the whole image: give the model the regions of a [`ViLBertProcessor`].
    vqa_loss (`str`, *optional*, defaults to `"kl_divergence"`):
        Loss of [`VisualBERTForVisualQuestionAnswering`]: `"kl_divergence"` from the unchanged scores of the answers,
        summed over the answers (public code), `"binary_cross_entropy"`, one decision per answer, or `"cross_entropy"`,
        with the scores divided by their sum.
    choice_loss (`str`, *optional*, defaults to `"softmax"`):
        Loss of [`VisualBERTForMultipleChoice`]: `"softmax"`, one choice among all (public code), or `"sigmoid"`, one
        decision per choice.
    phrase_scorer (`str`, *optional*, defaults to `"single_head"`):
        How [`VisualBERTForPhraseGrounding`] scores regions: `"single_head"`, one attention head with the head width of
        the encoder, over phrases and regions only (public code), or `"self_attention"`, the mean over the heads of an
        additional self-attention over the whole sequence (paper, appendix B.4).

    Raises:
        StrictDataclassFieldValidationError: if a field has the wrong type or an unknown choice.
        StrictDataclassClassValidationError: if fields contradict each other; the message contains their names.

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
    pooler_size: int | None = None
    pooler_act: Literal["tanh", "relu"] = "tanh"
    fusion_method: Literal["text", "mul", "sum"] = "text"
    vqa_loss: Literal["kl_divergence", "binary_cross_entropy", "cross_entropy"] = "kl_divergence"
    choice_loss: Literal["softmax", "sigmoid"] = "softmax"
    phrase_scorer: Literal["single_head", "self_attention"] = "single_head"

    @classmethod
    def adapt_fields(cls, fields: Fields) -> Fields:
        """Converts the fields of the VisualBERT in transformers to the fields of this family."""
        if fields.get("model_type") != _THEIR_MODEL_TYPE:
            return fields
        # The default special tokens there are those of RoBERTa, but every public checkpoint has the vocabulary of
        # BERT, where [PAD] is row 0 and row 1 is another word.
        kept = {name: value for name, value in fields.items() if name not in ("bos_token_id", "eos_token_id")}
        # 512 is the default there for a missing field.
        return {"visual_embedding_dim": 512, **kept, "model_type": cls.model_type, "pad_token_id": 0}

    @property
    def grounding_calls(self) -> tuple[AttentionCall, ...]:
        """The attention calls in which words and regions meet, in order; none with `bypass_transformer`."""
        if self.bypass_transformer:
            return ()
        return super().grounding_calls


__all__ = ["OLDEST_TRANSFORMERS", "VisualBERTConfig"]
