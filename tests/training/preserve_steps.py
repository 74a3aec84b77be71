# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny start checkpoint, and a training that preserves it."""

from transformers import set_seed

from grounded_attention.modeling import VLBertForPreTraining, VLBertForVGP
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.models import load_model
from grounded_attention.training.loop.preserve import Preservation
from grounded_attention.training.recipes.recipe import Model
from tests.helpers.tiny_trainer import make_trainer
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
