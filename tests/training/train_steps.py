# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trains and evaluates the tiny model in several cases, in two processes or called by the tests.

`python -m tests.training.train_steps OUTPUT CASE...`, where a case is `method:batch size:accumulation`,
optionally followed by `:group_by_length` or `:mapped` (learning rates), or `evaluate:rows`. Writes the logged losses
or the figures to `OUTPUT/<case>.json`, and the weights after two steps to `OUTPUT/<case>.safetensors`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from grounded_attention.training.loop.length_batches import add_lengths
from grounded_attention.training.loop.trainer import GroundingTrainingArguments
from grounded_attention.utils.process_group import leave_group
from tests.helpers.tiny_trainer import logged, make_trainer, weights
from tests.helpers.tiny_vgp import tiny_rows, tiny_table


def run_case(case, output):
    kind, *numbers = case.split(":")
    found = _evaluate(int(numbers[0]), output) if kind == "evaluate" else _train(kind, case, numbers, output)
    if found is not None:
        (output / f"{case}.json").write_text(json.dumps(found))


def _train(method, case, numbers, output):
    batch, accumulation, *special = numbers
    sizes: dict[str, Any] = {
        "per_device_train_batch_size": int(batch),
        "gradient_accumulation_steps": int(accumulation),
    }
    table = tiny_table(8)
    grouped = special == ["group_by_length"]
    mapped = special == ["mapped"]
    rows = add_lengths(tiny_rows(table), None) if grouped else None
    if grouped:
        sizes["train_sampling_strategy"] = special[0]
    if mapped:
        sizes |= {"arguments_class": GroundingTrainingArguments, "learning_rate_mapping": {r"^vl_bert\.": 0.02}}
    trainer = make_trainer(output, method, rows=rows, **sizes, max_steps=2)
    trainer.train()
    if not trainer.is_world_process_zero():
        return None
    save_file(weights(trainer.accelerator.unwrap_model(trainer.model)), output / f"{case}.safetensors")
    return logged(trainer)


def _evaluate(rows, output):
    trainer = make_trainer(output, per_device_eval_batch_size=3)
    figures = trainer.measure(tiny_rows(tiny_table(8), seed=9).select(range(rows)))
    if trainer.is_world_process_zero():
        return figures
    return None


if __name__ == "__main__":
    for each in sys.argv[2:]:
        run_case(each, Path(sys.argv[1]))
    leave_group()
