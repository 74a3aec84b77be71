# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes an exported model: the model file, configuration, processor and a card with the inputs."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from grounded_attention.utils.plain_text import markdown_table
from grounded_attention.utils.whole_files import make_folder, write_text

from . import EXPORT_FORMATS
from .export_graph import export_graph, output_names, require_onnx, write_int8, write_onnx
from .export_inputs import ExportInput, export_inputs

ONNX, TORCH = EXPORT_FORMATS
# Format -> the file of the model; the place of ONNX is that of Optimum.
FILES = {ONNX: "onnx/model.onnx", TORCH: "torch/model.pt2"}
INT8_FILE = "onnx/model_int8.onnx"
CARD = "README.md"
_CALLS = {
    ONNX: """import onnxruntime

session = onnxruntime.InferenceSession("{file}")
names = [each.name for each in session.get_inputs()]
scores = session.run(None, {{name: batch[name] for name in names}})  # batch: NumPy arrays""",
    TORCH: """import torch

model = torch.export.load("{file}").module()
names = [{names}]
scores = model(**{{name: batch[name] for name in names}})  # a dictionary of tensors""",
}


def check_request(output: Path, form: str, int8: bool) -> None:
    """Checks what can be checked before a model is loaded; the arguments are those of `write_export`."""
    if int8 and form != ONNX:
        raise ValueError("--int8 writes ONNX: remove it, or give --format onnx")
    if form == ONNX:
        require_onnx()
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ValueError(f"--output {output}: exists and is not empty, so nothing is written; give another folder")


def write_export(
    model: Any, processor: Any, output: Path, form: str, source: str, *, int8: bool = False, attentions: bool = False
) -> dict[str, Any]:
    """Exports a model into a new folder. The folder appears only when it is complete."""
    check_request(output, form, int8)
    inputs = export_inputs(model)
    program = export_graph(model, inputs, attentions)
    make_folder(output.parent)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
        fresh = Path(scratch) / "new"
        file = fresh / FILES[form]
        file.parent.mkdir(parents=True)
        if form == ONNX:
            write_onnx(program, inputs, file)
        else:
            torch.export.save(program, file)
        if int8:
            write_int8(file, fresh / INT8_FILE)
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(fresh)
        processor.save_pretrained(fresh)
        outputs = output_names(program)
        write_text(fresh / CARD, card(model, inputs, outputs, form, source, int8))
        files = {name: (fresh / name).stat().st_size for name in (FILES[form], *[INT8_FILE] * int8)}
        if output.exists():
            output.rmdir()
        os.replace(fresh, output)
    described = {each.name: f"{each.type_name} {each.shape}" for each in inputs}
    return {"files": files, "inputs": described, "outputs": outputs}


def card(model: Any, inputs: Sequence[ExportInput], outputs: Sequence[str], form: str, source: str, int8: bool) -> str:
    """The card: what the folder contains, the inputs with shapes and dtypes, the outputs, and how to run it."""
    file = FILES[form]
    small = f" `{INT8_FILE}` has 8-bit weights." if int8 else ""
    rows = [(f"`{each.name}`", each.shape, each.type_name, each.content) for each in inputs]
    names = ", ".join(f'"{each.name}"' for each in inputs)
    call = _CALLS[form].format(file=file, names=names)
    return f"""---
library_name: {"onnx" if form == ONNX else "pytorch"}
tags:
- grounded-attention
---

# {type(model).__name__}, exported

`{file}` is the model of `{source}`, whose card says how it was trained and under which licence.{small}
The configuration and the processor are beside it.

{markdown_table(("input", "shape", "type", "content"), rows, 4)}

All inputs are required. An axis with a name has any size of 1 or more; a text has at most
{model.config.max_text_length} words. A row without regions has zeros in `region_attention_mask`.

Outputs: {", ".join(f"`{name}`" for name in outputs)}.

```python
{call}
```
"""
