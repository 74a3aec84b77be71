# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs scripts in a separate process and folder."""

import os
import subprocess
import sys
from pathlib import Path

# Python finds an editable installation from all folders, so this makes its import fail.
WITHOUT_PROJECT = "import sys\nsys.modules['grounded_attention'] = None\n"


def run_elsewhere(
    script: str, tmp_path: Path, *arguments: str, with_project: bool = False
) -> subprocess.CompletedProcess:
    """Runs a script in another folder; the project cannot be imported there unless `with_project`."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "script.py").write_text(script if with_project else WITHOUT_PROJECT + script)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    root = Path(__file__).resolve().parents[2]
    paths = [
        path for path in environment.pop("PYTHONPATH", "").split(os.pathsep) if path and Path(path).resolve() != root
    ]
    if paths:  # for example another version of transformers under test
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, "script.py", *arguments]
    return subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
