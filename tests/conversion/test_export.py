# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Exported models compute what the models compute, for any batch size and number of words and regions."""

from pathlib import Path

import numpy as np
import pytest

from grounded_attention.conversion.export_graph import export_graph, write_int8, write_onnx
from grounded_attention.conversion.export_inputs import export_inputs
from grounded_attention.families import FAMILIES
from grounded_attention.modeling import FastRCNNConfig
from tests.helpers.exported import SIZES, assert_exported_equals_model, draw_inputs, run_onnx, tiny_model


# `make conformance` exports every head of every family. LXMERT's pre-training has most outputs.
@pytest.mark.parametrize("family", FAMILIES)
def test_graph_and_onnx_of_a_family_equal_the_model(family, tmp_path):
    assert_exported_equals_model(family, "pretraining" if family == "lxmert" else None, tmp_path)


# Translating to ONNX takes three quarters of the time: the heads of `vqa` and `visual_reasoning` are layers that `vgp`
# has too.
@pytest.mark.parametrize("head", [head for head in FAMILIES["visualbert"].heads if head != "pretraining"])
def test_graph_and_onnx_of_a_head_equal_the_model(head, tmp_path):
    assert_exported_equals_model("visualbert", head, tmp_path, translate=head not in ("vqa", "visual_reasoning"))


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
