# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""An untrained model for generated scenes, saved with its processor."""

from transformers import set_seed

from grounded_attention.families import FAMILIES
from grounded_attention.training.experiments.models import make_processor
from grounded_attention.training.recipes.recipe import Model

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"max_position_embeddings": 128, "region_classes": 80}


def save_checkpoint(scenes, folder, family="vl_bert", sizes=SIZES):
    """Saves a model of a family with the head of a task; its vocabulary is that of the scenes."""
    processor = make_processor(Model(family=family, tokenizer=str(scenes / "vocab.txt")))
    set_seed(0)
    config = FAMILIES[family].config_class(vocab_size=len(processor.tokenizer), **sizes)
    FAMILIES[family].heads["vgp"](config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
