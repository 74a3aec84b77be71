# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A model as a graph: `torch.export`, ONNX, and ONNX with 8-bit weights."""

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx import config as fx_config

from .export_inputs import ExportInput

INSTALL = "pip install 'grounded-attention[onnx]'"
# What an output has beside scores and states.
_NOT_EXPORTED = ("loss", "hidden_states", "attentions", "region_hidden_states")


class NamedScores(nn.Module):
    """A model that takes tensors by name and returns a dictionary of tensors: scores and states."""

    forward: Any

    def __init__(self, model: Any, inputs: Sequence[ExportInput], attentions: bool = False):
        super().__init__()
        self.model = model

        def forward(**tensors: torch.Tensor) -> dict[str, torch.Tensor]:
            outputs = model(**tensors, return_dict=True, output_attentions=attentions)
            named = {
                name: value
                for name, value in outputs.items()
                if name not in _NOT_EXPORTED and isinstance(value, torch.Tensor)
            }
            if attentions:
                named |= {f"attentions_{number}": maps for number, maps in enumerate(outputs.attentions)}
            return named

        names = [inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY) for each in inputs]
        forward.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
        self.forward = forward


def export_graph(model: Any, inputs: Sequence[ExportInput], attentions: bool = False) -> ExportedProgram:
    """Exports a model with `torch.export`. Sizes of named axes stay free; padding is computed."""
    if attentions:
        model.set_attn_implementation("eager")
    names = {axis for each in inputs for axis in each.axes if isinstance(axis, str)}
    longest = {"words": model.config.max_text_length}
    axes: dict[Any, Any] = {name: Dim(name, max=longest.get(name)) for name in names}
    shapes = {each.name: tuple(axes.get(axis, Dim.STATIC) for axis in each.axes) for each in inputs}
    example = {each.name: each.example() for each in inputs}
    with torch.no_grad(), _quiet():
        scores = NamedScores(model.eval(), inputs, attentions)
        program = torch.export.export(scores, (), kwargs=example, dynamic_shapes=shapes, strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # earlier torch records folders of this machine
    return program


def output_names(program: ExportedProgram) -> list[str]:
    """The names of the outputs, in order."""
    spec: Any = program.call_spec.out_spec
    return list(spec.context)


def write_onnx(program: ExportedProgram, inputs: Sequence[ExportInput], path: Path) -> None:
    """Writes an exported model as ONNX."""
    with _quiet():
        made = torch.onnx.export(
            program,
            input_names=[each.name for each in inputs],
            output_names=output_names(program),
            # Names for the axes; the sizes themselves are those of the program.
            dynamic_shapes={
                each.name: tuple(axis if isinstance(axis, str) else None for axis in each.axes) for each in inputs
            },
            dynamo=True,
            verbose=False,
        )
        assert made is not None
        for node in made.model.graph:  # notes of the exporter, a third of a small file
            node.metadata_props.clear()
        made.save(path)


def write_int8(source: Path, target: Path) -> None:
    """Writes an ONNX file with 8-bit weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True)


def require_onnx() -> None:
    """Raises `ValueError` with the command that installs ONNX, if it is not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(f"ONNX needs {error.name}: {INSTALL}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out what the exporters tell those who write them: notes, and the lines that called each operator."""
    before, traces = logging.root.manager.disable, getattr(fx_config, "do_not_emit_stack_traces", False)
    logging.disable(logging.WARNING)
    fx_config.do_not_emit_stack_traces = True
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        fx_config.do_not_emit_stack_traces = traces
