# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The messages that newcomers meet first, word for word. Other tests look for a type, a key, a file or a record."""

import numpy as np
import pytest
import torch

from grounded_attention import ChosenHeads, RegionTable, get_method, grounded_rows, load_recipe, supervise
from grounded_attention.commands.main import main
from grounded_attention.processing.phrase import read_phrase
from tests.helpers.processing_helpers import make_processor

BOXES = [[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]]
KEYS = "text, start, end, sentence, boxes, regions, mask, scores, weight, image, entity, types"
GOLD = "(gold boxes are always normalised)"
AT = "Example 0, phrase 0:"


def process(phrase=None, width=6, boxes=BOXES):
    phrases = None if phrase is None else [{"text": "a man", **phrase}]
    make_processor()("a man in red", region_features=np.ones((2, width)), region_boxes=boxes, phrases=phrases)


# What is wrong -> how it is done, and what is said.
CALLS = {
    "another key for boxes": (
        lambda: process({"bbox": BOXES}),
        f"{AT} 'bbox' is no key of a phrase; known: {KEYS}; did you mean 'boxes'?",
    ),
    "a phrase without a place": (
        lambda: read_phrase({"text": "a man"}, ["a man"], "row 1", grounded=True),
        "row 1: neither boxes nor regions; give 'boxes': [] for a phrase that is not grounded.",
    ),
    "other words": (
        lambda: process({"text": "a dog", "boxes": []}),
        f"{AT} the phrase 'a dog' is not in the texts as whole words: give sentence, start and end.",
    ),
    "pixels": (
        lambda: process({"boxes": [[0, 0, 50, 40]]}),
        f"{AT} gold box [0.0, 0.0, 50.0, 40.0] is outside the image, expected coordinates in [0, 1] after division "
        f"by its size {GOLD}.",
    ),
    "width and height": (
        lambda: process({"boxes": [[0.5, 0, 0.1, 1]]}),
        f"{AT} gold box [0.5, 0.0, 0.1, 1.0] is inverted, expected x1 <= x2 and y1 <= y2 {GOLD}.",
    ),
    "features alone": (
        lambda: process(boxes=None),
        "region_features are given without region_boxes; every region needs a box.",
    ),
    "features of another width": (
        lambda: process(width=7),
        "Example 0: region features of shape (2, 7), expected (regions, 6); the processor's region_feature_size and "
        "that of the model's config must be the width of the features.",
    ),
    "an option": (lambda: get_method("direct", layer=[1]), "unknown key 'layer'; did you mean 'layers'?"),
    "a module": (
        lambda: supervise(torch.nn.Linear(2, 2)).__enter__(),
        "Linear is not a transformers model: its attention cannot be supervised",
    ),
    "heads": (
        lambda: ChosenHeads.from_file("nowhere"),
        "nowhere: no such file; make it with `grounded-attention heads`",
    ),
    "rows": (
        lambda: grounded_rows("nowhere.jsonl"),
        "nowhere.jsonl: no such file or folder: expected data, or ORG/NAME on the Hub (ORG/NAME:CONFIG@REVISION)",
    ),
    "a table": (
        lambda: RegionTable.open("/nowhere"),
        "/nowhere: no region table here: expected a folder with regions.json; build one with "
        "`grounded-attention regions import`",
    ),
    "a recipe": (
        lambda: load_recipe("nowhere"),
        "nowhere: cannot be read (No such file or directory); `grounded-attention train --list` lists the recipes",
    ),
}
COMMANDS = {
    "trian": "there is no command 'trian'; did you mean 'train'?",
    "train scenes_vgq": "scenes_vgq: cannot be read (No such file or directory); did you mean 'scenes_vqa'? "
    "`grounded-attention train --list` lists the recipes",
    "train scenes_vgp training.max_step=3": "unknown key 'training.max_step'; did you mean 'training.max_steps'?",
    "train scenes_vgp training.max_steps=many": "training.max_steps: Input should be a valid integer, found 'many'",
    "look a.png what?": "the following arguments are required: --model; see grounded-attention look --help",
    "data show nowhere": "nowhere: no such file or folder: expected data, or ORG/NAME on the Hub "
    "(ORG/NAME:CONFIG@REVISION)",
    "heads --run nowhere": "nowhere: recipe.json is missing, so this is not a run of train.py; make it with "
    "`make train`, or with train.py and another recipe",
}


@pytest.mark.parametrize("wrong", CALLS)
def test_a_call_says_what_is_wrong(wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, message = CALLS[wrong]
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_what_is_wrong(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        status = main(command.split())
    except SystemExit as end:  # argparse
        status = end.code
    assert status == 2
    assert capsys.readouterr().err == f"error: {COMMANDS[command]}\n"
