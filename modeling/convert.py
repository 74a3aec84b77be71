# Copyright 2026 The grounded-attention authors. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Turns an original checkpoint into a Hub directory.

`fast_rcnn` is VL-BERT's pixel network alone, from its own file or an end-to-end checkpoint.

examples:
  python -m modeling.convert vl_bert --checkpoint vl-bert-base-prec.model --output checkpoints/vl-bert-base
  python -m modeling.convert visualbert --checkpoint vqa_coco_pre_trained.th --output checkpoints/visualbert-vqa
  python -m modeling.convert fast_rcnn --checkpoint vl-bert-base-e2e.model --output checkpoints/fast-rcnn --force
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from command_line import make_parser, one_line, run

from . import conversion_fast_rcnn, conversion_visualbert, conversion_vl_bert
from .conversion import check_output, format_summary, make_record, read_checkpoint, read_overrides, write_model

# Family -> function of (state dict, configuration overrides) that returns (model, Conversion).
FAMILIES = {
    "fast_rcnn": conversion_fast_rcnn.build_model,
    "visualbert": conversion_visualbert.build_model,
    "vl_bert": conversion_vl_bert.build_model,
}


def convert_checkpoint(
    family: str, checkpoint: Path, output: Path, config: Path | None = None, force: bool = False
) -> str:
    """
    Converts an original checkpoint file; nothing in the file is executed.

    Args:
        family (`str`): a key of `FAMILIES`.
        checkpoint (`Path`): file of the original code, such as `vl-bert-base-prec.model`.
        output (`Path`): directory to write: safetensors, config, modeling code and conversion.json.
        config (`Path`, *optional*): JSON file of configuration fields that win over what the shapes say.
        force (`bool`): replace an existing model directory.

    Returns:
        `str`: a table of what became of the tensors.

    Raises:
        CheckpointError: for a wrong file, configuration or output.
        FileNotFoundError: when the checkpoint does not exist.
    """
    check_output(output, force)
    state_dict, others = read_checkpoint(checkpoint)
    model, conversion = FAMILIES[family](state_dict, read_overrides(config))
    write_model(model, make_record(conversion, checkpoint, others), output)
    return format_summary(conversion, others, output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns 0, or 2 after one line on what is wrong."""
    parser = make_parser("python -m modeling.convert", __doc__)
    parser.add_argument("family", choices=sorted(FAMILIES), help="model family of the checkpoint")
    parser.add_argument("--checkpoint", type=Path, required=True, help="original file (.model, .th)")
    parser.add_argument("--output", type=Path, required=True, help="directory to write")
    parser.add_argument("--config", type=Path, help="JSON file of configuration fields the shapes cannot tell")
    parser.add_argument("--force", action="store_true", help="replace an existing model directory")
    parser.add_argument("--json", action="store_true", help="print the content of conversion.json instead of a table")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    try:
        table = convert_checkpoint(options.family, options.checkpoint, options.output, options.config, options.force)
    except (ValueError, OSError) as error:
        message = one_line(error)
        if str(options.checkpoint) not in message and str(options.output) not in message:
            message = f"{options.checkpoint}: {message}"
        raise ValueError(message) from error
    if not options.json:
        return table
    return json.dumps(json.loads((options.output / "conversion.json").read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main())
