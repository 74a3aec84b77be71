# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs of tiny recipes, and what they leave in their folders."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.tiny_scenes import run_train


def train_in(folder, recipe, *overrides):
    """Trains a recipe with `KEY=VALUE` overrides; its built data is in `folder`."""
    with pytest.MonkeyPatch.context() as patch:
        assert run_train(patch, folder, recipe, *overrides) == 0


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def results(run):
    return read_json(run / "results.json")


def first_losses(folder):
    """The losses that the training of a method logged first."""
    return read_json(folder / "history.json")[0]


def saved_weights(folder):
    return load_file(folder / "model.safetensors")


def changed_names(found, expected):
    """Of weights that differ in a bit."""
    assert found.keys() == expected.keys()
    return {name for name, weight in expected.items() if not torch.equal(found[name], weight)}


def assert_same_weights(found, expected):
    """In every bit."""
    assert not changed_names(found, expected)


def assert_ran(done):
    """A process ended well."""
    assert done.returncode == 0, done.stderr[-3000:]


def kill(folder):
    """What a run leaves that is killed before its model is saved: checkpoints alone."""
    for path in list(folder.iterdir()):
        if path.is_file():
            path.unlink()


def assert_words(text, words):
    """The text has all words, which are parted by `...`."""
    for word in words.split(" ... "):
        assert word in text, text
