# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a model family is: one entry from which everything else about it follows.

Classes are imported when they are asked for, so that a recipe or a command's help needs no torch.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# Head -> the end of the name of the class that has it. Classes with the same head take the same targets and return the
# same outputs in every family, so that one task serves all.
HEADS = {
    "pretraining": "ForPreTraining",
    "vgp": "ForVGP",
    "referring_expressions": "ForReferringExpression",
    "vqa": "ForVisualQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
    "visual_reasoning": "ForVisualReasoning",
    "phrase_grounding": "ForPhraseGrounding",
}


@dataclass(frozen=True)
class Family:
    """A model family. Its classes are found in `modeling/modeling_<name>.py`, see `config.auto_map`.

    Args:
        name (`str`): `model_type` of its configuration.
        title (`str`): what users call it.
        processor (`str`): name of the class in `processing` that makes its inputs.
        reads (`tuple[str, ...]`, *optional*, defaults to `()`): other `model_type`s whose checkpoints its classes
            load.
        converter (`str`, *optional*): name of the `OriginalFamily` in `conversion/<name>.py`, where original
            checkpoints can be converted.
        citation (`str`, *optional*): BibTeX of its paper, for model cards.
    """

    name: str
    title: str
    processor: str
    reads: tuple[str, ...] = ()
    converter: str | None = None
    citation: str | None = None

    @cached_property
    def classes(self) -> "dict[str, type[PreTrainedModel]]":
        """Its model classes, under the names of `config.auto_map`."""
        from grounded_attention.modeling.registration import model_classes

        return model_classes(self.name)

    @property
    def base_model(self) -> "type[PreTrainedModel]":
        """The model without heads."""
        return self.classes["AutoModel"]

    @property
    def config_class(self) -> "type[PreTrainedConfig]":
        """Its configuration."""
        found: Any = self.base_model.config_class
        return found

    @cached_property
    def heads(self) -> "dict[str, type[PreTrainedModel]]":
        """Name of a head -> the class that has it, for the heads that the family has."""
        classes = self.classes.values()
        return {head: cls for head, end in HEADS.items() for cls in classes if cls.__name__.endswith(end)}

    @property
    def processor_class(self) -> Any:
        """What makes the inputs."""
        from grounded_attention import processing

        return getattr(processing, self.processor)

    def load_converter(self) -> Any:
        """The family's `OriginalFamily`; ValueError where it has none."""
        if self.converter is None:
            raise ValueError(f"original checkpoints of {self.title} can't be converted")
        return getattr(import_module(f"grounded_attention.conversion.{self.name}"), self.converter)

    def head_of(self, architecture: str) -> str | None:
        """The head of the class of this name in a checkpoint's `architectures`; None for no head."""
        named: dict[str, str] = {}
        for head, cls in self.heads.items():
            other_names: tuple[str, ...] = getattr(cls, "_other_names", ())
            named.update(dict.fromkeys((cls.__name__, *other_names), head))
        return named.get(architecture)
