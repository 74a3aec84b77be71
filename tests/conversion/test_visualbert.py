# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Original VisualBERT checkpoints (`.th`) become model directories; every key is accounted for. The numbers of the
converted models are tested in tests/modeling/test_visualbert_parity.py."""

import json

import pytest
import torch
from torch.testing import assert_close

from grounded_attention.families import FAMILIES

CLASSES = {
    "pretraining": "pretraining",
    "flickr": "phrase_grounding",
    "flickr_bypass": "phrase_grounding",
    "nlvr2": "visual_reasoning",
    "vqa": "vqa",
    "vcr": "multiple_choice",
}


@pytest.fixture(scope="module")
def originals(shared):
    """State dicts as the public code saves them: in AllenNLP's wrapper."""
    file = torch.load(shared / "parity" / "visualbert.pt", weights_only=True)
    return {
        case["name"]: {f"bert.{key}": value for key, value in case["state_dict"].items()} for case in file["cases"]
    }


@pytest.mark.parametrize("name", CLASSES)
def test_a_checkpoint_becomes_its_class_and_every_key_has_a_place(originals, convert, name):
    original = originals[name]
    cls = FAMILIES["visualbert"].heads[CLASSES[name]]
    directory, printed = convert("visualbert", original)
    assert cls.__name__ in printed
    record = json.loads((directory / "conversion.json").read_text())
    assert not record["left_out"]
    assert not record["initialised"]
    model, info = cls.from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    weights = model.state_dict()
    found = {key: weights[place] for key, place in record["converted"].items()}
    assert_close(found, original, rtol=0, atol=0)
    assert model.config.bypass_transformer is (name == "flickr_bypass")
    assert {"modeling_visualbert.py", "configuration_visualbert.py"} <= {path.name for path in directory.iterdir()}


def test_wrappers_detectors_and_unused_heads(originals, convert):
    """Bare keys, keys of data parallel, and what a task's file holds beside its weights."""
    bare = {key.removeprefix("bert."): value for key, value in originals["vcr"].items()}
    mlm = {key: value for key, value in originals["pretraining"].items() if ".cls." in key}
    extra = {"bert.detector.backbone.weight": torch.zeros(2), "bert.bert.embeddings.position_ids": torch.arange(30)}
    content = {**originals["vcr"], **mlm, **extra, "x": torch.ones(1)}
    wrapped = {f"module.{key}": value for key, value in content.items()}
    places = []
    for content in (bare, wrapped):
        directory, _ = convert("visualbert", content, "--force")
        record = json.loads((directory / "conversion.json").read_text())
        places.append(set(record["converted"].values()))
    assert places[0] == places[1]
    left = {key: reason for reason, keys in record["left_out"].items() for key in keys}
    assert set(left) == {f"module.{key}" for key in (*mlm, *extra, "x")}
    assert left["module.x"].startswith("unknown key")
    assert "detector" in left["module.bert.detector.backbone.weight"]
