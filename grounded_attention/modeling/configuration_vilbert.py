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
"""ViLBERT model configuration"""

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.utils import auto_docstring

from .attention_calls import AttentionCall
from .task_config import BertTextConfig, PipelineEntry, RegionTargets, make_auto_map
from .two_streams import cross_calls

# Every class that is saved with a checkpoint.
AUTO_MAP = make_auto_map(
    "vilbert",
    "ViLBertConfig",
    "ViLBertModel",
    "ViLBertForMultipleChoice",
    "ViLBertForMultiTask",
    "ViLBertForPhraseGrounding",
    "ViLBertForPreTraining",
    "ViLBertForReferringExpression",
    "ViLBertForVGP",
    "ViLBertForVisualQuestionAnswering",
    "ViLBertForVisualReasoning",
)


@auto_docstring(
    custom_intro="""
    Configuration of the ViLBERT models (https://huggingface.co/papers/1908.02265) and of the 12-in-1 model
    (https://huggingface.co/papers/1912.02315). The names and defaults are those of the public configuration
    `bert_base_6layer_6conect`, except `visual_target`, whose values have names here.
    """
)
@strict
class ViLBertConfig(PipelineEntry, BertTextConfig):
    r"""
    v_feature_size (`int`, *optional*, defaults to 2048):
        Width of the region features; `region_feature_size` is another name for it.
    v_target_size (`int`, *optional*, defaults to 1601):
        Number of detector classes that the region head predicts; `region_classes` is another name for it. With a
        `visual_target` other than `"classes"` the head predicts features, and its width is `v_feature_size`.
    v_hidden_size (`int`, *optional*, defaults to 1024):
        Width of the regions' states.
    v_num_hidden_layers (`int`, *optional*, defaults to 6):
        Number of layers of the regions' stream.
    v_num_attention_heads (`int`, *optional*, defaults to 8):
        Number of attention heads of these layers.
    v_intermediate_size (`int`, *optional*, defaults to 1024):
        Width of their feed-forward layers.
    v_hidden_act (`str`, *optional*, defaults to `"gelu"`):
        Their activation.
    v_hidden_dropout_prob (`float`, *optional*, defaults to 0.1):
        Dropout of their states.
    v_attention_probs_dropout_prob (`float`, *optional*, defaults to 0.1):
        Dropout of their attention.
    bi_hidden_size (`int`, *optional*, defaults to 1024):
        Width of the co-attention.
    bi_num_attention_heads (`int`, *optional*, defaults to 8):
        Number of heads of the co-attention.
    pooler_size (`int`, *optional*):
        Width of the pooled states; `bi_hidden_size` when not given.
    t_biattention_id (`list[int]`, *optional*, defaults to `[]`):
        Co-attention i runs after the text layers below `t_biattention_id[i]`; increasing. If empty, there is
        a co-attention for each region layer: `[6, 7, 8, 9, 10, 11]` for 12 text layers and 6 region layers.
    v_biattention_id (`list[int]`, *optional*, defaults to `[]`):
        Co-attention i runs after the region layers below `v_biattention_id[i]`; increasing. `[0, 1, 2, 3, 4, 5]` if
        empty.
    with_coattention (`bool`, *optional*, defaults to `True`):
        Whether the co-attention layers run. Without them the streams meet only in the pooled state.
    dynamic_attention (`bool`, *optional*, defaults to `False`):
        Whether the mean text state scales the queries and keys of the region layers.
    fusion_method (`str`, *optional*, defaults to `"mul"`):
        How the pooled states of both streams are combined: `"mul"` or `"sum"`.
    fixed_t_layer (`int`, *optional*, defaults to 0):
        Number of text layers, from the first, that are not trained.
    fixed_v_layer (`int`, *optional*, defaults to 0):
        Number of region layers, from the first, that are not trained.
    task_specific_tokens (`bool`, *optional*, defaults to `False`):
        Whether the text has a learned token for the task, see `task_ids` in [`ViLBertModel`] (12-in-1).
    num_task_tokens (`int`, *optional*, defaults to 20):
        Number of these tokens.
    visual_target (`str`, *optional*, defaults to `"classes"`):
        What pre-training predicts of a masked region: `"classes"`, the detector's class or class probabilities (0 in
        the public code), `"features"`, the mean squared error of its feature (1), or `"nce"`, which feature of the
        batch is its own (2).
    num_negative (`int`, *optional*, defaults to 128):
        Number of other features for `"nce"`: 70 % from other images of the batch, the rest from the same image.
    relationship_head (`bool`, *optional*, defaults to `True`):
        Whether a model for pre-training predicts if the caption belongs to the image.
    answer_head (`str`, *optional*, defaults to `"gelu"`):
        The head of answers: `"gelu"`, linear, GELU, LayerNorm, linear (12-in-1), or `"relu"`, linear, ReLU, dropout
        0.5, linear (first public code).
    num_gqa_labels (`int`, *optional*, defaults to 1533):
        Number of answers of GQA in [`ViLBertForMultiTask`]; `None` for the first public code, which has no heads for
        GQA, entailment and two images.
    choice_loss (`str`, *optional*, defaults to `"softmax"`):
        Loss of [`ViLBertForMultipleChoice`]: `"softmax"`, one choice among all (public code), or `"sigmoid"`, one
        decision per choice.

    Raises:
        StrictDataclassFieldValidationError: if a field has the wrong type or an unknown choice.
        StrictDataclassClassValidationError: if fields contradict each other; the message contains their names.

    Example:

    ```python
    >>> from grounded_attention import ViLBertConfig, ViLBertModel

    >>> configuration = ViLBertConfig(num_hidden_layers=8, t_biattention_id=[6, 7], v_biattention_id=[0, 1])
    >>> model = ViLBertModel(configuration)
    ```"""

    model_type = "vilbert"
    attribute_map = {"region_feature_size": "v_feature_size", "region_classes": "v_target_size"}
    code_places = AUTO_MAP

    v_feature_size: int = 2048
    v_target_size: int = 1601
    v_hidden_size: int = 1024
    v_num_hidden_layers: int = 6
    v_num_attention_heads: int = 8
    v_intermediate_size: int = 1024
    v_hidden_act: str = "gelu"
    v_hidden_dropout_prob: float | int = 0.1
    v_attention_probs_dropout_prob: float | int = 0.1
    bi_hidden_size: int = 1024
    bi_num_attention_heads: int = 8
    pooler_size: int | None = None
    t_biattention_id: list[int] | tuple[int, ...] = ()
    v_biattention_id: list[int] | tuple[int, ...] = ()
    with_coattention: bool = True
    dynamic_attention: bool = False
    fusion_method: Literal["mul", "sum"] = "mul"
    fixed_t_layer: int = 0
    fixed_v_layer: int = 0
    task_specific_tokens: bool = False
    num_task_tokens: int = 20
    visual_target: Literal["classes", "features", "nce"] = "classes"
    num_negative: int = 128
    relationship_head: bool = True
    answer_head: Literal["gelu", "relu"] = "gelu"
    num_gqa_labels: int | None = 1533
    choice_loss: Literal["sigmoid", "softmax"] = "softmax"

    def __post_init__(self, **kwargs: Any) -> None:
        number = min(self.num_hidden_layers, self.v_num_hidden_layers)
        if not self.t_biattention_id:
            self.t_biattention_id = list(range(self.num_hidden_layers - number, self.num_hidden_layers))
        if not self.v_biattention_id:
            self.v_biattention_id = list(range(number))
        super().__post_init__(**kwargs)

    @property
    def region_targets(self) -> RegionTargets:
        """What the model predicts of masked regions: classes or features."""
        classes = self.visual_target == "classes"
        num_negative = self.num_negative if self.visual_target == "nce" else None
        return RegionTargets(classes, features=not classes, num_negative=num_negative)

    @property
    def region_hidden_size(self) -> int:
        """Width of the regions' states."""
        return self.v_hidden_size

    @property
    def pooled_hidden_size(self) -> int:
        """Width of the pooled state."""
        if self.pooler_size is None:
            return self.bi_hidden_size
        return self.pooler_size

    @property
    def pools_as_bert(self) -> bool:
        """Whether the pooler is that of BERT: never here."""
        return False

    @property
    def schedule(self) -> tuple[tuple[str, int], ...]:
        """The layers in the order of execution: `("text", i)`, `("regions", i)` and `("cross", i)`."""
        order: list[tuple[str, int]] = []
        done = {"text": 0, "regions": 0}
        ends = [*zip(self.t_biattention_id, self.v_biattention_id, strict=True)]
        for number, (text_end, region_end) in enumerate(ends):
            for stream, end in (("text", text_end), ("regions", region_end)):
                order += [(stream, layer) for layer in range(done[stream], end)]
                done[stream] = end
            if self.with_coattention:
                order.append(("cross", number))
        # After the last co-attention the regions come first.
        order += [("regions", layer) for layer in range(done["regions"], self.v_num_hidden_layers)]
        return (*order, *(("text", layer) for layer in range(done["text"], self.num_hidden_layers)))

    @property
    def grounding_calls(self) -> tuple[AttentionCall, ...]:
        """The attention calls in which words and regions meet, in order: two for each co-attention."""
        numbers = range(len(self.t_biattention_id)) if self.with_coattention else ()
        return tuple(call for number in numbers for call in cross_calls(number, self.bi_num_attention_heads))

    @property
    def attention_calls(self) -> tuple[AttentionCall, ...]:
        """All attention calls in the order of execution: the items of `attentions` in a model's output."""
        heads = {"text": self.num_attention_heads, "regions": self.v_num_attention_heads}
        calls: list[AttentionCall] = []
        for stream, number in self.schedule:
            if stream == "cross":
                calls += cross_calls(number, self.bi_num_attention_heads)
            else:
                calls.append(AttentionCall(f"{stream} {number}", stream, stream, heads[stream]))
        return tuple(calls)

    def validate_architecture(self):
        """Part of `@strict`-powered validation. Validates that the fields fit together."""
        super().validate_architecture()
        self.check_multiple("v_hidden_size", "v_num_attention_heads")
        self.check_multiple("bi_hidden_size", "bi_num_attention_heads")
        if len(self.t_biattention_id) != len(self.v_biattention_id):
            raise ValueError(
                f"t_biattention_id has {len(self.t_biattention_id)} entries, but v_biattention_id "
                f"{len(self.v_biattention_id)}; each co-attention needs one of both."
            )
        for name, layers in (("t_biattention_id", "num_hidden_layers"), ("v_biattention_id", "v_num_hidden_layers")):
            ids = list(getattr(self, name))
            last = getattr(self, layers)
            if ids != sorted(ids) or any(not 0 <= layer <= last for layer in ids):
                raise ValueError(
                    f"{name} is {ids}; expected increasing numbers of layers from 0 to {layers} ({last})."
                )
        for name, layers in (("fixed_t_layer", "num_hidden_layers"), ("fixed_v_layer", "v_num_hidden_layers")):
            if not 0 <= getattr(self, name) <= getattr(self, layers):
                raise ValueError(
                    f"{name} ({getattr(self, name)}) must be from 0 to {layers} ({getattr(self, layers)})."
                )


__all__ = ["OLDEST_TRANSFORMERS", "ViLBertConfig"]
