# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A Trainer of a tiny model, and functions that compare two Trainers."""

import torch
from transformers import TrainingArguments

from grounded_attention.heads.attention_grounding import AttentionGrounding
from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator
from grounded_attention.training.loop.trainer import GroundingTrainer
from tests.helpers.tiny_vgp import tiny_model, tiny_processor, tiny_rows, tiny_table

METHODS = ("none", "indirect", "direct", "semi_direct", "boxes", "grounding_alignment", "direct+grounding_alignment")
IMAGES = 8  # 16 rows


def make_method(name):
    if name == "boxes":
        return get_method("direct", box_weight=2.0)
    return get_method(name)


def make_trainer(directory, method="direct", model=None, rows=None, arguments_class=TrainingArguments, **arguments):
    table = tiny_table(IMAGES)
    method = make_method(method)
    model = model or tiny_model(**method.model_config)
    method.prepare(model)
    fixed = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    fixed |= {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    fixed |= {"remove_unused_columns": False, "label_names": [], "seed": 3}
    return GroundingTrainer(
        model,
        arguments_class(str(directory), **{**fixed, **arguments}),
        data_collator=Collator(TASKS["vgp"], tiny_processor(), table, seed=3, method=method),
        train_dataset=rows if rows is not None else tiny_rows(table),
        eval_dataset=tiny_rows(table, seed=9),
        task=TASKS["vgp"],
        metrics=lambda: [*TASKS["vgp"].metrics(), AttentionGrounding()],
        method=method,
    )


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(first, second, tolerance):
    for name, value in first.items():
        # The gradient of a key's bias is zero but for rounding, which Adam scales to whole steps.
        if tolerance and name.endswith("key.bias"):
            continue
        assert torch.allclose(value, second[name], atol=tolerance, rtol=0), name


def logged(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry]
