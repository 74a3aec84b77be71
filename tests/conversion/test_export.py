# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Exported models compute what the models compute, for any batch size and number of words and regions."""

import pytest

from grounded_attention.conversion.export_inputs import export_inputs
from grounded_attention.modeling import FastRCNNConfig
from tests.helpers.exported import assert_exported_equals_model, tiny_model


# `make conformance` exports and translates every head of every family. Here each other family once;
# tests/commands/test_export_model.py has VL-BERT in PyTorch's format, ONNX and int8.
@pytest.mark.parametrize(
    ("family", "head"), [("vilbert", "vgp"), ("lxmert", "pretraining"), ("visualbert", "phrase_grounding")]
)
def test_a_graph_equals_the_model(family, head, tmp_path):
    assert_exported_equals_model(family, head, tmp_path, translate=False)


def test_a_model_that_reads_pixels_is_refused():
    model = tiny_model("vl_bert", "vqa")
    model.config.vision_config = FastRCNNConfig()
    with pytest.raises(ValueError, match="computes region features from pixels"):
        export_inputs(model)
