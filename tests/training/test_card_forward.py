# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a card's snippet does with the model: it runs for every class with a head, and prints what the model says."""

import numpy as np
import pytest
import torch
from PIL import Image

from grounded_attention.families import FAMILIES
from grounded_attention.tasks import TASKS
from grounded_attention.training.publish.card_snippets import forward_lines, seen_lines
from tests.helpers.hub_models import tiny_config
from tests.helpers.tiny_vgp import FEATURE_SIZE, tiny_processor

USES = [(family, task) for task in TASKS for family in FAMILIES if TASKS[task].head in FAMILIES[family].heads]
CAPTION = "a b c d e"
PHRASE = "d e"
PRINTED = {
    "multiple_choice": ("e: ", "d e: "),
    "phrase_grounding": ("d e: box [",),
    "pretraining": ("in the place of 'e': ",),
    "referring_expressions": ("what the caption names: box [",),
    "vgp": ("both captions describe the image: ", "the first alone", "the second alone"),
    "visual_reasoning": ("the statement holds: ",),
    "vqa": ("answer: ",),
}


@pytest.mark.parametrize("family, task", USES)
def test_every_task_prints_its_result(family, task, capsys):
    torch.manual_seed(0)
    head = TASKS[task].head
    options = {"answers": ["yes", "no"]} if head == "vqa" else {}
    model = FAMILIES[family].heads[head](tiny_config(family, **options)).eval()
    processor = FAMILIES[family].processor_class(tiny_processor().tokenizer, region_feature_size=FEATURE_SIZE)
    known = {"np": np, "torch": torch, "Image": Image, "model": model, "processor": processor}
    lines = seen_lines(False, FEATURE_SIZE, None) + "\n" + forward_lines(TASKS[task].example, CAPTION, PHRASE)
    exec(lines, {**known, "caption": CAPTION, "phrase": PHRASE})
    found = capsys.readouterr().out.splitlines()
    shares = 0
    for line, text in zip(found, PRINTED[head], strict=True):
        assert line.startswith(text)
        if line.endswith(("%", "%)")):
            shares += int(line.rpartition(" ")[2].strip("(%)"))
    if head in ("vgp", "multiple_choice"):
        assert abs(shares - 100) <= 1


def test_the_lines_name_the_features_of_training():
    assert "computed by scenes, as in training" in seen_lines(False, 8, {"name": "scenes"})
    assert "features" not in seen_lines(True, 8, {"name": "scenes"})
