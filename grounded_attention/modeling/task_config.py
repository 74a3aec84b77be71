# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Base classes of configurations: the fields that the shared heads read, and the widths of the states."""

import inspect
import math
import os
import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ..utils.named_types import Fields
from .attention_calls import AttentionCall, one_stream_calls

# Suffix of a class name -> the Auto class that finds the class. `AutoModel` is for the base model only.
AUTO_CLASSES = {
    "Config": "AutoConfig",
    "Model": "AutoModel",
    "Features": "AutoModel",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "ForPreTraining": "AutoModelForPreTraining",
    "ForVisualQuestionAnswering": "AutoModelForVisualQuestionAnswering",
}


def make_auto_map(model_type: str, *names: str) -> dict[str, str]:
    """The `auto_map` of a configuration: the location of each class that is saved with a checkpoint."""
    paths = {}
    for name in names:
        auto = next((auto for end, auto in AUTO_CLASSES.items() if name.endswith(end)), name)
        file = "configuration" if auto == "AutoConfig" else "modeling"
        paths[auto] = f"{file}_{model_type}.{name}"
    return paths


# The content of `custom_pipelines` in config.json, in the form of transformers.
CUSTOM_PIPELINES: dict[str, Fields] = {
    "visual-grounding": {
        "impl": "pipeline_visual_grounding.VisualGroundingPipeline",
        "pt": ["AutoModel"],
        "type": "multimodal",
    }
}


class PipelineEntry:
    """Base of a configuration: writes `custom_pipelines` into config.json, drops that of a checkpoint on loading."""

    def __post_init__(self, **kwargs: Any) -> None:
        if not type(self).__module__.startswith("transformers_modules."):
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)  # type: ignore[misc]

    def to_dict(self) -> Fields:
        return {**super().to_dict(), "custom_pipelines": CUSTOM_PIPELINES}  # type: ignore[misc]


# Fields whose names end so are sizes and counts.
COUNTS = ("_size", "_dim", "_heads", "_labels", "_classes", "_embeddings", "_tokens", "num_negative")


def _check_number(name: str, value: Any, signed: bool) -> None:
    """Raises `ValueError` for a number outside the range that the name of its field says; `None` is not checked."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if name.endswith("_layer"):  # a number of a layer, which families compare with their layers
        return
    if name.endswith(COUNTS):
        fits = value >= 1
        expected = "positive"
    elif "dropout" in name:
        fits = 0 <= value <= 1
        expected = "from 0 to 1"
    elif signed:
        fits = math.isfinite(value)
        expected = "finite"
    else:
        fits = 0 <= value < math.inf
        expected = "finite and 0 or more"
    if not fits:
        raise ValueError(f"{name} must be {expected}, found {value}.")


@dataclass(frozen=True)
class RegionTargets:
    """What a family predicts of masked regions in pre-training."""

    classes: bool = True
    attributes: bool = False  # its attribute
    features: bool = False  # its feature
    num_negative: int | None = None  # the feature is chosen among this many others; if not given, it is regressed
    background: bool = True  # whether class 0 may be the background, see the option `background` of the task
    separate_heads: bool = False  # `region_logits`, `attribute_logits`, `predicted_features` are three outputs
    normalizer: float | None = None  # factor of losses over all regions, weighted by the detector (LXMERT public code)


@strict
class TaskConfig(PreTrainedConfig):
    r"""
    The base class of a family's configuration. `task_heads.py` and `task_forward.py` read these fields, and the widths
    `text_hidden_size`, `region_hidden_size` and `pooled_hidden_size`, which a family defines. The documentation of a
    family includes these descriptions, unless it describes a field itself.

    identification_pooling (`str`, *optional*, defaults to `"pooled"`):
        The input of image description identification: `"pooled"`, the pooler output (public code), or `"cls"`, the
        last state of the first token (VGP paper, equation 1).
    classifier_dropout (`float`, *optional*, defaults to 0.1):
        Dropout in the heads of tasks.
    identification_hidden_size (`int`, *optional*):
        Hidden size of the identification head; a single linear layer when not given.
    vgp_hidden_size (`int`, *optional*):
        Hidden size of the phrase-pair head; a single linear layer when not given.
    num_identification_labels (`int`, *optional*, defaults to 3):
        Number of classes of image description identification: both captions match, the first, the second.
    num_vgp_labels (`int`, *optional*, defaults to 5):
        Number of classes of phrase pairs: 5 for the typology, 2 for paraphrase or not.
    grounding_head (`bool`, *optional*, defaults to `False`):
        Whether a model for VGP scores every pair of phrase and region (indirect supervision).
    box_layer (`int`, *optional*):
        The layer, counted from 0, whose output is the input of the box head in a model for VGP (`box_weight` of
        attention supervision). The box head predicts the box of the object that each word names. When not given, the
        model has no box head. A head trained on one layer can be loaded for another layer.
    alignment_level (`str`, *optional*):
        The level of grounding alignment: `"phrase"`, an LSTM reads the states of a phrase, or `"token"`, a word has
        its own state. When not given, the model has no head for it.
    alignment_size (`int`, *optional*):
        Width of that head and of its LSTM; `pooled_hidden_size` when not given.
    spatial_encoding (`str`, *optional*):
        `"sine"`: a fixed sine code of the centre of a region (DETR's) is added to its embedding. `region_hidden_size`
        must be a multiple of 4.
    vqa_loss (`str`, *optional*, defaults to `"binary_cross_entropy"`):
        Loss of the answers: `"binary_cross_entropy"`, one decision per answer (VL-BERT public code),
        `"cross_entropy"`, one choice among all answers (VL-BERT paper, section 4.2.2), or `"kl_divergence"` from the
        unchanged scores of the answers, summed over the answers (VisualBERT public code).
    choice_loss (`str`, *optional*, defaults to `"sigmoid"`):
        Loss of multiple choice: `"sigmoid"`, one decision per choice (VL-BERT public code), or `"softmax"`, one
        decision among all choices (VisualBERT public code; VL-BERT paper, section 4.2.1).
    referring_dropout (`float`, *optional*, defaults to 0.0):
        Dropout in the head of referring expressions.
    unpad (`bool`, *optional*, defaults to `False`):
        Whether every layer except the attention itself skips padded columns, with any attention back end. The states
        of valid columns do not change; the states of padded columns are zeros. Pre-training with labels also scores
        only the words and regions that have one; all other logits are zeros while the model trains.
    """

    # The location of the classes that are saved with a checkpoint, see `make_auto_map`.
    code_places: ClassVar[dict[str, str]] = {}
    # The fields of a family that may be negative.
    signed_fields: ClassVar[tuple[str, ...]] = ()

    identification_pooling: Literal["pooled", "cls"] = "pooled"
    classifier_dropout: float | int = 0.1
    identification_hidden_size: int | None = None
    vgp_hidden_size: int | None = None
    num_identification_labels: int = 3
    num_vgp_labels: int = 5
    grounding_head: bool = False
    box_layer: int | None = None
    alignment_level: Literal["token", "phrase"] | None = None
    alignment_size: int | None = None
    spatial_encoding: Literal["sine"] | None = None
    vqa_loss: Literal["binary_cross_entropy", "cross_entropy", "kl_divergence"] = "binary_cross_entropy"
    choice_loss: Literal["sigmoid", "softmax"] = "sigmoid"
    referring_dropout: float | int = 0.0
    unpad: bool = False

    def __init_subclass__(cls, *args: Any, **kwargs: Any) -> None:
        own = "\n" + inspect.cleandoc(cls.__doc__ or "")
        fields = re.split(r"\n(?=\w+ \(`)", inspect.cleandoc(TaskConfig.__doc__ or ""))[1:]
        cls.__doc__ = "\n".join(field for field in fields if f"\n{field.partition(' (')[0]} (" not in own) + own
        super().__init_subclass__(*args, **kwargs)

    def __post_init__(self, **kwargs: Any) -> None:
        answers = kwargs.pop("answers", None)
        if answers is not None:
            self.answers = answers
        # File names without the repository of the loaded config, so that a saved directory loads the code in it.
        kwargs["auto_map"] = {**(kwargs.get("auto_map") or {}), **self.code_places}
        super().__post_init__(**kwargs)

    @classmethod
    def adapt_fields(cls, fields: Fields) -> Fields:
        """Converts the fields of the family in transformers to those of this class; others stay unchanged."""
        return fields

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs: Any) -> tuple[Fields, Fields]:
        """Reads a saved configuration, of this family or of the one in transformers, as fields of this one."""
        fields, rest = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        return cls.adapt_fields(fields), rest

    @classmethod
    def from_dict(cls, config_dict: Fields, **kwargs: Any) -> Any:
        """Makes a configuration from fields of this family or of the one in transformers; `kwargs` override."""
        return super().from_dict(cls.adapt_fields(config_dict), **kwargs)

    def validate_architecture(self) -> None:
        """Part of `@strict`-powered validation. Validates that the fields fit together."""
        super().validate_architecture()
        for field in fields(self):
            # transformers checks the ids of special tokens.
            signed = field.name in self.signed_fields or field.name.endswith("_token_id")
            _check_number(field.name, getattr(self, field.name), signed)
        if self.spatial_encoding is not None:
            width: Any = getattr(self, "region_hidden_size", None)
            if width % 4:
                raise ValueError(f"spatial_encoding: the width of the regions is {width}; it must be a multiple of 4.")

    def check_multiple(self, width: str, heads: str) -> None:
        """Raises `ValueError` if the field `width` is no multiple of the field `heads`."""
        size = getattr(self, width)
        count = getattr(self, heads)
        if size % count != 0:
            raise ValueError(f"{width} ({size}) must be a multiple of {heads} ({count}).")

    @property
    def region_targets(self) -> RegionTargets | None:
        """What the model predicts of masked regions in pre-training; `None` if it predicts nothing of them."""
        return None

    @property
    def answers(self) -> list[str]:
        """The answers of visual question answering in the order of its scores: the values of `id2label`."""
        labels: dict = self.id2label or {}
        return [labels[index] for index in range(len(labels))]

    @answers.setter
    def answers(self, answers: list[str]) -> None:
        if not answers or len(set(answers)) < len(answers):
            raise ValueError(
                f"found {len(answers)} answers, of which {len(set(answers))} are distinct; expected each answer once."
            )
        self.id2label = dict(enumerate(answers))
        self.label2id = {answer: index for index, answer in enumerate(answers)}


@strict
class BertSizesConfig(TaskConfig):
    """The base class for a family whose text is embedded as in BERT: the fields of BERT, but no number of layers."""

    # The BERT layers read these fields; all families here are encoders.
    is_decoder = False
    add_cross_attention = False

    vocab_size: int = 30522
    hidden_size: int = 768
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True

    @property
    def max_text_length(self) -> int:
        """Number of positions for text: all positions, unless regions need some."""
        return self.max_position_embeddings

    @property
    def text_hidden_size(self) -> int:
        """Width of the text's states."""
        return self.hidden_size

    def validate_architecture(self) -> None:
        """Part of `@strict`-powered validation. Validates that the fields fit together."""
        super().validate_architecture()
        self.check_multiple("hidden_size", "num_attention_heads")


@strict
class BertTextConfig(BertSizesConfig):
    """The base class for a family whose text is embedded and encoded as in BERT."""

    num_hidden_layers: int = 12

    def validate_architecture(self) -> None:
        """Part of `@strict`-powered validation. Validates that the fields fit together."""
        super().validate_architecture()
        if self.box_layer is not None and not 0 <= self.box_layer < self.num_hidden_layers:
            raise ValueError(f"box_layer ({self.box_layer}) must be from 0 to {self.num_hidden_layers - 1}.")


@strict
class OneStreamConfig(BertTextConfig):
    """The base of a family with one sequence of text and regions and BERT's layers: one width for all states."""

    @property
    def region_hidden_size(self) -> int:
        """Width of the regions' states."""
        return self.hidden_size

    @property
    def pooled_hidden_size(self) -> int:
        """Width of the pooled state."""
        return self.hidden_size

    @property
    def grounding_calls(self) -> tuple[AttentionCall, ...]:
        """The attention calls in which words and regions meet, in order."""
        return one_stream_calls(self.num_hidden_layers, self.num_attention_heads)

    @property
    def attention_calls(self) -> tuple[AttentionCall, ...]:
        """All attention calls in the order of execution: the items of `attentions` in a model's output."""
        return self.grounding_calls


class TextFirstPooledConfig:
    """For a family whose fields `pooler_size`, `pooler_act` and `fusion_method` describe the pooled state; before the
    other base classes. `task_heads.py` has the modules.
    """

    hidden_size: int
    pooler_size: int | None
    pooler_act: str
    fusion_method: str

    @property
    def pooled_hidden_size(self) -> int:
        """Width of the pooled state."""
        if self.pooler_size is None:
            return self.hidden_size
        return self.pooler_size

    @property
    def pools_as_bert(self) -> bool:
        """Whether the pooler is that of BERT."""
        pooling = (self.pooled_hidden_size, self.pooler_act, self.fusion_method)
        return pooling == (self.hidden_size, "tanh", "text")


_ARTICLES = ("a", "an", "the")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_OTHER_WORDS = {**{word: str(number) for number, word in enumerate(_NUMBERS, start=1)}, "grey": "gray"}


def plain_answer(answer: str) -> str:
    """An answer in lower case, without a full stop at the end and an article at the beginning; an answer that is a
    number from one to ten in digits (LXMERT public code).
    """
    words = answer.lower().strip().rstrip(".").split()
    plain = " ".join(words[1:] if len(words) > 1 and words[0] in _ARTICLES else words)
    return _OTHER_WORDS.get(plain, plain)
