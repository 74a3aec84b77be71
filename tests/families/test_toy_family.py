# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A new family is two files and one line, a new task one file and one line: the rest follows from the entries."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.tiny_scenes import tiny_recipe, tiny_scenes
from tests.helpers.warm_python import run_python, without_project

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "tests" / "toy_family"
FAMILY_LINE = '    Family("toy", "Toy", processor="VisualBERTProcessor"),\n'
TASK_LINE = '    "which_caption",\n'

# Trains and pushes, audits, evaluates: the commands as a user gives them, in one process.
RUN = """
import json, sys
import train
import grounded_attention.commands.heads as heads
import grounded_attention.commands.evaluate as evaluate
for arguments in json.load(open(sys.argv[1])):
    command, *rest = arguments
    if command == "train":
        sys.argv = ["train.py", *rest]
        code = train.main()
    else:
        code = {"heads": heads.main, "evaluate": evaluate.main}[command](rest)
    assert code == 0, (command, code)
"""
LOAD = """
import json, sys
import torch
from transformers import AutoConfig, AutoModel, AutoProcessor
from transformers.dynamic_module_utils import get_class_from_dynamic_module
sys.modules["grounded_attention"] = None  # as where it is not installed
name, trust = "org/toy", {"trust_remote_code": True}
base, processor = AutoModel.from_pretrained(name, **trust), AutoProcessor.from_pretrained(name, **trust)
auto_map = AutoConfig.from_pretrained(name, **trust).auto_map
cls = get_class_from_dynamic_module(auto_map["ToyForVGP"], name)
model, info = cls.from_pretrained(name, output_loading_info=True)
print(json.dumps([type(base).__name__, type(processor).__name__, type(model).__name__, *map(sorted, info.values())]))
"""


def add_line(path, after, line):
    text = path.read_text()
    assert text.count(after) == 1
    path.write_text(text.replace(after, after + line))


def run(script, hub, folder, project, *arguments):
    environment = hub.environment(folder / "home")
    environment["PYTHONPATH"] = os.pathsep.join([str(project)] if project else without_project())
    environment["HF_DATASETS_CACHE"] = str(folder / "cache")
    done = run_python(script, arguments, env=environment, cwd=folder, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with the toy family and the toy task."""
    copy = tmp_path_factory.mktemp("project")
    package = copy / "grounded_attention"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "grounded_attention", package, ignore=ignored)
    shutil.copy(ROOT / "train.py", copy)
    shutil.copy(TOY / "configuration_toy.py", package / "modeling")
    shutil.copy(TOY / "modeling_toy.py", package / "modeling")
    add_line(package / "families" / "__init__.py", "_FAMILIES = (\n", FAMILY_LINE)
    shutil.copy(TOY / "which_caption.py", package / "tasks")
    add_line(package / "tasks" / "__init__.py", "_FILES = (\n", TASK_LINE)
    return copy


def test_a_toy_family_and_a_toy_task_go_all_the_way(project, tmp_path):
    scenes = tiny_scenes(tmp_path / "scenes")
    output = tmp_path / "runs"
    recipe = tiny_recipe(scenes, output, task="which_caption")
    del recipe["model"]["config"]["region_classes"]
    recipe["model"]["family"] = "toy"
    recipe["training"] |= {"push_to_hub": True, "hub_model_id": "org/toy"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    data = ["--data-dir", str(scenes), "--regions", str(scenes / "regions"), "--split", "test", "--limit", "4"]
    audit = ["--model", "org/toy", "--data", "flickr30k_entities", *data, "--choose-on", "same_split"]
    audit += ["--device", "cpu"]
    commands = [
        ["train", str(tmp_path / "recipe.yaml")],
        ["heads", *audit, "--card", str(output / "direct"), "--output", str(tmp_path / "audit")],
        ["evaluate", "org/toy", "--task", "which_caption", *data, "--output", str(tmp_path / "report")],
    ]
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    with LoopbackHub(tmp_path / "state") as hub:
        run(RUN, hub, tmp_path, project, str(tmp_path / "commands.json"))
        pushed = hub.read("org/toy", "README.md").decode()
        loaded = json.loads(run(LOAD, hub, tmp_path, None))
    assert "A Toy that reads words and image regions, trained on choosing captions; its attention" in pushed
    assert 'task_class = get_class_from_dynamic_module(config.auto_map["ToyForVGP"]' in pushed
    assert "the caption chosen:" in pushed
    assert "bibtex" in pushed
    card = (output / "direct" / "README.md").read_text()
    assert re.search(r"best head", card, re.I)
    assert len(card) > len(pushed)
    counts = json.loads((tmp_path / "audit" / "heads.json").read_text())
    assert counts["layers"] == ["0", "1"]
    assert (tmp_path / "report" / "report.html").is_file()
    assert loaded[:3] == ["ToyModel", "VisualBERTProcessor", "ToyForVGP"]
    assert not any(loaded[3:])
