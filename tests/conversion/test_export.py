# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Exported models compute what the models compute, for any batch size and number of words and regions."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from grounded_attention.conversion.export_graph import NamedScores, export_graph, output_names, write_int8, write_onnx
from grounded_attention.conversion.export_inputs import export_inputs
from grounded_attention.modeling import FastRCNNConfig
from tests.helpers.exported import CASES, TRANSLATED, draw_inputs, tiny_model

SIZES = (
    {"batch": 3, "choices": 2, "words": 6, "regions": 4, "phrases": 3, "pairs": 2},
    {"batch": 1, "choices": 4, "words": 2, "regions": 1, "phrases": 1, "pairs": 1},
)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def run_onnx(path, inputs):
    """Name of an output -> its array."""
    session = onnxruntime.InferenceSession(path)
    found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return {output.name: array for output, array in zip(session.get_outputs(), found, strict=True)}


@pytest.mark.parametrize(("family", "head"), CASES)
def test_graph_and_onnx_equal_the_model(family, head, tmp_path):
    # Some also return their attention maps; a model that skips padding is exported with padding.
    attentions, unpad = head in (None, "pretraining"), head == "vqa"
    model = tiny_model(family, head, unpad=unpad)
    inputs = export_inputs(model)
    program = export_graph(model, inputs, attentions)
    assert not any("stack_trace" in node.meta for node in program.graph.nodes)  # folders of this machine
    graph_module = program.module()
    ways = [lambda given: {name: tensor.detach() for name, tensor in graph_module(**given).items()}]
    if (family, head) in TRANSLATED:
        path = tmp_path / "model.onnx"
        write_onnx(program, inputs, path)
        graph = onnx.load(path).graph
        axes = {one.name: [d.dim_param or d.dim_value for d in one.type.tensor_type.shape.dim] for one in graph.input}
        assert axes == {each.name: list(each.axes) for each in inputs}
        ways.append(lambda given: run_onnx(path, given))

    for sizes in SIZES:
        given = draw_inputs(inputs, sizes)
        with torch.no_grad():
            expected = NamedScores(model, inputs, attentions)(**given)
        assert list(expected) == output_names(program)
        calls = len(model.config.attention_calls) if attentions else 0
        assert sum(name.startswith("attentions_") for name in expected) == calls
        for way in ways:
            found = way(given)
            for name, tensor in expected.items():
                np.testing.assert_allclose(found[name], tensor, **CLOSE, err_msg=name)


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
