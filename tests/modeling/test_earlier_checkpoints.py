# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints that commit f5f293f3 saved, and what it computed: its fields and names of weights are read for good."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import grounded_attention
from grounded_attention.families import FAMILIES
from tests.helpers.project_files import ROOT


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_of_an_earlier_version_computes_the_same(tmp_path, family):
    parts = {"weights": {}, "inputs": {}, "outputs": {}}
    with safe_open(ROOT / "tests" / "fixtures" / f"checkpoint_{family}.safetensors", "pt") as stored:
        (tmp_path / "config.json").write_text(stored.metadata()["config"])
        for name in stored.keys():
            part, _, own = name.partition("/")
            parts[part][own] = stored.get_tensor(name)
    save_file(parts["weights"], tmp_path / "model.safetensors", {"format": "pt"})
    cls = getattr(grounded_attention, FAMILIES[family].heads["vgp"].__name__)
    model, report = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    with torch.no_grad():
        outputs = model.eval()(**parts["inputs"])
    for name, values in parts["outputs"].items():
        torch.testing.assert_close(outputs[name], values, rtol=1e-5, atol=1e-6)
