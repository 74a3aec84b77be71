# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A script in a fork of the waiting process finds what it would find in a new process."""

import json
import os
import subprocess
import sys

from tests.helpers.warm_python import LIBRARIES, run_python, without_project

# The constants of the libraries that read Hugging Face's variables, and where a request to the Hub would go. Left out:
# a random one and one of the current folder.
CONSTANTS = """
import importlib, json, sys
from pathlib import Path

for name in sys.argv[1:]:
    importlib.import_module(name)
found = {
    f"{name}.{constant}": str(value)
    for name, module in sorted(sys.modules.items())
    if name.startswith(("huggingface_hub", "transformers", "datasets", "evaluate", "accelerate", "peft"))
    for constant, value in vars(module).items()
    if constant.isupper() and isinstance(value, (str, int, float, Path, type(None)))
    if constant not in ("SESSION_ID", "PATH_TO_TRANSFORMERS")
}
api = sys.modules["huggingface_hub.hf_api"].api
print(json.dumps({**found, "endpoint": api.endpoint, "project": "grounded_attention" in sys.modules}))
"""


def test_constants_are_those_of_a_new_process(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(without_project()),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_DATASETS_CACHE": str(tmp_path / "data"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN_PATH": str(tmp_path / "token"),
    }
    environment.pop("HF_MODULES_CACHE")
    warm = run_python(CONSTANTS, LIBRARIES, cwd=tmp_path, env=environment)
    command = [sys.executable, "-c", CONSTANTS, *LIBRARIES]
    new = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert warm.returncode == new.returncode == 0, warm.stderr + new.stderr
    found = json.loads(warm.stdout)
    expected = json.loads(new.stdout)
    assert found == expected
    assert str(tmp_path / "home" / "modules") in found.values()
    assert found["endpoint"] == "http://127.0.0.1:9"
