# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A Hub that fails: main is always a whole commit, the error is one line, and the next push goes on."""

import json

import pytest
import yaml

from tests.helpers.loopback_hub import TOKEN, LoopbackHub
from tests.helpers.project_files import ROOT
from tests.helpers.warm_python import run_python
from tests.training.runs import assert_ran

# Name -> the faults of the second push, and what its clock says.
FAULTS = """
once: {faults: [{kind: status, match: POST /api/models/org/once/commit/, status: 429}]}
throttled: {faults: [{kind: status, match: POST /api/models/org/throttled/commit/, status: 429, times: 3}]}
broken: {faults: [{kind: status, match: POST /api/models/org/broken/commit/, status: 500, times: 3}]}
half: {faults: [{kind: drop, match: PUT /lfs/, after: 500, times: 30}]}
expired: {faults: [{kind: status, match: POST /api/models/org/expired/commit/, status: 401}]}
expired_upload: {faults: [{kind: status, match: PUT /lfs/, status: 403, times: 30}]}
early: {clock: -18000}
late: {clock: 2592000}
"""


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """For every fault: a push, a push with the fault, and one after it, all in one process."""
    folder = tmp_path_factory.mktemp("faults")
    steps = []
    with LoopbackHub(folder / "state") as hub:
        for name, change in yaml.safe_load(FAULTS).items():
            model = folder / name
            model.mkdir()
            (model / "config.json").write_text("{}")
            common = {"state": str(hub.state.folder), "folder": str(model), "repo": f"org/{name}", "token": TOKEN}
            steps.append({**common, "weights": f"{name} first"})
            steps.append({**common, "weights": f"{name} second", "check": False, **change})
            steps.append({**common, "weights": f"{name} third", "clear": True})
        (folder / "steps.json").write_text(json.dumps(steps))
        environment = {**hub.environment(folder / "home"), "PYTHONPATH": str(ROOT)}
        script = "from tests.training.push_on_hub import main; main()"
        done = run_python(script, [folder / "steps.json"], cwd=ROOT, env=environment)
        assert_ran(done)
        found = {}
        for step, line in zip(steps, done.stdout.splitlines(), strict=True):
            found[step["weights"]] = json.loads(line)
        yield hub, found


END = "End of training"


def weights(hub, name, number):
    """The weights of a commit, the newest first."""
    commit = hub.commits(f"org/{name}")[number]
    return hub.state.content(commit["files"]["model.safetensors"]).read_bytes()


PASSING = {"once": [1.0], "early": [], "late": []}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_waited_for(pushed, name):
    hub, found = pushed
    second = found[f"{name} second"]
    assert second["error"] is None
    assert second["waited"] == PASSING[name]
    assert second["err"].count("\n") == len(PASSING[name])
    assert [commit["title"] for commit in hub.commits(f"org/{name}")] == [END, END, END, "initial commit"]
    for number, push in enumerate(("third", "second", "first")):
        assert weights(hub, name, number) == f"{name} {push}".encode() * 1000


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
    second = found[f"{name} second"]
    assert words in second["error"]
    assert "\n" not in second["error"]
    assert second["waited"] == waits
    assert "the Hub keeps the last good commit. Again." in second["error"]
    assert found[f"{name} third"]["error"] is None
    # There is no commit of the failed push.
    assert [commit["title"] for commit in hub.commits(f"org/{name}")] == [END, END, "initial commit"]
    for number, push in enumerate(("third", "first")):
        assert weights(hub, name, number) == f"{name} {push}".encode() * 1000
