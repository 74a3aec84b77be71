# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Two processes at the same time: the same scenes and rows are made once; one output folder has one training."""

import os
import time

import pytest
import yaml

from grounded_attention.training.loop.side_by_side import join_processes, only_process
from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.processes import FolderInUse
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_scenes import tiny_recipe
from tests.helpers.warm_python import WarmProcess

TRAIN = "import sys; from grounded_attention.commands.train import main; sys.exit(main())"
HOLD = """
import sys, time
from pathlib import Path
from grounded_attention.training.loop.side_by_side import only_process
with only_process(Path(sys.argv[1])):
    Path(sys.argv[2]).touch()
    time.sleep(300)
"""


def start(folder, code, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(folder / "cache")}
    return WarmProcess(code, arguments, env=environment, cwd=ROOT)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Two equal commands, started at the same time: they draw the scenes, build the rows and want to train."""
    folder = tmp_path_factory.mktemp("both")
    recipe = tiny_recipe(folder / "scenes", folder / "run", pictures=0)
    recipe["data"]["scenes"] = {"images": 24, "seed": 1}
    recipe["training"]["max_steps"] = 60
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    running = [start(folder, TRAIN, folder / "recipe.yaml") for _ in range(2)]
    return folder, [(*process.communicate(timeout=300), process.returncode) for process in running]


def test_one_of_two_equal_commands_trains_and_the_other_is_refused_in_one_line(both):
    folder, ended = both
    trained, refused = sorted(ended, key=lambda process: process[2])
    assert (trained[2], refused[2]) == (0, 2)
    assert (folder / "run/results.json").is_file()
    assert "direct: finished" in trained[0]
    errors = [line for line in refused[1].splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in refused[1]
    assert "trains here: wait for it, or give another output_dir" in errors[0] or "a run of this recipe" in errors[0]


def test_the_same_scenes_are_drawn_once(both):
    folder, ended = both
    assert (folder / "scenes/scenes.json").is_file()
    assert not (folder / "scenes/scenes.partial.json").exists()
    waited = [err for _, err, _ in ended if "draws these scenes" in err]
    assert len(waited) <= 1  # nobody waits if the other one was quick


def test_a_run_in_a_folder_that_is_in_use_is_refused(tmp_path):
    first = start(tmp_path, HOLD, tmp_path / "run", tmp_path / "locked")
    try:
        while not (tmp_path / "locked").exists():
            assert first.poll() is None, first.communicate()
            time.sleep(0.05)
        with (
            pytest.raises(FolderInUse, match=r"run: another process trains here"),
            only_process(tmp_path / "run"),
        ):
            pass
    finally:
        first.kill()
        first.communicate()
    with only_process(tmp_path / "run"):
        pass


def test_processes_that_would_not_know_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    with pytest.raises(RecipeError, match=r"2 processes were started, but PyTorch finds no GPU.*use_cpu=true"):
        join_processes({})
