# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention space push`: what arrives on the Hub, and a Space that works from these files alone."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from grounded_attention.space.settings import SMALL_MODELS

ROOT = Path(__file__).resolve().parents[2]
CALLS = """import json, sys
from grounded_attention.commands.push_space import main
print(json.dumps([main(a.split()) for a in sys.argv[1:]]))
"""
# What a Space does, without serving: the page of its settings.
START = """
import app, grounded_attention, pathlib
settings = app.read_settings(app.SETTINGS)
app.build_page(settings)
print(pathlib.Path(grounded_attention.__file__).parent.parent, list(settings.models), settings.folders)
"""


def push(hub, folder, *calls):
    environment = {**hub.environment(folder / "home"), "PYTHONPATH": f"{ROOT}:{':'.join(sys.path)}"}
    command = [sys.executable, "-c", CALLS, *calls]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    *_, codes = done.stdout.splitlines()
    return json.loads(codes), done.stderr, environment


def test_a_pushed_space_is_complete_and_starts_from_its_own_files(loopback_hub, tmp_path):
    codes, _, environment = push(loopback_hub, tmp_path, "org/page --private --json", "org/page --json")
    assert codes == [0, 0]
    files = loopback_hub.files("org/page", kind="spaces")
    assert {"app.py", "README.md", "requirements.txt", "space.json", "grounded_attention/__init__.py"} <= set(files)
    assert not [name for name in files if "__pycache__" in name or name.startswith(("tests", "runs"))]
    card = loopback_hub.read("org/page", "README.md", kind="spaces").decode()
    about = yaml.safe_load(card.split("---")[1])
    assert (about["sdk"], about["app_file"]) == ("gradio", "app.py")
    assert len(about["short_description"]) <= 60
    needed = loopback_hub.read("org/page", "requirements.txt", kind="spaces").decode()
    assert "torch>=" in needed
    assert "pytest" not in needed
    assert loopback_hub.state.repo("spaces", "org/page")["private"]

    folder = loopback_hub.checkout("org/page", tmp_path / "space", kind="spaces")
    environment |= {"PYTHONPATH": ":".join([str(folder), *sys.path[1:]]), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", START], env=environment, cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[-2] == f"{folder} {list(SMALL_MODELS)} False"


def test_checkpoints_in_folders_are_pushed_and_removed_again(loopback_hub, tmp_path):
    none, direct = SMALL_MODELS.values()
    codes, _, _ = push(
        loopback_hub, tmp_path, f"org/own --model {none} --model {direct} --vlm org/vlm", "org/own --vlm org/vlm"
    )
    first, second = loopback_hub.commits("org/own", kind="spaces")[1::-1]
    assert codes == [0, 0]
    settings = json.loads(loopback_hub.read("org/own", "space.json", first["id"], kind="spaces"))
    assert settings["vlm"] == "org/vlm"
    assert list(settings["models"]) == ["none", "direct"]
    for place in settings["models"].values():
        assert {f"{place}/config.json", f"{place}/model.safetensors"} <= set(first["files"])
    assert not [name for name in second["files"] if name.startswith("checkpoints/")]
    card = loopback_hub.read("org/own", "README.md", kind="spaces").decode()
    assert yaml.safe_load(card.split("---")[1])["models"] == ["org/vlm"]


def test_mistakes_are_one_line_and_write_nothing(loopback_hub, tmp_path):
    (tmp_path / "empty").mkdir()
    loopback_hub.state.create("spaces", "org/other", False)
    blob = loopback_hub.state.put_blob(b"print()")
    loopback_hub.state.set_files("spaces", "org/other", {"main.py": blob}, "an app")
    calls = ["others/page", "org/other", f"org/page --model {tmp_path / 'empty'}", "org/page --model absent"]
    codes, printed, _ = push(loopback_hub, tmp_path, *calls)
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert codes == [2] * 4
    assert "Traceback" not in printed
    for line, words in zip(errors, ("403 Forbidden", "other files", "contains no model", "absent"), strict=True):
        assert words in line
    assert loopback_hub.files("org/other", kind="spaces") == ["main.py"]
