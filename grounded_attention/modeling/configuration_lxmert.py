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
"""LXMERT model configuration"""

from ..utils.named_types import Fields

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers.utils import auto_docstring

from .attention_calls import AttentionCall
from .task_config import BertSizesConfig, PipelineEntry, RegionTargets, TextFirstPooledConfig, make_auto_map
from .two_streams import cross_calls

# The LXMERT of transformers; these models read its checkpoints, and it reads theirs.
_THEIR_MODEL_TYPE = "lxmert"

# Every class that is saved with a checkpoint.
AUTO_MAP = make_auto_map(
    "lxmert",
    "LXMERTConfig",
    "LXMERTModel",
    "LXMERTForMultipleChoice",
    "LXMERTForPhraseGrounding",
    "LXMERTForPreTraining",
    "LXMERTForReferringExpression",
    "LXMERTForVGP",
    "LXMERTForVisualQuestionAnswering",
    "LXMERTForVisualReasoning",
)


@auto_docstring(
    custom_intro="""
    Configuration of the LXMERT models (https://huggingface.co/papers/1908.07490). It also reads configurations of the
    LXMERT in transformers, which uses the same names of weights.
    """
)
@strict
class LXMERTConfig(PipelineEntry, TextFirstPooledConfig, BertSizesConfig):
    r"""
    vocab_size (`int`, *optional*, defaults to 30522):
        Size of the vocabulary.
    hidden_size (`int`, *optional*, defaults to 768):
        Width of all states.
    num_attention_heads (`int`, *optional*, defaults to 12):
        Number of heads of every attention.
    intermediate_size (`int`, *optional*, defaults to 3072):
        Width of the feed-forward layers.
    l_layers (`int`, *optional*, defaults to 9):
        Number of layers of the text's stream before the streams meet; `num_hidden_layers` is another name for it.
    r_layers (`int`, *optional*, defaults to 5):
        Number of layers of the regions' stream before the streams meet.
    x_layers (`int`, *optional*, defaults to 5):
        Number of cross layers: attention to the other stream with one module for both directions, self-attention, and
        feed-forward layers.
    visual_feat_dim (`int`, *optional*, defaults to 2048):
        Width of the region features; `region_feature_size` is another name for it.
    visual_pos_dim (`int`, *optional*, defaults to 4):
        Width of a location: 4, `(x1, y1, x2, y2)`, or 5, with the area of the box.
    pooler_size (`int`, *optional*):
        Width of the pooled state; `hidden_size` when not given.
    pooler_act (`str`, *optional*, defaults to `"tanh"`):
        Activation of the pooled state; `"relu"` in the checkpoints of VOLTA.
    fusion_method (`str`, *optional*, defaults to `"text"`):
        The pooled state: `"text"`, of the first token, or the product (`"mul"`) or sum (`"sum"`) with that of the
        first region, which is then the whole image: give the model the regions of a [`ViLBertProcessor`].
    num_object_labels (`int`, *optional*, defaults to 1600):
        Number of detector classes, without background; `region_classes` is another name for it.
    num_attr_labels (`int`, *optional*, defaults to 400):
        Number of attributes of the detector.
    num_qa_labels (`int`, *optional*, defaults to 9500):
        Number of answers in pre-training. Other models have `config.answers`.
    qa_answers (`list[str]`, *optional*):
        The answers of pre-training in the order of their scores. With them a model for question answering starts from
        the rows of its answers.
    task_matched (`bool`, *optional*, defaults to `True`):
        Whether pre-training predicts if the caption belongs to the image; `relationship_head` is another name for it.
    task_mask_lm (`bool`, *optional*, defaults to `True`):
        Whether pre-training predicts masked words.
    task_obj_predict (`bool`, *optional*, defaults to `True`):
        Whether pre-training predicts masked regions.
    task_qa (`bool`, *optional*, defaults to `True`):
        Whether pre-training predicts answers.
    visual_obj_loss (`bool`, *optional*, defaults to `True`):
        Whether the class of a masked region is predicted.
    visual_attr_loss (`bool`, *optional*, defaults to `True`):
        Whether its attribute is predicted.
    visual_feat_loss (`bool`, *optional*, defaults to `True`):
        Whether its feature is predicted.
    visual_loss (`str`, *optional*, defaults to `"masked"`):
        `"masked"`: means over the predicted regions, and the squared error of features (paper, section 3.1.2).
        `"released"`: classes and attributes of all regions, weighted by the confidence of the detector, and the smooth
        L1 error of features; each is the mean over all regions times `visual_loss_normalizer` (public code).
    visual_loss_normalizer (`float`, *optional*, defaults to 6.666666666666667):
        Factor of `visual_loss="released"`: 1 / 0.15.

    Raises:
        StrictDataclassFieldValidationError: if a field has the wrong type or an unknown choice.
        StrictDataclassClassValidationError: if fields contradict each other; the message contains their names.

    Example:

    ```python
    >>> from grounded_attention import LXMERTConfig, LXMERTModel

    >>> configuration = LXMERTConfig(l_layers=2, r_layers=1, x_layers=1)
    >>> model = LXMERTModel(configuration)
    ```"""

    # Another name than that of transformers, so that its classes stay what `AutoModel` finds for its checkpoints.
    model_type = "grounded_lxmert"
    attribute_map = {
        "region_feature_size": "visual_feat_dim",
        "region_classes": "num_object_labels",
        "num_hidden_layers": "l_layers",
        "relationship_head": "task_matched",
    }
    code_places = AUTO_MAP

    l_layers: int = 9
    r_layers: int = 5
    x_layers: int = 5
    visual_feat_dim: int = 2048
    visual_pos_dim: int = 4
    pooler_size: int | None = None
    pooler_act: Literal["tanh", "relu"] = "tanh"
    fusion_method: Literal["text", "mul", "sum"] = "text"
    num_object_labels: int = 1600
    num_attr_labels: int = 400
    num_qa_labels: int = 9500
    qa_answers: list[str] | None = None
    task_matched: bool = True
    task_mask_lm: bool = True
    task_obj_predict: bool = True
    task_qa: bool = True
    visual_obj_loss: bool = True
    visual_attr_loss: bool = True
    visual_feat_loss: bool = True
    visual_loss: Literal["masked", "released"] = "masked"
    visual_loss_normalizer: float | int = 1 / 0.15

    @classmethod
    def adapt_fields(cls, fields: Fields) -> Fields:
        """Converts the fields of the LXMERT in transformers to the fields of this family."""
        if fields.get("model_type") != _THEIR_MODEL_TYPE:
            return fields
        # A dictionary of all layers there; special tokens are those of BERT, whose numbers the vocabulary has.
        left = ("num_hidden_layers", "pad_token_id", "bos_token_id", "eos_token_id")
        kept = {name: value for name, value in fields.items() if name not in left}
        # The losses there are those of the public code.
        adapted = {"visual_loss": "released", **kept, "model_type": cls.model_type}
        if "LxmertForQuestionAnswering" in (fields.get("architectures") or ()) and "id2label" not in fields:
            adapted["num_labels"] = fields.get("num_qa_labels", 9500)
        return adapted

    @property
    def region_targets(self) -> RegionTargets:
        """What the model predicts of masked regions: any of class, attribute and feature."""
        return RegionTargets(
            classes=self.visual_obj_loss,
            attributes=self.visual_attr_loss,
            features=self.visual_feat_loss,
            background=False,
            separate_heads=True,
            normalizer=self.visual_loss_normalizer if self.visual_loss == "released" else None,
        )

    @property
    def region_hidden_size(self) -> int:
        """Width of the regions' states."""
        return self.hidden_size

    @property
    def grounding_calls(self) -> tuple[AttentionCall, ...]:
        """The attention calls in which words and regions meet, in order: two for each cross layer."""
        return tuple(call for number in range(self.x_layers) for call in cross_calls(number, self.num_attention_heads))

    @property
    def attention_calls(self) -> tuple[AttentionCall, ...]:
        """All attention calls in the order of execution: the items of `attentions` in a model's output."""
        heads = self.num_attention_heads
        cross = self.grounding_calls

        def own(stream: str, number: int) -> AttentionCall:
            return AttentionCall(f"{stream} {number}", stream, stream, heads)

        calls = [own("text", number) for number in range(self.l_layers)]
        calls += [own("regions", number) for number in range(self.r_layers)]
        for number in range(self.x_layers):
            calls += cross[2 * number : 2 * number + 2]
            calls += [own("text", self.l_layers + number), own("regions", self.r_layers + number)]
        return tuple(calls)

    def validate_architecture(self):
        """Part of `@strict`-powered validation. Validates that the fields fit together."""
        super().validate_architecture()
        layers = self.l_layers + self.x_layers
        if self.box_layer is not None and not 0 <= self.box_layer < layers:
            raise ValueError(f"box_layer ({self.box_layer}) must be from 0 to {layers - 1}.")
        if self.visual_pos_dim not in (4, 5):
            raise ValueError(f"visual_pos_dim must be 4 or 5, found {self.visual_pos_dim}.")
        wanted = (self.visual_obj_loss, self.visual_attr_loss, self.visual_feat_loss)
        if self.task_obj_predict and not any(wanted):
            raise ValueError(
                "task_obj_predict is True, but visual_obj_loss, visual_attr_loss and visual_feat_loss are all False."
            )
        if self.qa_answers is not None and len(self.qa_answers) != self.num_qa_labels:
            raise ValueError(
                f"qa_answers has {len(self.qa_answers)} answers, but num_qa_labels is {self.num_qa_labels}."
            )


__all__ = ["OLDEST_TRANSFORMERS", "LXMERTConfig"]
