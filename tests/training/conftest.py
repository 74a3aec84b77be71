# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny recipes and studies that run to the end, and those that are refused."""

from functools import partial

import pytest


@pytest.fixture
def run_recipe(tmp_path, monkeypatch):
    """Trains a recipe with `KEY=VALUE` overrides; its built data is in `tmp_path`."""
    from tests.helpers.tiny_scenes import run_train  # it imports torch

    def run(recipe, *overrides):
        assert run_train(monkeypatch, tmp_path, recipe, *overrides) == 0

    return run


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The one line with which a recipe with overrides is refused."""
    from tests.helpers.tiny_scenes import refusal  # it imports torch

    return partial(refusal, capsys, monkeypatch, tmp_path)


@pytest.fixture
def study(tmp_path):
    """A study that is loaded from a file with overrides and other sections; its output is `tmp_path/run`."""
    from tests.training.studies import study_of  # it imports torch

    return partial(study_of, tmp_path)


@pytest.fixture
def run_cells(study):
    """Runs the study with overrides and other sections, and returns what was trained for it."""
    from grounded_attention.training.studies.study import run_study  # it imports torch
    from tests.training.studies import Experiment

    def run(*overrides, **sections):
        experiment = Experiment()
        run_study(study(*overrides, **sections), experiment)
        return experiment

    return run
