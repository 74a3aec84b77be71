# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs the save/load and parity tests on the oldest transformers that the models support.

.venv-oldest sees every package of the environment this runs in, and has only what that transformers needs differently.
Options are pytest's, and replace the list of tests.

examples:
  python -m tests.conformance.oldest
  python -m tests.conformance.oldest tests/processing/test_save.py -x
"""

import sys

from grounded_attention.commands.command_line import make_parser
from grounded_attention.processing.oldest_transformers import OLDEST_TRANSFORMERS

from .second_environment import HERE, IN_TWO, ROOT, prepare, run_tests

FOLDER = ROOT / ".venv-oldest"
REQUIREMENT = f"transformers=={OLDEST_TRANSFORMERS}"
OWN_CONSTRAINTS = HERE / "constraints-oldest.txt"
TESTS = (
    "tests/heads/test_ablation.py",
    "tests/heads/test_heads.py",
    "tests/modeling/test_backbone_regions.py",
    "tests/modeling/test_bundles.py",
    "tests/modeling/test_fast_rcnn.py",
    "tests/modeling/test_lxmert_parity.py",
    "tests/modeling/test_pretraining_handover.py",
    "tests/modeling/test_saving.py",
    "tests/modeling/test_two_stream_families.py",
    "tests/modeling/test_vilbert_parity.py",
    "tests/modeling/test_visualbert_parity.py",
    "tests/modeling/test_vl_bert_parity.py",
    "tests/processing/test_patch_grounding.py",
    "tests/processing/test_save.py",
    "tests/processing/test_visualbert.py",
    "tests/supervision/test_boxes.py",
    "tests/supervision/test_head_changes.py",
    "tests/supervision/test_modules.py",
    "tests/supervision/test_parity.py",
    "tests/supervision/test_vlm_families.py",
    "tests/training/test_preserve.py",
)


def make():
    """Makes the environment; returns its Python, or raises `SetupError`."""
    return prepare(FOLDER, REQUIREMENT, OWN_CONSTRAINTS)


def main(arguments=None):
    """Returns pytest's exit status, or 2 when the environment cannot be made."""
    _, given = make_parser("python -m tests.conformance.oldest", __doc__).parse_known_args(arguments)
    return run_tests(FOLDER, REQUIREMENT, OWN_CONSTRAINTS, given or (*IN_TWO, *TESTS), "transformers")


if __name__ == "__main__":
    sys.exit(main())
