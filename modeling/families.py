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
"""Which model families there are and what each can do. Does not travel with a checkpoint.

A task names a head; the family that a recipe or a checkpoint has decides which class that is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from .configuration_visualbert import VisualBERTConfig
from .configuration_vl_bert import VLBertConfig
from .modeling_visualbert import (
    VisualBERTForMultipleChoice,
    VisualBERTForPhraseGrounding,
    VisualBERTForPreTraining,
    VisualBERTForReferringExpression,
    VisualBERTForVGP,
    VisualBERTForVisualQuestionAnswering,
    VisualBERTForVisualReasoning,
    VisualBERTModel,
)
from .modeling_vl_bert import (
    VLBertForMultipleChoice,
    VLBertForPreTraining,
    VLBertForReferringExpression,
    VLBertForVGP,
    VLBertForVisualQuestionAnswering,
    VLBertModel,
)


@dataclass(frozen=True)
class Family:
    """A model family.

    Args:
        config_class: its configuration.
        base_model: the model without heads.
        heads: name of a head -> the class that has it. A head of one name takes the same targets and returns the same
            outputs in every family, so that one task serves all.
        reads: other `model_type`s whose checkpoints its classes load.
    """

    config_class: type[PreTrainedConfig]
    base_model: type[PreTrainedModel]
    heads: Mapping[str, type[PreTrainedModel]]
    reads: tuple[str, ...] = ()

    def head_of(self, architecture: str) -> str | None:
        """The head of the class of this name in a checkpoint's `architectures`; None for no head."""
        classes: Any = self.heads.items()
        named = {name: head for head, cls in classes for name in (cls.__name__, *cls._other_names)}
        return named.get(architecture)


FAMILIES: dict[str, Family] = {
    "vl_bert": Family(
        VLBertConfig,
        VLBertModel,
        {
            "pretraining": VLBertForPreTraining,
            "vgp": VLBertForVGP,
            "referring_expressions": VLBertForReferringExpression,
            "vqa": VLBertForVisualQuestionAnswering,
            "multiple_choice": VLBertForMultipleChoice,
        },
    ),
    "visualbert": Family(
        VisualBERTConfig,
        VisualBERTModel,
        {
            "pretraining": VisualBERTForPreTraining,
            "vgp": VisualBERTForVGP,
            "referring_expressions": VisualBERTForReferringExpression,
            "vqa": VisualBERTForVisualQuestionAnswering,
            "multiple_choice": VisualBERTForMultipleChoice,
            "visual_reasoning": VisualBERTForVisualReasoning,
            "phrase_grounding": VisualBERTForPhraseGrounding,
        },
        reads=("visual_bert",),
    ),
}


def find_family(model_type: str) -> str | None:
    """The key in `FAMILIES` of the family whose classes load checkpoints of this `model_type`; None for none."""
    for name, family in FAMILIES.items():
        if model_type == name or model_type in family.reads:
            return name
    return None


__all__ = ["FAMILIES", "Family", "find_family"]
