# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A training that pushes each save to a Hub on this machine, which outlives the processes that are killed."""

import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from huggingface_hub import constants

from tests.helpers.loopback_hub import TOKEN, LoopbackHub
from tests.helpers.loopback_hub_state import State

from .fingerprint import fingerprint
from .more_jobs import train_with

REPOSITORY = "org/pushed"
# What a model on the Hub needs; each commit but the first, which the Hub makes, has them.
WHOLE = {"config.json", "model.safetensors", "processor_config.json", "README.md"}


def _place():
    """The state of the Hub, beside the working directory, so that its writing is no file operation of the job."""
    return Path.cwd().parent / "hub"


@contextmanager
def _hub():
    """The address of the Hub: a process of its own, which ends after this one, however this one ends."""
    reading, writing = os.pipe()
    client = os.getpid()
    if os.fork() == 0:
        try:
            with LoopbackHub(_place()) as hub:
                os.write(writing, hub.endpoint.encode())
                os.close(writing)
                while os.getppid() == client:
                    time.sleep(0.02)
                time.sleep(0.2)  # what was asked is answered
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as address:
        yield address.read()


@contextmanager
def hub_of(endpoint):
    """Lets this process use a Hub, although it has imported its client."""
    changes = {"ENDPOINT": endpoint, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
    with (
        mock.patch.multiple(constants, **changes),
        mock.patch.dict(os.environ, {"HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1"}),
        mock.patch("grounded_attention.training.publish.hub.WAITS", (0.0, 0.0)),
    ):
        yield


def train_pushed(base):
    """Trains two steps and pushes after each, and at the end."""
    with _hub() as endpoint, hub_of(endpoint):
        return train_with(push_to_hub=True, hub_model_id=REPOSITORY)(base)


def pushed_files(place):
    """The files of the run and of main. Every commit must be a whole model."""
    state = State(place.parent / "hub")
    for commit in state.history("models", REPOSITORY, "main")[:-1]:
        missing = WHOLE - commit["files"].keys()
        assert not missing, f"the commit {commit['title']!r} lacks {sorted(missing)}"
    copy = place.parent / "main"
    shutil.rmtree(copy, ignore_errors=True)
    for name, file in state.resolve("models", REPOSITORY, "main")["files"].items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(state.content(file), copy / name)
    return fingerprint(place) | {f"main/{name}": digest for name, digest in fingerprint(copy).items()}
