# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scenes and an untrained VL-BERT of each task, for the commands that measure models."""

from contextlib import contextmanager

import datasets
import pytest
from transformers import set_seed

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VLBertConfig
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.models import make_processor
from grounded_attention.training.recipes.recipe import Model
from tests.helpers.tiny_scenes import tiny_scenes

ANSWERS = ["yes", "no", "1", "2", "red"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"max_position_embeddings": 128, "region_classes": 80}
FIELDS = {"vqa": {"answers": ANSWERS}, "pretraining": {"relationship_head": True}}


@contextmanager
def untrained_models(folder, tasks, **sizes):
    """Writes `scenes` and a checkpoint with the name of each task; built data is in the folder meanwhile."""
    scenes = tiny_scenes(folder / "scenes")
    processor = make_processor(Model(tokenizer=str(scenes / "vocab.txt")))
    for name in tasks:
        set_seed(0)
        fields = {**SIZES, **sizes, **FIELDS.get(name, {})}
        config = VLBertConfig(vocab_size=len(processor.tokenizer), **fields)
        FAMILIES["vl_bert"].heads[TASKS[name].head](config).save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        yield scenes
