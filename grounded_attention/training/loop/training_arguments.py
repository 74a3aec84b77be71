# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The arguments of a training: those of transformers and a few more."""

from dataclasses import dataclass

from transformers import TrainingArguments

from .learning_rates import MAPPING, check_mapping


@dataclass
class GroundingTrainingArguments(TrainingArguments):
    """`TrainingArguments` and what this package adds to them."""

    learning_rate_mapping: dict[str, float] | None = None
    skip_nonfinite_batches: bool = False

    def __post_init__(self):
        super().__post_init__()
        check_mapping(self.learning_rate_mapping, MAPPING)
