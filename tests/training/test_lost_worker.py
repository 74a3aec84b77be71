# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A process that reads rows is killed, as a machine without memory does: one line, and the same command finishes."""

import os
import signal

import torch

from grounded_attention.training.loop.data import Collator
from tests.helpers.tiny_scenes import run_train, tiny_recipe
from tests.training.runs import assert_same_weights, saved_weights


def test_a_killed_loader_worker(scenes, tmp_path, monkeypatch, capsys, run_recipe):
    collate = Collator.__call__
    mark = tmp_path / "killed"
    recipe = tiny_recipe(scenes, tmp_path / "run", resume=True)
    recipe["training"] |= {"dataloader_num_workers": 2, "save_strategy": "steps", "save_steps": 1}

    def dying(self, rows):
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.id == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return collate(self, rows)

    run_recipe(recipe, f"output_dir={tmp_path}/straight")
    capsys.readouterr()
    monkeypatch.setattr(Collator, "__call__", dying)
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    printed = capsys.readouterr().err
    assert printed.count("error: ") == 1
    assert "a process of this command was ended from outside" in printed
    assert mark.exists()
    run_recipe(recipe)
    assert_same_weights(saved_weights(tmp_path / "run/direct"), saved_weights(tmp_path / "straight/direct"))
