"""A typing error in a recipe is found before torch is imported, and before anything is drawn."""

import subprocess
import sys

from tests.helpers.commands import ROOT

WRONG = {
    "supervision.weigth=1": "unknown key 'supervision.weigth'; did you mean 'supervision.weight'?",
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
        assert line.startswith("error: ")
        assert wanted in line
    assert not list(tmp_path.iterdir())
