# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs scripts in a separate process and folder."""

import os

from tests.helpers.warm_python import run_python, without_project

# Python finds an editable installation from all folders, so this makes its import fail.
WITHOUT_PROJECT = "import sys\nsys.modules['grounded_attention'] = None\n"


def run_elsewhere(script, tmp_path, *arguments, with_project=False):
    """Runs a script in another folder; the project cannot be imported there unless `with_project`."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    environment["PYTHONPATH"] = os.pathsep.join(without_project())
    return run_python(script if with_project else WITHOUT_PROJECT + script, arguments, cwd=elsewhere, env=environment)
