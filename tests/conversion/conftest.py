# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The command `convert` on files that a test makes."""

import json

import pytest
import torch

from grounded_attention.commands.convert import main

HEADS = {"num_attention_heads": 4}


@pytest.fixture
def run_convert(tmp_path, capsys):
    """Saves a file, and a configuration with fields or a text; returns (exit code, output, errors, directory)."""

    def run(family, content, *options, config=None, **fields):
        checkpoint = tmp_path / "original.model"
        if isinstance(content, bytes):
            checkpoint.write_bytes(content)
        else:
            torch.save(content, checkpoint)
        if config is None:
            config = json.dumps(fields if family == "fast_rcnn" else {**HEADS, **fields})
        (tmp_path / "fields.json").write_text(config)
        paths = ["--checkpoint", str(checkpoint), "--output", str(tmp_path / "out")]
        code = main([family, *paths, "--config", str(tmp_path / "fields.json"), *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err, tmp_path / "out"

    return run


@pytest.fixture
def convert(run_convert):
    """The directory that the command has written, and what it printed."""

    def run(*given, **fields):
        code, printed, errors, directory = run_convert(*given, **fields)
        assert code == 0, errors
        return directory, printed

    return run


@pytest.fixture
def refused(run_convert):
    """The error of a file that is refused: one line that begins with the file's name, and nothing is written."""

    def run(*given, **fields):
        code, printed, errors, directory = run_convert(*given, **fields)
        error = errors[errors.find("error:") :]  # without progress on a slow machine
        assert code == 2
        assert printed == ""
        assert error.count("\n") == 1
        assert error.startswith(f"error: {directory.parent / 'original.model'}")
        assert not directory.exists()
        assert not list(directory.parent.glob(".*"))
        return error

    return run
