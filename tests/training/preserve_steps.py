# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny start checkpoint, and training that preserves it; a test or two processes run it.

The arguments are OUTPUT START CASE..., where a case is `batch:accumulation`. Writes `OUTPUT/<case>.json` with the
logged losses and `OUTPUT/<case>.safetensors` with the weights after two steps.
"""

import json
import sys
from pathlib import Path

from safetensors.torch import save_file
from transformers import set_seed

from grounded_attention.modeling import VLBertForPreTraining, VLBertForVGP
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.models import load_model
from grounded_attention.training.loop.preserve import Preservation
from grounded_attention.training.recipes.recipe import Model
from grounded_attention.utils.processes import leave_group
from tests.helpers.tiny_trainer import logged, make_trainer, weights
from tests.helpers.tiny_vgp import tiny_model

WEIGHT = 0.7


def save_start(directory):
    """Saves a checkpoint of VLBertForPreTraining."""
    config = tiny_model(region_classes=6, initializer_range=0.3).config
    set_seed(1)
    VLBertForPreTraining(config).save_pretrained(directory)


def load_start(start, model_class=VLBertForVGP):
    set_seed(0)
    return load_model(model_class, Model(source=str(start)))


def preservation_of(start):
    """The preservation of a VGP model that starts from the checkpoint."""
    return Preservation(WEIGHT, load_start(start)[0], TASKS["vgp"].model_inputs)


def preserving_trainer(directory, start, **arguments):
    trainer = make_trainer(directory, model=load_start(start)[0], **arguments)
    trainer.preservation = preservation_of(start)
    return trainer


def run_case(case, output, start):
    batch, accumulation = case.split(":")
    arguments = {"per_device_train_batch_size": int(batch), "gradient_accumulation_steps": int(accumulation)}
    trainer = preserving_trainer(output, start, max_steps=2, **arguments)
    trainer.train()
    if trainer.is_world_process_zero():
        save_file(weights(trainer.accelerator.unwrap_model(trainer.model)), output / f"{case}.safetensors")
        (output / f"{case}.json").write_text(json.dumps(logged(trainer)))


if __name__ == "__main__":
    for case in sys.argv[3:]:
        run_case(case, Path(sys.argv[1]), Path(sys.argv[2]))
    leave_group()
