# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The arguments of a training: those of transformers and a few more."""

from dataclasses import dataclass

from transformers import TrainingArguments

from .learning_rates import MAPPING, check_mapping
from .matmul_precision import FLOAT32, MATMUL, check_precision


@dataclass
class GroundingTrainingArguments(TrainingArguments):
    """`TrainingArguments` and what this package adds to them.

    Args:
        learning_rate_mapping (`dict[str, float]`, *optional*): regular expression -> learning rate (0 or more) of the
            weights whose name it matches with `re.search`, as in sentence-transformers. Names are those of
            `named_parameters()` of the unwrapped model. The first matching expression applies. All other weights keep
            `learning_rate`. The schedule is the same for all weights.
        skip_nonfinite_batches (`bool`, *optional*, defaults to `False`): leave out a step whose loss or gradients are
            not finite, instead of stopping; see `finite_steps.FiniteTrainer`.
        cpu_matmul_precision (`str`, *optional*, defaults to `"float32"`): precision of the large linear layers of
            float32 models in the training steps of a CPU. `"bfloat16"` rounds the factors of their products, `"auto"`
            does so where the processor gains from it (AMX, AVX512-BF16). Evaluation always uses float32.

    Raises:
        RecipeError: see `check_mapping` and `check_precision`.
    """

    learning_rate_mapping: dict[str, float] | None = None
    skip_nonfinite_batches: bool = False
    cpu_matmul_precision: str = FLOAT32

    def __post_init__(self):
        super().__post_init__()
        check_mapping(self.learning_rate_mapping, MAPPING)
        check_precision(self.cpu_matmul_precision, MATMUL)
