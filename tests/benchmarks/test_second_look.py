# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of the second look: the picture holds the scene as it was, and sums are those of single answers."""

import json
import random

import numpy as np
import pytest
from PIL import Image

from benchmarks import second_look as benchmark
from tests.helpers.project_files import ROOT


def test_the_scene_is_on_the_large_picture_as_it_was():
    scene = Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 20, 3), dtype=np.uint8))
    large = np.asarray(benchmark.enlarge(scene, random.Random(3)))
    windows = np.lib.stride_tricks.sliding_window_view(large, (12, 20, 3))[:, :, 0]
    assert large.shape == (48, 80, 3)
    assert (windows == np.asarray(scene)).all((2, 3, 4)).sum() == 1


def test_answers_are_counted(scenes, monkeypatch, capsys):
    """The second look alone is right, of all questions but the first."""
    asked = []
    builder = benchmark.VQAv2(data_dir=str(scenes), splits=["validation"])
    builder.download_and_prepare()
    answers = {row["question"]: row["answers"][0] for row in builder.as_dataset("validation")}

    def ask(model, processor, scene, question, rng):
        asked.append(question)
        return "no", "no", answers[question] if len(asked) > 1 else "no", "no"

    monkeypatch.setattr(benchmark, "ask", ask)
    model = str(ROOT / "grounded_attention/space/models/vlm/direct")
    assert benchmark.main([model, "--scenes", str(scenes), "--questions", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["questions"] == len(asked) == 3
    assert [found[way][0] for way in benchmark.WAYS] == pytest.approx([0, 0, 2 / 3, 0, 2 / 3])
