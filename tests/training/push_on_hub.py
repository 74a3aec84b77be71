# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes a folder several times in one process; between the pushes the token, the clock or the Hub change.

`main` reads the pushes from a file STEPS.json and prints one JSON line per push.
"""

import contextlib
import io
import json
import sys
import time
from pathlib import Path
from unittest import mock

from huggingface_hub.utils import _http, disable_progress_bars

from grounded_attention.training.publish import hub
from tests.helpers.loopback_hub_state import State


def push(step, slept):
    """Pushes; returns the error, the warnings and the seconds of the waits."""
    state = State(step["state"])
    folder = Path(step["folder"])
    if step.get("clear"):
        state.write("faults.json", [])
    for fault in step.get("faults", []):
        state.add_fault({"times": 1, "status": 500, "after": 0, **fault})
    (folder / "model.safetensors").write_bytes(step["weights"].encode() * 1000)
    if "clock" in step:  # what the machine believes the time to be
        clock = time.time
        mock.patch("time.time", lambda: clock() + step["clock"]).start()
    error = None
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        try:
            if step.get("check", True):
                repo = hub.prepare_repo(hub.HubRepo(step["repo"], token=step["token"]))
            else:
                repo = None
            hub.push_folder(
                repo or hub.HubRepo(step["repo"], token=step["token"]), folder, "End of training", "Again."
            )
        except hub.HubError as found:
            error = str(found)
    mock.patch.stopall()
    waited, slept[:] = list(slept), []
    return {"error": error, "err": err.getvalue(), "waited": waited}


def main():
    """Pushes as the file of the first argument says."""
    disable_progress_bars()
    slept: list[float] = []
    hub.time = mock.Mock(sleep=slept.append)
    _http.time = mock.Mock(sleep=lambda seconds: None)  # the Hub's client waits before it tries again
    for step in json.loads(Path(sys.argv[1]).read_text()):
        print(json.dumps(push(step, slept)), flush=True)
