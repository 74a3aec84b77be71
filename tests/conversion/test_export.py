# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Exported models compute what the models compute, for any batch size and number of words and regions."""

from pathlib import Path

import numpy as np
import pytest

from grounded_attention.conversion.export_graph import export_graph, write_int8, write_onnx
from grounded_attention.conversion.export_inputs import export_inputs
from grounded_attention.modeling import FastRCNNConfig
from tests.helpers.exported import SIZES, assert_exported_equals_model, draw_inputs, run_onnx, tiny_model


# `make conformance` translates every head of every family. Translating to ONNX takes three quarters of the time: here
# each family and each head once; `vqa` and `visual_reasoning` have the layers of `vgp`.
@pytest.mark.parametrize(
    ("family", "head", "translate"),
    [
        ("vl_bert", "referring_expressions", True),
        ("vilbert", "vgp", True),
        ("lxmert", "pretraining", True),
        ("visualbert", "multiple_choice", True),
        ("visualbert", "phrase_grounding", True),
        ("visualbert", "visual_reasoning", False),
        ("vl_bert", "vqa", False),
        ("visualbert", None, False),
    ],
)
def test_graph_and_onnx_equal_the_model(family, head, translate, tmp_path):
    assert_exported_equals_model(family, head, tmp_path, translate=translate)


def test_int8_is_smaller_and_close(tmp_path):
    model = tiny_model("visualbert", "vqa", intermediate_size=2000)
    inputs = export_inputs(model)
    whole, small = tmp_path / "model.onnx", tmp_path / "model_int8.onnx"
    write_onnx(export_graph(model, inputs), inputs, whole)
    write_int8(whole, small)
    assert str(Path(__file__).parents[2]).encode() not in whole.read_bytes()  # no place of this machine
    assert small.stat().st_size < 0.5 * whole.stat().st_size
    given = draw_inputs(inputs, SIZES[0])
    exact, rounded = (run_onnx(path, given)["logits"] for path in (whole, small))
    assert 0 < np.abs(exact - rounded).max() < 0.1 * np.abs(exact).max()


def test_a_model_that_reads_pixels_is_refused():
    model = tiny_model("vl_bert", "vqa")
    model.config.vision_config = FastRCNNConfig()
    with pytest.raises(ValueError, match="computes region features from pixels"):
        export_inputs(model)
