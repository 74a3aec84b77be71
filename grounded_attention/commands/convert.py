# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts an original checkpoint into a Hub directory.

The printed table shows which config fields were read from the file, which were given with --config and which were
assumed. A file with missing tensors, unknown keys or NaN values is refused.

The checkpoints of VOLTA (its ViLBERT, LXMERT and VisualBERT) need their JSON configuration as `--config`.

`fast_rcnn` is the pixel network of VL-BERT alone, from its own file or from an end-to-end checkpoint.

examples:
  grounded-attention convert vl_bert --checkpoint vl-bert-base-prec.model --output checkpoints/vl-bert-base
  grounded-attention convert visualbert --checkpoint vqa_coco_pre_trained.th --output checkpoints/visualbert-vqa
  grounded-attention convert lxmert --checkpoint Epoch20_LXRT.pth --answers all_ans.json --output checkpoints/lxmert
  grounded-attention convert fast_rcnn --checkpoint vl-bert-base-e2e.model --output checkpoints/fast-rcnn --force
"""

import json
from pathlib import Path
from typing import Annotated

from grounded_attention.conversion.fields import CheckpointError, OverrideError
from grounded_attention.families import FAMILIES

from .command_line import Program, Result

ORIGINALS = sorted(["fast_rcnn", *(name for name, family in FAMILIES.items() if family.converter)])


def convert_checkpoint(
    family: str,
    checkpoint: Path,
    output: Path,
    config: Path | None = None,
    force: bool = False,
    answers: Path | None = None,
) -> str:
    """Converts an original checkpoint file; nothing in the file is executed."""
    from grounded_attention.conversion.fast_rcnn import FAST_RCNN
    from grounded_attention.conversion.file import read_checkpoint, read_overrides
    from grounded_attention.conversion.output import check_output, format_summary, make_record, write_model
    from grounded_attention.conversion.volta_families import (
        VOLTA_FAMILIES,
        find_volta_config,
        is_volta,
        make_volta_converter,
    )
    from grounded_attention.tasks.answering import read_answers

    check_output(output, force, tuple(path for path in (checkpoint, config) if path is not None))
    overrides = read_overrides(config)
    if answers is not None:
        overrides["answers"] = read_answers(str(answers), ())
    file = read_checkpoint(checkpoint)
    try:
        converter = FAST_RCNN if family == "fast_rcnn" else FAMILIES[family].load_converter()
        if is_volta(file.state_dict, overrides) and family in VOLTA_FAMILIES:
            if config is None:
                config = find_volta_config(checkpoint)
                overrides |= read_overrides(config)
            converter = make_volta_converter(family, overrides)
        model, conversion = converter.build_model(file.state_dict, overrides)
    except OverrideError as error:
        place = checkpoint if config is None else f"{checkpoint} with --config {config}"
        raise OverrideError(f"{place}: {error}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint}: {error}") from error
    write_model(model, make_record(conversion, checkpoint, file.others), output)
    return format_summary(conversion, file.others, output)


def convert(
    family: Annotated[str, ORIGINALS],
    *,
    checkpoint: Path,
    output: Path,
    config: Path | None = None,
    answers: Path | None = None,
    force: bool = False,
) -> Result:
    """Converts a file.

    Args:
        family: model family of the checkpoint
        checkpoint (FILE): original file (.model, .th)
        output (DIR): directory to write
        config (FILE): JSON file with config fields that the tensor shapes do not determine
        answers (FILE): JSON list of the answers in the order of the scores, such as LXMERT's all_ans.json
        force: replace an existing model directory
    """
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would draw over our bar
    table = convert_checkpoint(family, checkpoint, output, config, force, answers)
    return json.loads((output / "conversion.json").read_text(encoding="utf-8")), table


main = Program("convert", convert)
