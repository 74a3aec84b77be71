# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trains and evaluates the tiny model in several cases, in two processes or called by the tests.

`python -m tests.training.train_steps OUTPUT CASE...`, where a case is `method:batch size:accumulation`,
optionally followed by `:group_by_length` or `:mapped` (learning rates), or `evaluate:rows`. Writes the logged losses
or the figures to `OUTPUT/<case>.json`, and the weights after two steps to `OUTPUT/<case>.safetensors`.
"""

import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from grounded_attention.training.loop.data import add_lengths
from grounded_attention.training.loop.trainer import GroundingTrainingArguments
from grounded_attention.utils.processes import leave_group
from tests.helpers.tiny_trainer import logged, make_trainer, weights
from tests.helpers.tiny_vgp import tiny_rows, tiny_table


def run_case(case, output):
    kind, *options = case.split(":")
    if kind == "evaluate":
        trainer = make_trainer(output, per_device_eval_batch_size=3)
        found = trainer.measure(tiny_rows(tiny_table(8), seed=9).select(range(int(options[0]))))
    else:
        trainer = trained(kind, output, *options)
        found = logged(trainer)
    if trainer.is_world_process_zero():
        (output / f"{case}.json").write_text(json.dumps(found))
        model = trainer.accelerator.unwrap_model(trainer.model)
        save_file(weights(model), output / f"{case}.safetensors")


def trained(method, output, batch, accumulation, special=None):
    arguments = {"per_device_train_batch_size": int(batch), "gradient_accumulation_steps": int(accumulation)}
    if special == "group_by_length":
        arguments |= {"train_sampling_strategy": special, "rows": add_lengths(tiny_rows(tiny_table(8)), None)}
    if special == "mapped":
        mapping = {r"^vl_bert\.": 0.02}
        arguments |= {"arguments_class": GroundingTrainingArguments, "learning_rate_mapping": mapping}
    trainer = make_trainer(output, method, max_steps=2, **arguments)
    trainer.train()
    return trainer


if __name__ == "__main__":
    for case in sys.argv[2:]:
        run_case(case, Path(sys.argv[1]))
    leave_group()
