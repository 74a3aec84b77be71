# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs the save/load and parity tests on the oldest transformers that the models support.

.venv-oldest sees every package of the environment this runs in, and has only what that transformers needs differently.
Options are pytest's, and replace the list of tests.

examples:
  python -m tests.conformance.oldest
  python -m tests.conformance.oldest tests/processing/test_save.py -x
"""

import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from grounded_attention.commands.command_line import make_parser

from grounded_attention.modeling.check_transformers import OLDEST_TRANSFORMERS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OWN_CONSTRAINTS = HERE / "constraints-oldest.txt"
TESTS = (
    "tests/analysis/test_heads.py",
    "tests/modeling/test_backbone_regions.py",
    "tests/modeling/test_fast_rcnn.py",
    "tests/modeling/test_lxmert_parity.py",
    "tests/modeling/test_pretraining_handover.py",
    "tests/modeling/test_two_stream_families.py",
    "tests/modeling/test_vilbert_parity.py",
    "tests/modeling/test_visualbert_parity.py",
    "tests/modeling/test_visualbert_saving.py",
    "tests/modeling/test_vl_bert_parity.py",
    "tests/modeling/test_vl_bert_saving.py",
    "tests/processing/test_patch_grounding.py",
    "tests/processing/test_save.py",
    "tests/processing/test_visualbert.py",
    "tests/supervision/test_boxes.py",
    "tests/supervision/test_head_changes.py",
    "tests/supervision/test_modules.py",
    "tests/supervision/test_parity.py",
    "tests/supervision/test_vlm_families.py",
)


class SetupError(ValueError):
    """The second environment cannot be made."""


def shared_constraints(text: str, own: str) -> str:
    """The lines of constraints.txt for the packages that neither transformers nor the `own` constraints replace."""
    replaced = {"transformers", *(_package(line) for line in own.splitlines())}
    return "".join(f"{line}\n" for line in text.splitlines() if _package(line) not in replaced)


def _package(line: str) -> str:
    return re.split(r"[=<>!~ #]", line, maxsplit=1)[0].lower().replace("-", "_")


def prepare(folder: Path, version: str) -> Path:
    """Makes the environment unless it is there as it should be; returns its Python.

    Raises:
        SetupError: When pip cannot install, with its last line.
    """
    python = folder / "bin" / "python"
    own = OWN_CONSTRAINTS.read_text()
    shared = shared_constraints((ROOT / "constraints.txt").read_text(), own)
    made = folder / "made-for.txt"
    wanted = "\n".join([version, sys.version, sys.prefix, shared, own])
    if made.exists() and made.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
    paths = {"base": str(folder), "platbase": str(folder)}
    # Looked up after the environment's own packages.
    (Path(sysconfig.get_path("purelib", vars=paths)) / "newest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    constraints = folder / "constraints.txt"
    constraints.write_text(shared)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    pip += ["--disable-pip-version-check", "-c", str(constraints), "-c", str(OWN_CONSTRAINTS)]
    _run([*pip, f"transformers=={version}"])
    made.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise SetupError(f"{' '.join(command[1:4])} failed: {reason}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns pytest's exit status, or 2 when the environment cannot be made."""
    _, given = make_parser("python -m tests.conformance.oldest", __doc__).parse_known_args(arguments)
    try:
        python = prepare(ROOT / ".venv-oldest", OLDEST_TRANSFORMERS)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    report = "from importlib.metadata import version as v; print('transformers', v('transformers'))"
    subprocess.run([python, "-c", report], check=True)
    return subprocess.run([python, "-m", "pytest", *(given or TESTS)], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
