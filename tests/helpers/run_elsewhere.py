# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A script in a process and a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path


def run_elsewhere(script: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Runs a script where neither the checkout nor an installation of it is on the path."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "script.py").write_text(script)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    root = Path(__file__).resolve().parents[2]
    paths = [
        path for path in environment.pop("PYTHONPATH", "").split(os.pathsep) if path and Path(path).resolve() != root
    ]
    if paths:  # another transformers under test, say
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, "script.py", *arguments]
    return subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
