# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The files of examples/ run as they stand, teach what they say, and stay short."""

import os
import re

import pytest

from tests.helpers.project_files import ROOT
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.warm_python import run_python

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MOST_LINES = 60


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_read_at_a_glance(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def pointing(example, folder, *arguments):
    """(best head, chance), in percent, before and after."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    code = (ROOT / "examples" / f"{example}.py").read_text(encoding="utf-8")
    if arguments:
        code = code.replace("range(60)", "range(2)")
    done = run_python(code, arguments, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [(int(best), int(chance)) for best, chance in re.findall(r"best head (\d+)%, chance (\d+)%", done.stdout)]


@pytest.mark.parametrize("example", [path.stem for path in EXAMPLES])
def test_an_example_teaches_where_words_look(tmp_path, example):
    (before, chance), (after, _) = pointing(example, tmp_path)
    assert before < chance + 20
    assert after >= 90


def test_the_example_of_a_decoder_takes_a_model_by_its_name(tmp_path):
    assert len(pointing("minimal_vlm", tmp_path, str(save_llava(tmp_path / "model")))) == 2
