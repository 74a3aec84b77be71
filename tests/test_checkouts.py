# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A clone where git makes no symbolic links (Windows), and an archive without them, train all the same."""

import io
import json
import os
import subprocess
import sys
import tarfile

import pytest
import yaml

from tests.helpers.project_files import LINKS, ROOT
from tests.helpers.tiny_scenes import tiny_recipe, tiny_scenes
from tests.helpers.warm_python import run_python

TRAIN = """
import runpy, sys
folder = sys.argv.pop(1)
sys.path.insert(0, folder)
import grounded_attention
print(grounded_attention.__file__)
runpy.run_path(f"{folder}/train.py", run_name="__main__")
"""


def clone(folder):
    command = ["git", "clone", "--quiet", "--config", "core.symlinks=false", str(ROOT), str(folder)]
    subprocess.run(command, check=True)
    assert all((folder / name).is_file() for name in LINKS)


def archive(folder):
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, [member for member in files if not member.issym()], filter="data")
    assert not any((folder / name).exists() for name in LINKS)


@pytest.mark.parametrize("make", [clone, archive])
def test_two_steps_without_links(tmp_path, make):
    folder = tmp_path / "project"
    scenes = tiny_scenes(tmp_path / "scenes")
    make(folder)
    recipe = tiny_recipe(scenes, tmp_path / "run")
    recipe["training"]["max_steps"] = 2
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    environment = {**os.environ, "PYTHONPATH": "", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = run_python(TRAIN, [str(folder), "recipe.yaml"], env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(str(folder))
    steps = [entry["step"] for entry in json.loads((tmp_path / "run" / "direct" / "history.json").read_text())]
    assert max(steps) == 2


def test_the_command_of_make_train_finds_its_recipe_without_links(tmp_path):
    clone(tmp_path / "project")
    code = "from grounded_attention.utils.project import find_recipe as f; print(f('recipes/scenes/scenes_vgp.yaml'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "project", env={}, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(tmp_path / "project/grounded_attention/recipes/scenes/scenes_vgp.yaml")
