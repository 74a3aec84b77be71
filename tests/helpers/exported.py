# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny models of every family and head for tests of exported models, random inputs of any size, the comparison."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from grounded_attention.conversion.export_graph import NamedScores, export_graph, output_names, write_onnx
from grounded_attention.conversion.export_inputs import export_inputs
from grounded_attention.families import FAMILIES
from tests.helpers import tiny_visualbert, tiny_vl_bert
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert

MAKERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "vl_bert": (tiny_vl_bert.make_model, {"num_hidden_layers": 1}),
    "visualbert": (tiny_visualbert.make_model, {"num_hidden_layers": 1}),
    "vilbert": (make_vilbert, {"num_hidden_layers": 1, "v_num_hidden_layers": 1}),
    "lxmert": (make_lxmert, {"l_layers": 1, "r_layers": 1, "x_layers": 1}),
}
SIZES = (
    {"batch": 3, "choices": 2, "words": 6, "regions": 4, "phrases": 3, "pairs": 2},
    {"batch": 1, "choices": 4, "words": 2, "regions": 1, "phrases": 1, "pairs": 1},
)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def tiny_model(family: str, head: str | None, **fields: Any) -> Any:
    """A model with one layer of each kind; `head` `None` is the base model."""
    make, sizes = MAKERS[family]
    entry = FAMILIES[family]
    return make(entry.base_model if head is None else entry.heads[head], **{**sizes, **fields})


def draw_inputs(inputs: Any, sizes: dict[str, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random inputs. Row b has b + 2 words; the last row has no region, unless it is the only one."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for each in inputs:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in each.axes]
        if each.dtype == torch.float32:
            drawn[each.name] = torch.rand(shape, generator=generator)
        else:
            high = {"input_ids": 40, "region_token_type_ids": 2, "phrase_pairs": sizes["phrases"]}.get(each.name, 1)
            drawn[each.name] = torch.randint(0, high, shape, generator=generator)
    rows = torch.arange(sizes["batch"])[:, None]
    words = torch.arange(sizes["words"]) < rows + 2
    regions = torch.ones(sizes["batch"], sizes["regions"], dtype=torch.long)
    if sizes["batch"] > 1:
        regions[-1] = 0
    text = words.long() if drawn["input_ids"].dim() == 2 else words[:, None].expand_as(drawn["input_ids"]).long()
    drawn |= {"attention_mask": text, "region_attention_mask": regions}
    if "phrase_mask" in drawn:
        spread = torch.rand(drawn["phrase_mask"].shape, generator=generator) < 0.5
        drawn["phrase_mask"] = spread & words[:, None]
    if "phrase_pairs" in drawn:
        drawn["phrase_pairs"][0, 0] = -1
    return drawn


def run_onnx(path: Path, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Name of an output -> its array."""
    session = onnxruntime.InferenceSession(path)
    found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return {output.name: array for output, array in zip(session.get_outputs(), found, strict=True)}


def assert_exported_equals_model(family: str, head: str | None, folder: Path) -> None:
    """Asserts that the graph of `torch.export` and ONNX compute what the model computes for both `SIZES`.

    The base model and pre-training also return their attention maps; a model of `vqa` skips padding and is exported
    with padding.
    """
    attentions, unpad = head in (None, "pretraining"), head == "vqa"
    model = tiny_model(family, head, unpad=unpad)
    inputs = export_inputs(model)
    program = export_graph(model, inputs, attentions)
    assert not any("stack_trace" in node.meta for node in program.graph.nodes)  # folders of this machine
    graph_module = program.module()
    path = folder / "model.onnx"
    write_onnx(program, inputs, path)
    assert str(Path(__file__).parents[2]).encode() not in path.read_bytes()  # no place of this machine
    graph = onnx.load(path).graph
    axes = {one.name: [d.dim_param or d.dim_value for d in one.type.tensor_type.shape.dim] for one in graph.input}
    assert axes == {each.name: list(each.axes) for each in inputs}
    for sizes in SIZES:
        given = draw_inputs(inputs, sizes)
        with torch.no_grad():
            expected = NamedScores(model, inputs, attentions)(**given)
        assert list(expected) == output_names(program)
        calls = len(model.config.attention_calls) if attentions else 0
        assert sum(name.startswith("attentions_") for name in expected) == calls
        in_torch = {name: tensor.detach() for name, tensor in graph_module(**given).items()}
        for found in (in_torch, run_onnx(path, given)):
            for name, tensor in expected.items():
                np.testing.assert_allclose(found[name], tensor, **CLOSE, err_msg=name)
