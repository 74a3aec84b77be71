# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files that the commands of the campaign read."""

import json
from contextlib import chdir
from pathlib import Path

import datasets
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForImageTextToText

from tests.helpers.tiny_checkpoint import SIZES, save_checkpoint
from tests.helpers.tiny_vlm_recipes import save_llava

# Fields of the configuration of each family that make a tiny model.
_BERT = {name: value for name, value in SIZES.items() if name != "region_classes"}
_VISION = {"v_hidden_size": 16, "v_num_hidden_layers": 2, "v_num_attention_heads": 2, "v_intermediate_size": 16}
_LXMERT = {"l_layers": 1, "r_layers": 1, "x_layers": 2, "num_object_labels": 8, "visual_attr_loss": False}
FAMILY_SIZES = {
    "vl_bert": SIZES,
    "visualbert": _BERT,
    "vilbert": {**_BERT, **_VISION, "v_target_size": 8, "bi_hidden_size": 16, "bi_num_attention_heads": 2},
    "lxmert": {**{name: value for name, value in _BERT.items() if name != "num_hidden_layers"}, **_LXMERT},
}


def use_cache(folder):
    """Rows that are built are kept in this folder."""
    datasets.config.HF_DATASETS_CACHE = folder / "cache"


def write_models(base):
    """Saves a tiny model of each family, with all fields of its configuration, and LLaVA with an adapter."""
    scenes = base / "scenes"
    for family, sizes in FAMILY_SIZES.items():
        folder = save_checkpoint(scenes, base / "families" / family, family=family, sizes=sizes)
        config = AutoConfig.from_pretrained(folder).to_dict()
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_llava(scenes / "vocab.txt", base / "vlm")
    model = AutoModelForImageTextToText.from_pretrained(base / "vlm")
    get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(base / "adapter")


def write_run(place, train, base):
    """Trains in `<place>/place`, with the recipe beside it."""
    (place / "place").mkdir(parents=True)
    with chdir(place / "place"):
        assert train(base) == 0


def write_stopped_run(base, train):
    """Trains in `stopped`, with the recipe beside it, and deletes what a run writes after its last checkpoint."""
    (base / "stopped").mkdir()
    with chdir(base / "stopped"):
        assert train(base) == 0
        for path in [*Path("run").iterdir(), *Path("run/direct").iterdir()]:
            if path.is_file() and path.name != "recipe.json":
                path.unlink()
