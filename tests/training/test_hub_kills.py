# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A push that is killed at any of its requests: main is a whole commit, and the same command finishes the push."""

import os
import signal
from functools import partial

import pytest
from huggingface_hub.utils import get_session

from grounded_attention.commands import push
from tests.campaign.hub_jobs import WHOLE, hub_of
from tests.campaign.sandbox import run_apart
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.tiny_checkpoint import save_checkpoint
from tests.helpers.tiny_scenes import tiny_scenes


def push_and_die(endpoint, folder, repository, at=None, answered=False):
    """In a process of its own: pushes, and is killed at a request, before it is sent or after it is answered."""
    client = type(get_session())
    sent = []
    send = client.send

    def counted(self, request, **options):
        sent.append(f"{request.method} {request.url.path}")
        if len(sent) == at and not answered:
            os.kill(os.getpid(), signal.SIGKILL)
        found = send(self, request, **options)
        if len(sent) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    client.send = counted
    with hub_of(endpoint):
        status = push.main([str(folder), repository])
    print(*sent, sep="\n")
    return status


def prepared(tmp_path):
    model = save_checkpoint(tiny_scenes(tmp_path / "scenes"), tmp_path / "model")
    (model / "README.md").write_text("---\nlicense: mit\n---\n")
    return model


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_a_push_that_is_killed_at_any_request(tmp_path, answered):
    model = prepared(tmp_path)
    with LoopbackHub(tmp_path / "state") as hub:
        straight = run_apart(partial(push_and_die, hub.endpoint, model, "org/straight"), tmp_path / "straight")
        assert straight.status == 0, straight.err
        requests = [line for line in straight.out.splitlines() if " /" in line]
        assert any(line.startswith("PUT /lfs/") for line in requests), requests
        for at in range(1, len(requests) + 1):
            repository = f"org/killed-{at}"
            for path in (hub.state.folder / "lfs").iterdir():
                path.unlink()  # or the weights of the push before would not be sent again
            push = partial(push_and_die, hub.endpoint, model, repository)
            killed = run_apart(partial(push, at, answered), tmp_path / f"killed-{at}")
            assert killed.killed, killed.err
            if hub.state.refs("models", repository):  # a push that is killed early leaves no repository
                for commit in hub.commits(repository)[:-1]:
                    assert commit["files"].keys() >= WHOLE
            again = run_apart(push, tmp_path / f"again-{at}")
            assert again.status == 0, again.err
            assert {path.name for path in model.glob("*.*")} <= set(hub.files(repository))
            assert len(hub.commits(repository)) <= 3
            assert hub.read(repository, "model.safetensors") == (model / "model.safetensors").read_bytes()
