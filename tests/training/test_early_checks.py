"""A typing error in a recipe is found before torch is imported, and before anything is drawn."""

import dataclasses
import subprocess
import sys

from grounded_attention.training.loop.trainer import GroundingTrainingArguments
from grounded_attention.training.recipes.training_names import training_names
from tests.helpers.commands import ROOT

WRONG = {
    "training.learning_rat=1e-3": "unknown key 'training.learning_rat'; did you mean 'training.learning_rate'?",
    "start.training.max_stepz=3": "unknown key 'start.training.max_stepz'",
    "methods=[drect]": "did you mean 'methods=direct'?",
    "task=vpg": "task: ",
    "data.builder=vgpp": "data.builder: ",
}
PROGRAM = """
import sys
from grounded_attention.commands.train import main
for override in sys.argv[1:]:
    assert main(["scenes_vgp", override, "data.data_dir=absent/scenes", "output_dir=absent/run"]) == 2
assert not {"torch", "transformers", "datasets"} & set(sys.modules)
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


def test_the_names_in_the_sources_are_those_of_the_class():
    fields = {field.name for field in dataclasses.fields(GroundingTrainingArguments) if field.init}
    assert training_names() == fields
