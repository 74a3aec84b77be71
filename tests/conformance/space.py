# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs the tests of the page (`grounded-attention space run`) with gradio, which needs an older Pillow than the rest.

.venv-space sees every package of the environment this runs in, and has gradio and what that needs differently. Options
are pytest's, and replace the folder of tests.

examples:
  python -m tests.conformance.space
  python -m tests.conformance.space tests/space/test_page.py -x
"""

import sys

from grounded_attention.commands.command_line import make_parser

from .second_environment import HERE, ROOT, run_tests

OWN_CONSTRAINTS = HERE / "constraints-space.txt"


def main(arguments=None):
    """Returns pytest's exit status, or 2 when the environment cannot be made."""
    _, given = make_parser("python -m tests.conformance.space", __doc__).parse_known_args(arguments)
    return run_tests(ROOT / ".venv-space", "gradio>=6", OWN_CONSTRAINTS, given or ["tests/space"], "gradio")


if __name__ == "__main__":
    sys.exit(main())
