"""A typing error in a recipe is found before torch is imported, and before anything is drawn."""

import dataclasses
import subprocess
import sys

import pytest
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from grounded_attention.supervision import method_names
from grounded_attention.training.loop.training_arguments import GroundingTrainingArguments
from grounded_attention.training.recipes import early_checks
from grounded_attention.training.recipes.recipe import Recipe, RecipeError
from tests.helpers.commands import ROOT

WRONG = {
    "training.learning_rat=1e-3": "unknown key 'training.learning_rat'; did you mean 'training.learning_rate'?",
    "start.training.max_stepz=3": "unknown key 'start.training.max_stepz'",
    "methods=[drect]": "methods: 'drect' is unknown; did you mean 'direct'?",
    "task=vpg": "unknown task 'vpg'; expected one of caption_match_pretraining",
    "data.builder=vgpp": "unknown data.builder 'vgpp'",
    "training.report_to=wand": "did you mean 'training.report_to=wandb'?",
}
PROGRAM = """
import sys
from grounded_attention.commands.train import main
for override in sys.argv[1:]:
    assert main(["scenes_vgp", override, "data.data_dir=absent/scenes", "output_dir=absent/run"]) == 2
assert not {"torch", "transformers", "datasets", "numpy"} & set(sys.modules)
"""


def test_a_typing_error_is_found_before_torch(tmp_path):
    command = [sys.executable, "-c", PROGRAM, *WRONG]
    paths = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    for line, wanted in zip(lines, WRONG.values(), strict=True):
        assert line.startswith("error: ") and wanted in line
    assert not list(tmp_path.iterdir())


def test_the_names_in_the_sources_are_those_of_the_classes():
    fields = {field.name for field in dataclasses.fields(GroundingTrainingArguments) if field.init}
    assert early_checks.training_argument_names() == fields
    assert set(method_names()) <= set(early_checks.method_names())
    assert set(INTEGRATION_TO_CALLBACK) <= set(early_checks.TRACKERS)


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(early_checks.TRACKERS, "wandb", "no_module_of_this_name")
    with pytest.raises(RecipeError, match=r"training\.report_to=wandb: wandb is not installed; pip install wandb"):
        early_checks.check_early(Recipe(training={"report_to": ["none", "wandb"]}))
    early_checks.check_early(Recipe(training={"report_to": "none"}))
