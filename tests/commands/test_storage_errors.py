# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A full or broken disk ends any command with one line and exit 2, and text from data cannot steer a terminal."""

import argparse
import errno
import os
import pickle
import subprocess
import sys

import pytest
import torch
from multiprocess import Pool
from safetensors.torch import load_file, save_file

from grounded_attention.commands import main
from grounded_attention.commands.command_line import (
    explain_error,
    make_parser,
    not_negative,
    positive,
    processes,
    run,
    seed_number,
    share,
)
from grounded_attention.utils.bounded_files import read_json

FULL = "/dev/full"


def finish(work, capsys):
    """Exit status and error text of a command that does `work`."""
    parser = argparse.ArgumentParser()
    status = run(parser, lambda options: work(), [], explain_error=explain_error)
    return status, capsys.readouterr().err


def write_file():
    with open(FULL, "w") as file:
        file.write("x" * 100_000)


def wrapped(error):
    def work():
        try:
            raise error
        except Exception as cause:
            raise RuntimeError("a library's own error") from cause

    return work


def raised(error):
    def work():
        raise error

    return work


WORK = {
    "a plain file": write_file,
    "torch": lambda: torch.save(torch.ones(100_000), FULL),
    "safetensors": lambda: save_file({"a": torch.ones(100_000)}, "/proc/no_such_file"),
    "an I/O error": raised(OSError(errno.EIO, os.strerror(errno.EIO), "runs/a.json")),
    "wrapped": wrapped(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a.json")),
    "text of a library": raised(RuntimeError("I/O error: No space left on device (os error 28)")),
    "PyTorch at the end of a file": raised(RuntimeError("basic_ios::clear: iostream error")),
    "no permission": raised(PermissionError(errno.EACCES, os.strerror(errno.EACCES), "runs")),
}


@pytest.mark.skipif(not os.path.exists(FULL), reason="needs /dev/full")
@pytest.mark.parametrize("name", WORK)
def test_errors_of_the_disk_are_one_line(capsys, name):
    status, printed = finish(WORK[name], capsys)
    assert status == 2
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1


@pytest.mark.skipif(not os.path.exists(FULL), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["train", "--list"]])
def test_what_cannot_be_printed_is_one_line(words):
    with open(FULL, "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "grounded_attention", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_broken_header_of_weights_is_one_line(tmp_path, capsys):
    path = tmp_path / "model.safetensors"
    for content in (b"", b"\xff" * 64, b'\x08\0\0\0\0\0\0\0{"a": 1}'):
        path.write_bytes(content)
        status, printed = finish(lambda: load_file(path), capsys)
        assert status == 2
        assert ".safetensors file is damaged" in printed
        assert printed.count("\n") == 1


def test_a_refused_pickle_is_one_line(capsys):
    status, printed = finish(raised(pickle.UnpicklingError("Weights only load failed")), capsys)
    assert status == 2
    assert "refused" in printed
    assert printed.count("\n") == 1


def test_program_errors_keep_their_traceback(capsys):
    for error in (RuntimeError("a shape"), TypeError("a type"), KeyError("a key")):
        with pytest.raises(type(error)):
            finish(raised(error), capsys)


@pytest.mark.parametrize(
    "hostile", ["\x1b[2J\x1b]0;gone\x07", "\u202egnp.exe", "\u2066a\u2069", "a\0b", "a\x9bb", "\u2028x"]
)
def test_text_from_data_cannot_steer_a_terminal(capsys, hostile):
    status, printed = _fail(capsys, hostile)
    assert status == 2
    assert not set(printed.rstrip("\n")) & set("\x1b\x07\0\x9b\u202e\u2066\u2069\u2028\r\n")


def test_a_message_has_an_end(capsys):
    status, printed = _fail(capsys, "x" * 100_000)
    assert status == 2
    assert len(printed) < 5000


def _fail(capsys, text):
    parser = argparse.ArgumentParser()
    status = run(parser, lambda options: raised(ValueError(text))(), [])
    return status, capsys.readouterr().err


def test_any_error_inside_from_pretrained_is_a_line(capsys):
    """Libraries raise any type for a wrong value in a file of a checkpoint."""

    class Model:
        @classmethod
        def from_pretrained(cls, pretrained_model_name_or_path):
            return {}["a\nfield"]

    status, error = finish(lambda: Model.from_pretrained("runs/mine"), capsys)
    assert status == 2
    assert error.count("\n") == 1
    assert error.startswith("error: runs/mine: the checkpoint cannot be loaded (KeyError in test_storage_errors.py, ")
    with pytest.raises(KeyError):
        finish(lambda: {}["a"], capsys)


def test_a_full_memory_is_a_line(capsys):
    def fill():
        raise MemoryError

    assert finish(fill, capsys) == (
        2,
        "error: the memory is full (MemoryError); give smaller sizes, or end other programs\n",
    )


def test_an_option_is_not_repeated_without_end(capsys):
    parser = make_parser("program", "examples:\n  none")
    parser.add_argument("--number", type=int)
    with pytest.raises(SystemExit):
        parser.parse_args(["--number", "9" * 5000])
    assert len(capsys.readouterr().err.splitlines()[-1]) < 1000


@pytest.mark.parametrize(
    "kind, bad",
    [
        (seed_number, "-1"),
        (seed_number, str(2**32)),
        (processes, "257"),
        (positive, "0"),
        (not_negative, "-1"),
    ],
)
def test_numbers_out_of_range(kind, bad):
    assert kind("7") == 7
    for text in (bad, "x", "9" * 5000):
        with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number from"):
            kind(text)


@pytest.mark.parametrize("text", ["nan", "-0.1", "1.01", "inf", "half", ""])
def test_a_share_out_of_range(text):
    assert [share("0"), share("0.5"), share("1")] == [0.0, 0.5, 1.0]
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number from 0 to 1"):
        share(text)


def test_an_error_of_a_process_of_a_pool_is_one_line(tmp_path, capsys):
    """`datasets` builds rows in a pool of `multiprocess`, whose errors end in a frame of that library."""
    path = tmp_path / "a.json"
    path.write_text("{")

    def build():
        with Pool(1) as pool:
            pool.apply(read_json, (path,))

    status, printed = finish(build, capsys)
    assert status == 2
    assert str(path) in printed
    assert printed.count("\n") == 1


def test_a_library_that_cannot_be_loaded_keeps_its_traceback(monkeypatch):
    """Only what cannot be printed is told of the standard output: `ctypes` gives no number of an error."""
    error = OSError("libcudart.so: cannot open shared object file")
    monkeypatch.setattr(main, "_run", lambda words: raised(error)())
    with pytest.raises(OSError, match="libcudart"):
        main.main([])
