# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs transformers' own common tests on every class of `modeling` and `processing`.

The tests come from the source distribution of the installed transformers, which is downloaded from the package index
once and kept in .cache/conformance; nothing of it is part of this project. Options are pytest's.

examples:
  python -m tests.conformance.run
  python -m tests.conformance.run -x -k VLBertModel
"""

import os
import sys
from pathlib import Path

import pytest
import transformers

from grounded_attention.commands.command_line import make_parser
from tests.conformance.upstream import UpstreamError, fetch_source, unpack_tests

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "conformance"


def main(arguments=None):
    """Returns pytest's exit status, or 2 when the tests cannot be had."""
    _, given = make_parser("python -m tests.conformance.run", __doc__).parse_known_args(arguments)
    folder = CACHE / f"transformers-{transformers.__version__}"
    try:
        unpack_tests(fetch_source(transformers.__version__, CACHE), folder)
    except UpstreamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sys.path.insert(0, str(folder))
    os.environ.update(HF_HUB_OFFLINE="1", RUN_SLOW="1")
    # Named one by one: `make test` must not collect what needs a download.
    files = sorted(str(path) for path in HERE.glob("common_tests_*.py"))
    # Marks of upstream are unknown here, so without the project's --strict-markers.
    marks = "--override-ini=filterwarnings=ignore::pytest.PytestUnknownMarkWarning"
    options = [
        "--override-ini=addopts=",
        marks,
        "--quiet",
        "--no-header",
        "--tb=short",
        "-rs",
        "-p",
        "no:cacheprovider",
    ]
    return pytest.main([*options, *files, *given])


if __name__ == "__main__":
    sys.exit(main())
