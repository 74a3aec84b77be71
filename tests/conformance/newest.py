# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs the tests of what depends on transformers on the newest one of the index, which may be newer than allowed.

They save and load, place image tokens, run `look` and `heads`, collate rows, and take a step of a LoRA adapter.

.venv-newest sees every package of the environment this runs in, and has only that transformers and what it needs
differently. Checkpoints that the oldest and the pinned transformers save are loaded there. Where all its versions are
those of this environment, nothing else is run: `make test` and `make conformance` run the rest. Options are pytest's,
and replace the list of tests. When it passes, the upper bound in pyproject.toml may be raised.

examples:
  python -m tests.conformance.newest
  python -m tests.conformance.newest tests/modeling/test_transformers_contracts.py -x
"""

import os
import subprocess
import sys

from grounded_attention.commands.command_line import make_parser

from . import oldest
from .second_environment import HERE, IN_TWO, ROOT, SetupError, newest_version, prepare, run_module, run_tests

FOLDER = ROOT / ".venv-newest"
OWN_CONSTRAINTS = HERE / "constraints-newest.txt"
OLDER = "tests/conformance/loads_older_checkpoints.py"
TESTS = (
    OLDER,
    "tests/heads/test_heads.py::test_scores_equal_loops_over_eager_maps",
    "tests/heads/test_heads.py::test_a_prompt_for_each_phrase",
    "tests/lens/test_look.py::test_rows_equal_eager_generation",
    "tests/lens/test_look.py::test_adapters",
    "tests/modeling/test_saving.py",
    "tests/modeling/test_transformers_contracts.py",
    "tests/modeling/test_unpadding.py",
    "tests/processing/test_image_tokens.py",
    "tests/processing/test_save.py",
    "tests/supervision/test_supervise.py",
    "tests/training/test_collator_of_rows.py",
    "tests/training/test_trainer_mixin.py::test_an_adapter_of_trl_is_supervised",
)
# Of transformers' own tests: one class of each family.
CLASSES = "VLBertForVGPTest or VisualBERTForVGPTest or ViLBertForVGPTest or LXMERTForVGPTest"


def same_versions(python):
    """Whether an environment has transformers and what it needs in the versions of this one."""
    packages = ["transformers", *OWN_CONSTRAINTS.read_text().splitlines()[1:]]
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    there, here = (subprocess.check_output([each, "-c", code, *packages]) for each in (python, sys.executable))
    return there == here


def main(arguments=None):
    """Returns pytest's exit status, or 2 when an environment cannot be made."""
    _, given = make_parser("python -m tests.conformance.newest", __doc__).parse_known_args(arguments)
    try:
        requirement = f"transformers=={newest_version('transformers')}"
        os.environ["OLDER_PYTHONS"] = os.pathsep.join([str(oldest.make()), sys.executable])
        python = prepare(FOLDER, requirement, OWN_CONSTRAINTS)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    same = same_versions(python)
    tests = [OLDER] if same else TESTS
    status = run_tests(FOLDER, requirement, OWN_CONSTRAINTS, given or (*IN_TWO, *tests), "transformers")
    if same and not given:
        print(f"{requirement} is the pinned one: make test and make conformance run the rest")
    if status or given or same:
        return status
    return run_module(python, "tests.conformance.run", *IN_TWO, "-k", CLASSES)


if __name__ == "__main__":
    sys.exit(main())
