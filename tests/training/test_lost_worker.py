# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A process that reads rows is killed, as a machine without memory does: one line, and the same command finishes."""

import os
import signal

import torch
from safetensors.torch import load_file

from grounded_attention.training.loop.data import Collator
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes


def test_a_killed_loader_worker(tmp_path, monkeypatch, capsys):
    scenes = tiny_scenes(tmp_path / "scenes")
    collate = Collator.__call__
    mark = tmp_path / "killed"
    training = {"dataloader_num_workers": 2, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}

    def train(name):
        recipe = tiny_recipe(scenes, tmp_path / name, resume=True)
        recipe["training"] |= training
        return run_train(monkeypatch, tmp_path, recipe)

    def dying(self, rows):
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.id == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return collate(self, rows)

    assert train("straight") == 0
    capsys.readouterr()
    monkeypatch.setattr(Collator, "__call__", dying)
    assert train("run") == 2
    printed = capsys.readouterr().err
    assert printed.count("error: ") == 1
    assert "a process of this command was ended from outside" in printed
    assert mark.exists()
    assert train("run") == 0
    first, second = (load_file(tmp_path / name / "direct" / "model.safetensors") for name in ("straight", "run"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
