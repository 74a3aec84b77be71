# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Exported models compute what the models compute, for any batch size and number of words and regions."""

import pytest

from grounded_attention.conversion.export_inputs import export_inputs
from grounded_attention.modeling import FastRCNNConfig
from tests.helpers.exported import assert_exported_equals_model, tiny_model


# `make conformance` exports and translates every head of every family. Here each family once, one of them in ONNX;
# tests/commands/test_export_model.py has VL-BERT in ONNX and int8.
@pytest.mark.parametrize(
    ("family", "head", "translate"),
    [
        ("vilbert", "vgp", False),
        ("lxmert", "pretraining", False),
        ("visualbert", "phrase_grounding", True),
        ("vl_bert", "vqa", False),
    ],
)
def test_graph_and_onnx_equal_the_model(family, head, translate, tmp_path):
    assert_exported_equals_model(family, head, tmp_path, translate=translate)


def test_a_model_that_reads_pixels_is_refused():
    model = tiny_model("vl_bert", "vqa")
    model.config.vision_config = FastRCNNConfig()
    with pytest.raises(ValueError, match="computes region features from pixels"):
        export_inputs(model)
