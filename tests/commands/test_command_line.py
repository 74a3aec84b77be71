# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Every command: help with examples, one line about a mistake, exit status 0 or 2."""

import argparse
import ast
import importlib
import re
import subprocess
import sys

import pytest

from grounded_attention.commands import command_line
from tests.helpers.commands import COMMANDS, FOLDERS, MODULES, ROOT

BENCHMARKS = [name for name in COMMANDS if name.startswith("benchmarks.")]

# For those who work on the project; the first two hand their options to pytest.
TOOLS = ["tests.conformance.run", "tests.conformance.oldest", "tests.helpers.loopback_hub"]

# What makes each command read a file that is not there. A new command needs its line.
ABSENT = {
    "grounded_attention.commands.build_data": "vgp --data-dir {absent} --output {folder}/out",
    "grounded_attention.commands.extract_regions": "--images {absent} --output {folder}/out --detector d --features f",
    "grounded_attention.commands.import_regions": "{absent} --output {folder}/out",
    "grounded_attention.commands.push_regions": "{absent} org/name --licence cc0-1.0",
    "grounded_attention.commands.refcoco_boxes": "--data-dir {absent} --output {folder}/out.json",
    "grounded_attention.commands.check_scenes": "{absent}",
    "grounded_attention.dataset_scripts.scenes": "--output {file}/out --images 24 --seed 0",  # writes only: a file where a folder must be
    "grounded_attention.commands.vcr_boxes": "--data-dir {absent} --output {folder}/out.json",
    "grounded_attention.analysis.audit": "--model {absent} --data vgp --data-dir {absent} --regions {absent}",
    "grounded_attention.commands.audit_run": "{absent}",
    "grounded_attention.commands.ground": "{absent} caption --model m --regions r",
    "grounded_attention.commands.perturb": "{absent} --task vgp --data-dir {absent} --regions {absent}",
    "grounded_attention.commands.evaluate": "{absent} --task vgp --data-dir {absent} --regions {absent}",
    "grounded_attention.commands.convert": "vl_bert --checkpoint {absent} --output {folder}/out",
    "grounded_attention.commands.join_vcr": "{absent} {absent}",
    "train": "{absent}",
    "grounded_attention.commands.push": "{absent} org/name",
}


def call(name: str, *arguments: str) -> int:
    """The command's exit status, in this process."""
    try:
        return importlib.import_module(MODULES.get(name, name)).main(list(arguments))
    except SystemExit as stop:  # argparse's way out
        return int(stop.code or 0)


def test_there_are_commands():
    assert {
        "train",
        "grounded_attention.commands.ground",
        "grounded_attention.commands.build_data",
        "grounded_attention.commands.convert",
    } <= set(COMMANDS)
    assert set(ABSENT) == set(COMMANDS) - set(BENCHMARKS), "every command that reads files has its line in ABSENT"


@pytest.mark.parametrize("name", [*COMMANDS, *TOOLS])
def test_help_shows_an_example(name, capsys):
    assert call(name, "--help") == 0
    printed = capsys.readouterr().out
    example = f"{name}.py" if name == "train" else f"-m {name}"
    assert printed.startswith("usage: ") and example in printed.partition("examples:")[2], printed


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_refused(name, capsys):
    assert call(name, "--no-such-option") == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "error: " in printed.err and "Traceback" not in printed.err


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_a_missing_file_is_one_line(name, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    places = {"absent": tmp_path / "absent.json", "folder": tmp_path, "file": tmp_path / "file"}
    assert call(name, *ABSENT[name].format(**places).split()) == 2
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert printed.out == "" and len(errors) == 1 and "Traceback" not in printed.err, printed.err
    assert "absent" in errors[0] or "file" in errors[0]
    assert "[Errno" not in errors[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_prints_a_result_prints_json_too(name, capsys):
    call(name, "--help")
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*COMMANDS, *TOOLS])
def test_the_process_ends_with_the_status_of_main(name):
    last = ast.parse((ROOT / f"{MODULES.get(name, name).replace('.', '/')}.py").read_text(encoding="utf-8")).body[-1]
    assert isinstance(last, ast.If) and ast.unparse(last.body[0]) == "sys.exit(main())"


def test_a_process_tells_its_status(tmp_path):
    command = [sys.executable, "-m", "grounded_attention.commands.join_vcr", str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and done.stderr.startswith("error: ")


# command_line itself


def doing(outcome, capsys, **options):
    """What `run` makes of a piece of work that returns or raises `outcome`."""

    def work(asked):
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    status = command_line.run(argparse.ArgumentParser(), work, [], **options)
    return (status, *capsys.readouterr())


@pytest.mark.parametrize(
    "outcome, line",
    [
        (ValueError("two\n  lines"), "two lines"),
        (FileNotFoundError(2, "No such file or directory", "a.json"), "a.json: No such file or directory"),
        (OSError("not\nthere"), "not there"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_mistake_is_one_line(capsys, monkeypatch, outcome, line):
    assert doing(outcome, capsys) == (2, "", f"error: {line}\n")
    monkeypatch.setenv("RANK", "1")
    assert doing(outcome, capsys) == (2, "", ""), "one of several processes tells it"


def test_results_faults_and_interruptions(capsys):
    assert doing("done", capsys) == (0, "done\n", "")
    assert doing(None, capsys) == (0, "", "")
    told = "error: interrupted; again goes on\n"
    assert doing(KeyboardInterrupt(), capsys, resumable="again goes on") == (130, "", told)
    with pytest.raises(RuntimeError):
        doing(RuntimeError("a fault"), capsys)
    with pytest.raises(ValueError, match="a fault"):
        doing(ValueError("a fault"), capsys, explain=lambda error: None)


def test_a_docstring_needs_examples():
    assert (
        "examples:\n  python -m x"
        in command_line.make_parser("x", "What.\n\nexamples:\n  python -m x\n").format_help()
    )
    for docstring in (None, "What.", "What.\n\nexamples:\n"):
        with pytest.raises(ValueError, match="the docstring of x has no part `examples:`"):
            command_line.make_parser("x", docstring)


def test_the_docs_name_no_command_that_is_not_there():
    pages = [ROOT / "README.md", ROOT / "Makefile", *(ROOT / "docs").glob("*.md")]
    called = re.compile(rf"python3? -m ((?:{'|'.join(FOLDERS)})(?:\.\w+)+)")
    for page in pages:
        for name in called.findall(page.read_text(encoding="utf-8")):
            assert name in COMMANDS, f"{page.name} names {name}"
