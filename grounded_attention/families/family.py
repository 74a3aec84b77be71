# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The entry of a model family, from which the rest of the package derives everything about the family.

Classes are imported on first use, so a recipe or the help of a command needs no torch.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# Head -> end of the name of its class. Classes with the same head have the same targets and outputs in every family,
# so one task works with all families.
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
    """A model family. Its classes are in `modeling/modeling_<name>.py`, see `config.auto_map`.

    Args:
        name (`str`): name in recipes, and of its files; the `model_type` of its configuration, unless that name is
            taken in transformers.
        title (`str`): display name.
        processor (`str`): name of its processor class in `processing`.
        reads (`tuple[str, ...]`, *optional*, defaults to `()`): other `model_type`s whose checkpoints its classes
            load.
        converter (`str`, *optional*): name of the `OriginalFamily` in `conversion/<name>.py`, if original checkpoints
            can be converted.
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
        """Name in `config.auto_map` -> model class."""
        from grounded_attention.modeling.registration import model_classes

        return model_classes(self.name)

    @property
    def base_model(self) -> "type[PreTrainedModel]":
        """The class of the model without heads."""
        return self.classes["AutoModel"]

    @property
    def config_class(self) -> "type[PreTrainedConfig]":
        """The configuration class."""
        config_class: Any = self.base_model.config_class
        return config_class

    @cached_property
    def heads(self) -> "dict[str, type[PreTrainedModel]]":
        """Head -> its model class, for the heads of the family."""
        classes = self.classes.values()
        return {head: cls for head, end in HEADS.items() for cls in classes if cls.__name__.endswith(end)}

    @property
    def processor_class(self) -> Any:
        """The processor class."""
        from grounded_attention import processing

        return getattr(processing, self.processor)

    def load_converter(self) -> Any:
        """
        Loads the converter of original checkpoints.

        Returns:
            `OriginalFamily`: the converter.

        Raises:
            ValueError: if the family has no converter.
        """
        if self.converter is None:
            raise ValueError(f"the family {self.title} has no converter for original checkpoints")
        return getattr(import_module(f"grounded_attention.conversion.{self.name}"), self.converter)

    def head_of(self, architecture: str) -> str | None:
        """The head of a class name from a checkpoint's `architectures`; `None` if it has no head."""
        named: dict[str, str] = {}
        for head, cls in self.heads.items():
            other_names: tuple[str, ...] = getattr(cls, "_other_names", ())
            named.update(dict.fromkeys((cls.__name__, *other_names), head))
        return named.get(architecture)
