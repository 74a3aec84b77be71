# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Small copies of checkpoints: what the page needs, and nothing else."""

import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import registration as registration  # registers the families with AutoModel
from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES
from grounded_attention.utils.plain_text import check_one_of
from grounded_attention.utils.whole_files import make_folder

# The configuration, the tokenizer and the processor; the classes come from the package.
SUFFIXES = (".json", ".jinja")
WEIGHTS = "model.safetensors"
LEFT_OUT = ("checkpoint_manifest.json", "history.json", "results.json")


def write_small(source: Path, target: Path) -> int:
    """Writes a checkpoint with weights in half precision, its tokenizer and its processor. Models of this package lose
    their task heads; vision-language models keep what they answer with, and heads.json.
    """
    kind = AutoConfig.from_pretrained(source).model_type
    check_one_of(kind, [*FAMILIES, *IMAGE_TOKEN_FAMILIES], f"{source}: model type ")
    loader = AutoModel if kind in FAMILIES else AutoModelForImageTextToText
    make_folder(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}_") as place:
        whole = Path(place) / "whole"
        small = Path(place) / "small"
        small.mkdir()
        loader.from_pretrained(source, dtype=torch.float32).save_pretrained(whole)
        weights = {name: value.half() for name, value in load_file(whole / WEIGHTS).items()}
        save_file(weights, small / WEIGHTS, metadata={"format": "pt"})
        shutil.copyfile(whole / "config.json", small / "config.json")
        for path in source.iterdir():
            if path.suffix not in SUFFIXES:
                continue
            if path.name not in LEFT_OUT and not (small / path.name).exists() and not path.name.startswith("items_"):
                shutil.copyfile(path, small / path.name)
        if target.exists():
            shutil.rmtree(target)
        small.rename(target)
    return sum(path.stat().st_size for path in target.iterdir())
