# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""An environment that sees every package of the one this runs in, and has a few packages in other versions."""

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
IN_TWO = ("-n", "2", "--dist", "worksteal")  # options of pytest


class SetupError(ValueError):
    """The second environment cannot be made."""


def shared_constraints(text, own, requirement):
    """The lines of constraints.txt for the packages that neither the requirement nor the `own` constraints replace."""
    replaced = {_package(requirement), *(_package(line) for line in own.splitlines())}
    return "".join(f"{line}\n" for line in text.splitlines() if _package(line) not in replaced)


def _package(line):
    return re.split(r"[=<>!~ #]", line, maxsplit=1)[0].lower().replace("-", "_")


def prepare(folder, requirement, own_constraints):
    """Makes the environment unless it is there as it should be; returns its Python.

    Args:
        folder (`Path`): folder of the environment.
        requirement (`str`): what is installed, such as `transformers==5.4.0`.
        own_constraints (`Path`): file of the versions that it needs and constraints.txt has otherwise.

    Raises:
        SetupError: When pip cannot install, with its last line.
    """
    python = folder / "bin" / "python"
    own = own_constraints.read_text()
    shared = shared_constraints((ROOT / "constraints.txt").read_text(), own, requirement)
    made = folder / "made-for.txt"
    wanted = "\n".join([requirement, sys.version, sys.prefix, shared, own])
    if made.exists() and made.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
    paths = {"base": str(folder), "platbase": str(folder)}
    # Looked up after the environment's own packages.
    (Path(sysconfig.get_path("purelib", vars=paths)) / "newest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    constraints = folder / "constraints.txt"
    constraints.write_text(shared)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    pip += ["--disable-pip-version-check", "-c", str(constraints), "-c", str(own_constraints)]
    _run([*pip, requirement])
    made.write_text(wanted)
    return python


def newest_version(package):
    """The newest version of a package on the index that is no pre-release.

    Raises:
        SetupError: When pip cannot ask the index, with its last line.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
    report = json.loads(_run([*pip, "--ignore-installed", "--no-deps", "--report", "-", package]))
    return report["install"][0]["metadata"]["version"]


def _run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise SetupError(f"{' '.join(command[1:4])} failed: {reason}")
    return done.stdout


def run_tests(folder, requirement, own_constraints, arguments, package):
    """Runs pytest there after a line with the version of a package.

    Returns:
        `int`: pytest's exit status, or 2 when the environment cannot be made.
    """
    try:
        python = prepare(folder, requirement, own_constraints)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    report = f"from importlib.metadata import version; print({package!r}, version({package!r}))"
    subprocess.run([python, "-c", report], check=True)
    return run_module(python, "pytest", *arguments)


def run_module(python, *arguments):
    """Runs a module in the project's folder; returns its exit status."""
    return subprocess.run([python, "-m", *arguments], cwd=ROOT).returncode
