# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A Hub that fails: main is always a whole commit, the error is one line, and the next push goes on."""

import json
from pathlib import Path

import pytest

from tests.helpers.loopback_hub import TOKEN, LoopbackHub
from tests.helpers.warm_python import run_python

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "POST /api/models/org/{}/commit/"
UPLOAD = "PUT /lfs/"
# Name -> the fault of the second push, and what its clock says.
FAULTS = {
    "once": ([{"kind": "status", "match": COMMIT, "status": 429}], 0),
    "throttled": ([{"kind": "status", "match": COMMIT, "status": 429, "times": 3}], 0),
    "broken": ([{"kind": "status", "match": COMMIT, "status": 500, "times": 3}], 0),
    "half": ([{"kind": "drop", "match": UPLOAD, "after": 500, "times": 30}], 0),
    "expired": ([{"kind": "status", "match": COMMIT, "status": 401}], 0),
    "expired_upload": ([{"kind": "status", "match": UPLOAD, "status": 403, "times": 30}], 0),
    "early": ([], -5 * 3600),
    "late": ([], 30 * 86400),
}


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """For every fault: a push, a push with the fault, and one after it, all in one process."""
    folder = tmp_path_factory.mktemp("faults")
    steps = []
    with LoopbackHub(folder / "state") as hub:
        for name, (faults, clock) in FAULTS.items():
            model = folder / name
            model.mkdir()
            (model / "config.json").write_text("{}")
            common = {"state": str(hub.state.folder), "folder": str(model), "repo": f"org/{name}", "token": TOKEN}
            faults = [{**fault, "match": fault["match"].format(name)} for fault in faults]
            steps += [{**common, "weights": f"{name} first"}]
            steps += [{**common, "weights": f"{name} second", "faults": faults, "clock": clock, "check": False}]
            steps += [{**common, "weights": f"{name} third", "clear": True}]
        (folder / "steps.json").write_text(json.dumps(steps))
        environment = {**hub.environment(folder / "home"), "PYTHONPATH": str(ROOT)}
        script = "from tests.training.push_on_hub import main; main()"
        done = run_python(script, [folder / "steps.json"], cwd=ROOT, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        yield hub, {name: lines[3 * n : 3 * n + 3] for n, name in enumerate(FAULTS)}


def weights(hub, name, number=0):
    """The weights of a commit, the newest first."""
    commit = hub.commits(f"org/{name}")[number]
    return hub.state.content(commit["files"]["model.safetensors"]).read_bytes()


PASSING = {"once": [1.0], "early": [], "late": []}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_waited_for(pushed, name):
    hub, found = pushed
    second = found[name][1]
    assert second["error"] is None
    assert second["waited"] == PASSING[name]
    assert second["err"].count("\n") == len(PASSING[name])
    expected = [f"{name} {x}".encode() * 1000 for x in ("third", "second", "first")]
    assert [weights(hub, name, n) for n in range(3)] == expected


LASTING = {
    "throttled": ("429", [1.0, 5.0]),
    "broken": ("500", [1.0, 5.0]),
    "half": ("", [1.0, 5.0]),
    "expired": ("401", []),
    "expired_upload": ("403", []),
}


@pytest.mark.parametrize("name", LASTING)
def test_what_lasts_is_one_line_and_the_hub_keeps_the_last_commit(pushed, name):
    hub, found = pushed
    words, waits = LASTING[name]
    second, third = found[name][1:]
    assert words in second["error"]
    assert "\n" not in second["error"]
    assert second["waited"] == waits
    assert "the Hub keeps the last good commit. Again." in second["error"]
    assert third["error"] is None
    titles = [commit["title"] for commit in hub.commits(f"org/{name}")]
    assert titles == ["End of training", "End of training", "initial commit"]  # no commit of the failed push
    assert [weights(hub, name, n) for n in range(2)] == [f"{name} {x}".encode() * 1000 for x in ("third", "first")]
