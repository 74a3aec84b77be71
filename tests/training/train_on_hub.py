# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs `train.py` several times in one process, and injects faults into the loopback Hub between the runs.

`main` reads the runs from a file STEPS.json and prints one JSON line per run.
"""

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

import grounded_attention.training.publish.hub
import train
from tests.helpers.loopback_hub_state import State


def prepare_step(step):
    """Prepares a run: adds faults to the Hub, removes files that a killed run would not have, fetches a checkpoint."""
    state = State(step["state"])
    for fault in step.get("faults", []):
        state.add_fault({"times": 1, "status": 500, "after": 0, **fault})
    for path in map(Path, step.get("remove", [])):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if "fetch" in step:
        fetch = step["fetch"]
        commit = next(c for c in state.history("models", fetch["repo"], "main") if c["title"] == fetch["title"])
        Path(fetch["to"]).mkdir(parents=True)
        for name, file in commit["files"].items():
            if name.startswith("last-checkpoint/"):
                shutil.copyfile(state.content(file), Path(fetch["to"]) / Path(name).name)


def run_step(step):
    """Runs one step and returns its exit code and output."""
    prepare_step(step)
    out = io.StringIO()
    err = io.StringIO()
    with (
        mock.patch.dict(os.environ, step.get("environment", {})),
        mock.patch.object(sys, "argv", ["train.py", *step["arguments"]]),
        mock.patch(
            "grounded_attention.training.experiments.report.report"
        ),  # the table and figures of the comparison are not pushed, and take seconds
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = train.main()
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def main():
    """Runs what the file of the first argument says."""
    grounded_attention.training.publish.hub.WAITS = (0.0, 0.0)
    with open(sys.argv[1]) as file:
        for step in json.load(file):
            print(json.dumps(run_step(step)), flush=True)
