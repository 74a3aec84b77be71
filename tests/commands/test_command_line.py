# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Every command: help with examples, one line about a mistake, exit status 0 or 2."""

import argparse
import ast
import errno
import importlib
import json
import os
import re
import subprocess
import sys

import pytest
from PIL import Image

from grounded_attention.commands import command_line, main
from grounded_attention.utils.progress import is_quiet
from tests.helpers.commands import BENCHMARKS, COMMANDS, FOLDER, ROOT

# For those who work on the project; the first two hand their options to pytest.
TOOLS = ["tests.conformance.run", "tests.conformance.oldest"]

# What makes each command read a file that is not there. A new command needs its line.
ABSENT = {
    "convert": "vl_bert --checkpoint {absent} --output {folder}/out",
    "data build": "vgp --data-dir {absent} --output {folder}/out",
    "data pseudo-ground": "--captions flickr30k_entities --data-dir {absent} --images {folder} --grounder scenes "
    "--phrases given --output {folder}/out",
    "data push": "{absent} org/name --permission mine",
    # Writes only: a file where a folder must be.
    "data show": "{absent}",
    "data scenes": "--output {file}/out --images 24 --seed 0",
    "data screens": "--output {file}/out --images 24 --seed 0",
    "evaluate": "{absent} --task vgp --data-dir {absent} --regions {absent}",
    "ground": "{absent} caption --model m --regions r",
    "heads": "--model {absent} --data refcoco --data-dir {absent} --images {folder}",
    "look": "{absent} question --model m --output {folder}/lens.html",
    "point": "{absent} text --model m",
    "serve": "--model {absent} --port 0",
    "push": "{absent} org/name",
    "regions extract": "--images {absent} --output {folder}/out --detector d --features f",
    "regions import": "{absent} --output {folder}/out",
    "space push": "org/name --model {absent}",
    "space run": "--model {absent}",
    "train": "{absent}",
}


def call(name, *arguments):
    """The exit status of a command, or of a module with `main`, in this process."""
    try:
        if name in COMMANDS:
            return main.main([*name.split(), *arguments])
        return importlib.import_module(name).main(list(arguments))
    except SystemExit as stop:  # argparse's way out
        return int(stop.code or 0)


def run_python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, **options)


def test_quiet_hides_progress_while_a_command_works(capsys, monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    parser = command_line.make_parser("x", "What.\n\nexamples:\n  x\n")
    assert command_line.run(parser, lambda options: str(is_quiet()), []) == 0
    assert command_line.run(parser, lambda options: str(is_quiet()), ["--quiet"]) == 0
    assert capsys.readouterr().out == "False\nTrue\n"
    assert not is_quiet()


def test_every_program_of_the_folder_is_a_command():
    main_of = re.compile("^(main = |def main\\()", re.MULTILINE)
    programs = {path.stem for path in FOLDER.glob("*.py") if main_of.search(path.read_text())}
    assert {module.rpartition(".")[2] for module in COMMANDS.values()} == programs - {"main"}
    assert set(ABSENT) == set(COMMANDS) - {"doctor"}, "every command that reads files has its line in ABSENT"


@pytest.mark.parametrize("name", [*COMMANDS, *BENCHMARKS, *TOOLS])
def test_help_shows_an_example(name, capsys):
    assert call(name, "--help") == 0
    printed = capsys.readouterr().out
    example = f"grounded-attention {name} " if name in COMMANDS else f"-m {name}"
    assert printed.startswith("usage: ") and example in printed.partition("examples:")[2], printed


@pytest.mark.parametrize("name", [*COMMANDS, *BENCHMARKS])
def test_an_unknown_option_is_refused(name, capsys):
    assert call(name, "--no-such-option") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "error: " in printed.err
    assert "Traceback" not in printed.err
    assert name not in COMMANDS or (printed.err.startswith("error: ") and printed.err.count("\n") == 1)


@pytest.mark.parametrize(
    "typed, meant",
    [("--limti", " (did you mean --limit?);"), ("--zzz", ";")],
)
def test_an_unknown_option_names_the_one_that_is_meant(typed, meant, capsys):
    assert call("data pseudo-ground", "--grounder", "scenes", "--output", "o", "--data", "d", typed, "5") == 2
    assert f"unrecognized arguments: {typed}{meant}" in capsys.readouterr().err


def test_only_what_is_required_is_said_to_be_required(capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(["data", "build", "--data-dir", "d", "--output", "o"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.partition(";")[0].endswith("are required: name")


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


OUTPUTLESS = {"data scenes", "data screens", "serve", "space run"}


@pytest.mark.parametrize("name", [*sorted(COMMANDS.keys() - OUTPUTLESS), *BENCHMARKS])
def test_a_command_that_prints_a_result_prints_json_too(name, capsys):
    call(name, "--help")
    printed = capsys.readouterr().out
    assert "--json" in printed


@pytest.mark.parametrize("name", ["grounded_attention.commands.main", *BENCHMARKS, *TOOLS])
def test_the_process_ends_with_the_status_of_main(name):
    path = ROOT / f"{name.replace('.', '/')}.py"
    last = ast.parse(path.read_text(encoding="utf-8")).body[-1]
    assert isinstance(last, ast.If)
    assert ast.unparse(last.body[0]) == "sys.exit(main())"


@pytest.mark.parametrize("program", ["grounded_attention.commands.main evaluate", "grounded_attention evaluate"])
def test_a_process_returns_its_status(tmp_path, program):
    done = run_python("-m", *program.split(), str(tmp_path / "a"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")


def test_the_file_of_a_command_says_that_it_is_no_program():
    done = run_python("-m", "grounded_attention.commands.evaluate", "--help")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "python -m grounded_attention COMMAND" in done.stderr


# The program itself


def test_the_help_names_every_command(capsys):
    assert call_program("--help") == 0
    printed = capsys.readouterr().out
    for name in COMMANDS:
        assert f"  {name} " in printed
    assert "examples:" in printed
    assert max(map(len, printed.splitlines())) <= 100
    for group in main.GROUPS:
        assert call_program(group, "--help") == 0
        printed = capsys.readouterr().out
        for name in COMMANDS:
            assert (f"  {name} " in printed) == name.startswith(f"{group} ")


@pytest.mark.parametrize(
    "words, hint",
    [
        (["trian"], "there is no command 'trian'; did you mean 'train'?"),
        (["data", "biuld"], "there is no command 'data biuld'; did you mean 'data build'?"),
        (["xyzzy"], "there is no command 'xyzzy'; see grounded-attention --help"),
    ],
)
def test_an_unknown_command_names_the_nearest(capsys, words, hint):
    assert call_program(*words) == 2
    assert capsys.readouterr().err == f"error: {hint}\n"


def test_without_a_command_it_is_a_mistake_that_shows_the_help(capsys):
    assert call_program() == 2
    assert call_program("regions") == 2
    assert "regions import" in capsys.readouterr().out
    assert call_program("--version") == 0


def call_program(*words):
    return main.main(list(words))


HELP = """
import sys, grounded_attention
from grounded_attention.commands.main import COMMANDS, main
for name in ["", *COMMANDS]:
    try:
        main([*name.split(), "--help"])
    except SystemExit:
        pass
    heavy = {"torch", "transformers", "datasets", "accelerate", "matplotlib"} & set(sys.modules)
    assert not heavy, f"grounded-attention {name} --help imports {heavy}"
    assert name or "numpy" not in sys.modules
print("looked at", len(COMMANDS))
"""


def test_help_and_import_load_no_torch():
    """A shell must not wait seconds for them."""
    done = run_python("-c", HELP)
    assert done.stdout.endswith(f"looked at {len(COMMANDS)}\n"), done.stderr


# command_line itself


def doing(outcome, capsys, **options):
    """What `run` makes of a piece of work that returns or raises `outcome`."""

    def work(arguments):
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
        (
            UnicodeEncodeError("utf-8", "a\udcff/b\0c", 1, 2, "surrogates not allowed"),
            r"the name 'a\udcff/b' is not UTF-8 (its bytes are written as \udc..): rename the file or folder",
        ),
    ],
)
def test_a_mistake_is_one_line(capsys, monkeypatch, outcome, line):
    assert doing(outcome, capsys) == (2, "", f"error: {line}\n")
    monkeypatch.setenv("RANK", "1")
    assert doing(outcome, capsys) == (2, "", ""), "one of several processes tells it"


def test_one_process_of_several_tells_of_its_disk_and_of_the_others_end(capsys, monkeypatch):
    peer = RuntimeError("[gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:20356. GLHF!")
    with pytest.raises(RuntimeError):
        doing(peer, capsys)
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, _, err = doing(peer, capsys)
    assert status == 2
    assert err.startswith("error: another process of this training has ended")
    assert "GLHF" not in err
    monkeypatch.setenv("RANK", "1")
    assert doing(peer, capsys) == (2, "", ""), "the main process tells it"
    full = OSError(errno.ENOSPC, "No space left on device", "a.json")
    assert doing(full, capsys) == (2, "", "process 1: a.json: No space left on device\n")


def test_bars_do_not_fill_a_log_file():
    bar = "from tqdm.auto import tqdm; list(tqdm(range(99), mininterval=0))"
    short = "from tqdm.auto import tqdm; list(tqdm(range(99)))"
    calm = "from grounded_attention.commands.main import calm_bars; calm_bars(); "

    def printed(code, **environment):
        bare = {name: value for name, value in os.environ.items() if not name.startswith("TQDM_")}
        return run_python("-c", code, env={**bare, **environment}, check=True).stderr

    assert "99/99" in printed(bar)
    assert "99/99" in printed(short)
    assert printed(calm + bar) == printed(calm + short) == ""
    assert "99/99" in printed(calm + short, TQDM_DELAY="0")


def test_colours_are_for_terminals(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert doing(ValueError("a"), capsys)[2] == "\x1b[31merror:\x1b[0m a\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert doing(ValueError("a"), capsys)[2] == "error: a\n"


def test_a_package_that_is_missing_is_one_line_and_a_fault_of_an_import_is_none(capsys):
    missing = ImportError("liger-kernel is not available.\nPlease install it with `pip install liger-kernel`")
    line = "error: liger-kernel is not available. Please install it with `pip install liger-kernel`\n"
    assert doing(missing, capsys) == (2, "", line)
    with pytest.raises(ImportError) as fault:
        from os import installed  # noqa: F401
    with pytest.raises(ImportError):
        doing(fault.value, capsys)


def test_results_faults_and_interruptions(capsys):
    assert doing("done", capsys) == (0, "done\n", "")
    assert doing(None, capsys) == (0, "", "")
    printed = "error: interrupted; again goes on\n"
    assert doing(KeyboardInterrupt(), capsys, resumable="again goes on") == (130, "", printed)
    with pytest.raises(RuntimeError):
        doing(RuntimeError("a fault"), capsys)
    with pytest.raises(ValueError, match="a fault"):
        doing(ValueError("a fault"), capsys, explain_error=lambda error: None)


MANY_LINES = """
import sys
from grounded_attention.commands.command_line import make_parser, run
sys.exit(run(make_parser("many", "Lines.\\n\\nexamples:\\n  many"), lambda _: "a line\\n" * 100_000, []))
"""


def test_a_reader_that_has_enough_is_no_error():
    script = f"\"{sys.executable}\" -c '{MANY_LINES}' | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "a line\n0\n"
    assert done.stderr == ""


def test_the_docs_name_no_command_that_is_not_there():
    pages = [ROOT / "README.md", ROOT / "Makefile", *(ROOT / "docs").rglob("*.md")]
    pages += [ROOT / "CONTRIBUTING.md", *(ROOT / "recipes").rglob("*.yaml"), *(ROOT / "model_cards").glob("*.md")]
    typed = re.compile(r"(?:^|`|bin/|&& )grounded-attention ([a-z-]+)(?: ([a-z-]+))?", re.MULTILINE)
    benchmarks = re.compile(r"python3? -m (benchmarks\.\w+)")
    names = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for first, second in typed.findall(text):
            name = f"{first} {second}" if first in main.GROUPS else first
            assert name in COMMANDS, f"{page.name} names {name}"
            names.append(name)
        assert set(benchmarks.findall(text)) <= set(BENCHMARKS), page.name
    assert len(names) > 20, "the scan finds hardly any"


@pytest.mark.parametrize("words", [["--help"], ["train", "--list"], ["train", "--help"]])
def test_an_output_that_nobody_reads_is_no_error(words):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "grounded_attention", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_command_without_its_package_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.delitem(sys.modules, "grounded_attention.commands.import_regions", raising=False)
    monkeypatch.setattr("grounded_attention.utils.project._EXTRA_OF", {"tqdm": "train"})
    assert main.main(["regions", "import", "a.tsv", "--output", "out"]) == 2
    assert "tqdm" in capsys.readouterr().err


def test_an_interrupt_inside_of_a_callback_is_not_lost():
    """As of Python's own locks of imports: the exception of a weak reference's callback is dropped."""
    code = """
import sys, time, weakref
from grounded_attention.commands import main

class Thing:
    pass

def drop(reference):
    raise KeyboardInterrupt

def work(words):
    thing = Thing()
    reference = weakref.ref(thing, drop)
    del thing
    time.sleep(40)

main._run = work
sys.exit(main.main())
"""
    done = run_python("-c", code, timeout=50)
    assert done.returncode == 130
    assert done.stderr.count("\n") == 1


def test_an_interrupt_while_libraries_are_imported_is_not_lost(tmp_path, monkeypatch):
    """torch imports NumPy in C++ and drops what is raised there; NumPy then stays half imported."""
    code = """
import sys
from grounded_attention.commands.main import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.lib":
            sys.meta_path.remove(self)
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["grounded-attention", *"heads --model none --data rows.jsonl --output heads".split()]
sys.exit(main())
"""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 130
    assert done.stderr == "error: interrupted\n"


LIGHT = """
import sys
from grounded_attention import Phrase, grounded_rows, read_phrase
from grounded_attention.commands.main import main
from grounded_attention.utils import boxes
assert main(["data", "show", sys.argv[1], "--output", sys.argv[2]]) == 0
assert main(["heads", "--model", "/nowhere", "--data", sys.argv[1]]) == 2
assert main(["train", "/nowhere.yaml"]) == 2
assert main(["data", "show", "/nowhere.jsonl"]) == 2
assert main(["look", "/nowhere.png", "Where?", "--model", "any/model"]) == 2
assert main(["look", sys.argv[3], "Where?", "--model", "any/model", "--output", "page.txt"]) == 2
assert main(["point", "/nowhere.png", "the dog", "--model", "any/model"]) == 2
assert main(["ground", "/nowhere.png", "a dog", "--model", "any/model"]) == 2
print("heavy:", *({"torch", "transformers", "datasets", "accelerate"} & set(sys.modules)))
"""


def test_rows_pages_and_wrong_paths_load_no_torch(tmp_path):
    """Phrase, boxes, rows and pages; and a path that does not exist is said before anything is loaded."""
    Image.new("RGB", (60, 40)).save(tmp_path / "x.png")
    row = {"image": "x.png", "text": "a dog", "phrases": [{"text": "a dog", "boxes": [[0.1, 0.1, 0.5, 0.5]]}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    paths = [str(tmp_path / name) for name in ("rows.jsonl", "page.html", "x.png")]
    done = run_python("-c", LIGHT, *paths)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("heavy:\n"), done.stdout
    assert (tmp_path / "page.html").stat().st_size > 1000
