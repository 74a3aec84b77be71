# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Original VisualBERT checkpoints (`.th`) become model directories; every key is accounted for. The numbers of the
converted models are tested in tests/modeling/test_visualbert_parity.py."""

import json

import pytest
import torch

from grounded_attention.commands.convert import main
from grounded_attention.families import FAMILIES

HEADS = 4
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


@pytest.fixture
def convert(tmp_path, capsys):
    """Saves a file's content, runs the command on it, returns (exit code, output, errors, directory)."""

    def run(content, heads=HEADS):
        checkpoint = tmp_path / "visualbert.th"
        config = tmp_path / "config.json"
        torch.save(content, checkpoint)
        config.write_text(json.dumps({"num_attention_heads": heads} if heads else {}))
        paths = ["--checkpoint", str(checkpoint), "--output", str(tmp_path / "out"), "--config", str(config)]
        code = main(["visualbert", *paths])
        captured = capsys.readouterr()
        return code, captured.out, captured.err, tmp_path / "out"

    return run


@pytest.mark.parametrize("name", CLASSES)
def test_a_checkpoint_becomes_its_class_and_every_key_has_a_place(originals, convert, name):
    original = originals[name]
    cls = FAMILIES["visualbert"].heads[CLASSES[name]]
    code, printed, _, directory = convert(original)
    assert code == 0
    assert cls.__name__ in printed
    record = json.loads((directory / "conversion.json").read_text())
    assert set(record["converted"]) == set(original)
    assert not record["left_out"]
    assert not record["initialised"]
    model, info = cls.from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    weights = model.state_dict()
    for key, place in record["converted"].items():
        assert torch.equal(weights[place], original[key]), key
    assert model.config.bypass_transformer is (name == "flickr_bypass")
    assert {"modeling_visualbert.py", "configuration_visualbert.py"} <= {path.name for path in directory.iterdir()}


def test_wrappers_detectors_and_unused_heads(originals, convert):
    """Bare keys, keys of data parallel, and what a task's file holds beside its weights."""
    bare = {key.removeprefix("bert."): value for key, value in originals["vcr"].items()}
    mlm = {key: value for key, value in originals["pretraining"].items() if ".cls." in key}
    extra = {"bert.detector.backbone.weight": torch.zeros(2), "bert.bert.embeddings.position_ids": torch.arange(30)}
    wrapped = {
        f"module.{key}": value for key, value in {**originals["vcr"], **mlm, **extra, "x": torch.ones(1)}.items()
    }
    places = []
    for content in (bare, wrapped):
        code, _, error, directory = convert(content)
        assert code == 0, error
        record = json.loads((directory / "conversion.json").read_text())
        places.append(set(record["converted"].values()))
        directory.rename(directory.with_name(f"out{len(places)}"))
    assert places[0] == places[1]
    left = {key: reason for reason, keys in record["left_out"].items() for key in keys}
    assert set(left) == {f"module.{key}" for key in (*mlm, *extra, "x")}
    assert left["module.x"].startswith("unknown key")
    assert "detector" in left["module.bert.detector.backbone.weight"]
