# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What cannot be exported. That exported models compute what the models compute is tested by `make conformance`, for
every head of every family, and for VL-BERT in tests/commands/test_export_model.py."""

import pytest

from grounded_attention.conversion.export_inputs import export_inputs
from grounded_attention.modeling import FastRCNNConfig
from tests.helpers.exported import tiny_model


def test_a_model_that_reads_pixels_is_refused():
    model = tiny_model("vl_bert", "vqa")
    model.config.vision_config = FastRCNNConfig()
    with pytest.raises(ValueError, match="computes region features from pixels"):
        export_inputs(model)
