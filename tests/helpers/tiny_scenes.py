# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A recipe that trains a tiny model on a few generated scenes in three steps, and `train.py` in this process."""

import atexit
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import datasets
import yaml

import train
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes


def tiny_scenes(directory):
    """24 scenes, drawn by `write_scenes` once in a process and copied from then on."""
    shutil.copytree(_drawn(), directory, dirs_exist_ok=True)
    return directory


@cache
def _drawn():
    folder = Path(tempfile.mkdtemp(prefix="tiny_scenes_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_scenes(folder, images=24, seed=1)
    return folder


@cache
def _cache():
    folder = Path(tempfile.mkdtemp(prefix="tiny_cache_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def tiny_recipe(scenes, output, **sections):
    """Returns the content of a recipe; `sections` replace its top-level keys."""
    config = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config |= {"max_position_embeddings": 128, "region_classes": 65}
    training = {"max_steps": 3, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 16}
    training |= {"logging_steps": 1, "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    return {
        "output_dir": str(output),
        "methods": ["direct"],
        "data": {
            "data_dir": str(scenes),
            "regions": str(scenes / "regions"),
            "limit": {"train": 16, "validation": 8, "test": 8},
        },
        "model": {"tokenizer": str(scenes / "vocab.txt"), "config": config},
        "training": training,
        **sections,
    }


def run_train(monkeypatch, directory, recipe, *overrides):
    """Runs `train.py RECIPE KEY=VALUE...` and returns its exit code; data are built once in a process."""
    path = directory / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", _cache())
    monkeypatch.setattr(sys, "argv", ["train.py", str(path), *overrides])
    return train.main()


def refusal(capsys, monkeypatch, directory, recipe, *overrides):
    """The one line with which `train.py` refuses a recipe before it leaves anything in the output folder."""
    assert run_train(monkeypatch, directory, recipe, *overrides) == 2
    printed = capsys.readouterr().err
    (line,) = [line for line in printed.splitlines() if "error" in line.lower()]
    assert line.startswith("error: ") and "Traceback" not in printed, printed
    assert not Path(recipe["output_dir"]).exists(), "a refused recipe leaves nothing in the way of the mended one"
    return line
