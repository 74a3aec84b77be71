# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Names and shapes of the tensors of public checkpoints."""

import torch


def read_key_list(shared, name, size=lambda number, key: number):
    """A state dict with the names and shapes of a public checkpoint; `size` may change a size (number, key)."""
    lines = (shared / "parity" / "checkpoint_keys" / f"keys_{name}.tsv").read_text().splitlines()
    state_dict = {}
    for line in lines:
        key, shape = line.split("\t")
        sizes = [size(int(number), key) for number in shape.strip("()").split(",") if number.strip()]
        state_dict[f"module.{key}"] = torch.zeros(()).expand(sizes)  # one number, whatever the shape
    return state_dict
