# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The inputs of an exported model: names, shapes, dtypes.

Axes with a name have any size: batch, words, regions, and what a task adds. Every input is required.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch

INTEGER, FLOAT, BOOL = torch.int64, torch.float32, torch.bool
# Example sizes of the named axes. They are different primes, so that the graph confuses no two of them.
SIZES = {"batch": 2, "choices": 3, "pairs": 5, "phrases": 7, "regions": 11, "words": 13}
TEXTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class ExportInput:
    """An input of an exported model."""

    name: str
    axes: tuple[str | int, ...]
    dtype: torch.dtype
    content: str

    @property
    def type_name(self) -> str:
        """The dtype in NumPy's words, such as "int64"."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def shape(self) -> str:
        """The axes in brackets, such as "(batch, words)"."""
        return f"({', '.join(map(str, self.axes))}{',' * (len(self.axes) == 1)})"

    def example(self) -> torch.Tensor:
        """Zeros for indices and features, ones for masks, of the sizes `SIZES`."""
        sizes = [SIZES[axis] if isinstance(axis, str) else axis for axis in self.axes]
        made = torch.ones if self.name.endswith("mask") else torch.zeros
        return made(sizes, dtype=self.dtype)


def export_inputs(model: Any) -> list[ExportInput]:
    """The inputs of a model of one of the families, in order."""
    config, name = model.config, type(model).__name__
    if getattr(config, "vision_config", None) is not None:
        raise ValueError(
            f"{name} computes region features from pixels (config.vision_config), and the number of regions of each "
            "image decides what is computed, so it cannot be exported; expected a model that reads region features"
        )
    texts = ("batch", "choices", "words") if name.endswith("ForMultipleChoice") else ("batch", "words")
    contents = ("tokens of the text", "1 for tokens, 0 for padding", "types of the tokens")
    inputs = [ExportInput(text, texts, INTEGER, content) for text, content in zip(TEXTS, contents, strict=True)]
    known = inspect.signature(model.base_model.forward).parameters
    inputs += [
        ExportInput(
            "region_features", ("batch", "regions", config.region_feature_size), FLOAT, "features of the regions"
        ),
        ExportInput("region_boxes", ("batch", "regions", 4), FLOAT, "x1 y1 x2 y2 divided by image width and height"),
        ExportInput("region_attention_mask", ("batch", "regions"), INTEGER, "1 for regions, 0 for padding"),
    ]
    if "task_ids" in known and config.task_specific_tokens:
        inputs.append(ExportInput("task_ids", ("batch",), INTEGER, "number of the task"))
    read = inspect.signature(model.forward).parameters
    return inputs + [each for end, each in _TASK_INPUTS if name.endswith(end) and each.name in read]


_PHRASES = ExportInput("phrase_mask", ("batch", "phrases", "words"), BOOL, "true for the tokens of each phrase")
# End of a class name -> what this head reads, if its family does.
_TASK_INPUTS = (
    ("ForVGP", _PHRASES),
    ("ForVGP", ExportInput("phrase_pairs", ("batch", "pairs", 2), INTEGER, "two phrases each, -1 for padding")),
    ("ForPhraseGrounding", _PHRASES),
    (
        "ForVisualQuestionAnswering",
        ExportInput("answer_positions", ("batch",), INTEGER, "column of the [MASK] that stands for the answer"),
    ),
    (
        "ForVisualReasoning",
        ExportInput("region_token_type_ids", ("batch", "regions"), INTEGER, "image of each region, 0 or 1"),
    ),
)
