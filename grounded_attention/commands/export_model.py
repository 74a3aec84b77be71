# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Exports a model as ONNX or as a graph of torch.export, for programs without this package.

CHECKPOINT is a model of VL-BERT, VisualBERT, ViLBERT or LXMERT, with or without the head of a task, or a LoRA of one,
which is merged. The folder --output then has

  onnx/model.onnx        the model (--format torch: torch/model.pt2)
  onnx/model_int8.onnx   with --int8: the model with 8-bit weights
  config.json, processor_config.json and the tokenizer
  README.md              names, shapes and types of the inputs

Batch, words and regions have any size. ONNX needs `pip install 'grounded-attention[onnx]'`.

examples:
  grounded-attention export-model runs/scenes_vgp/direct --output exported
  grounded-attention export-model runs/scenes_vqa/direct --int8 --output exported_vqa
  grounded-attention export-model runs/scenes_vgp/direct --format torch --attentions --output exported_graph
"""

import argparse
from pathlib import Path

from grounded_attention.conversion import EXPORT_FORMATS

from .command_line import make_main, make_parser
from .user_errors import explain_error


def _work(options: argparse.Namespace) -> str:
    from .export_model_work import work

    return work(options)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention export-model", __doc__)
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="folder of a trained model, or a name on the Hub")
    add("--output", required=True, type=Path, metavar="DIR", help="folder to write; absent or empty")
    add("--format", choices=EXPORT_FORMATS, default=EXPORT_FORMATS[0], help="format (default: onnx)")
    add("--int8", action="store_true", help="also write ONNX with 8-bit weights")
    add("--attentions", action="store_true", help="the model also returns the attention maps of each layer")
    add("--json", action="store_true", help="print files, inputs and outputs as JSON")
    return parser


main = make_main(build_parser, _work, explain_error=explain_error)
