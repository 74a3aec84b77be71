# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a checkpoint of transformers leaves out and an equal continuation needs: losses that are not logged yet.

transformers logs the mean loss since the last log, but a checkpoint between two logs does not contain the sum. Each
process writes its own sums into the checkpoint before the checkpoint is sealed.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

FILE = "unlogged_losses_{rank}.safetensors"
TOTAL = "loss"


@dataclass(frozen=True)
class UnloggedLosses:
    """
    Sums of losses of one process.
    """

    loss: Tensor
    logged: float
    last_step: int
    parts: dict[str, Tensor] = field(default_factory=dict)
    taken: int = 0
    skipped: int = 0

    def save(self, checkpoint: Path, rank: int) -> None:
        """Writes the sums of a process into a checkpoint."""
        numbers = json.dumps([self.logged, self.last_step, self.taken, self.skipped, list(self.parts)])
        tensors = {TOTAL: self.loss, **{f"part {name}": value for name, value in self.parts.items()}}
        tensors = {name: value.detach().cpu().clone() for name, value in tensors.items()}
        checkpoint.mkdir(parents=True, exist_ok=True)  # with `save_only_model` the first process alone has made it
        save_file(tensors, checkpoint / FILE.format(rank=rank), metadata={"numbers": numbers})

    @classmethod
    def load(cls, checkpoint: Path, rank: int, processes: int) -> "UnloggedLosses | None":
        """
        Reads the sums of a process. With another number of processes than before, each gets an equal share.
        """
        paths = sorted(checkpoint.glob(FILE.format(rank="*")))
        if len(paths) == processes:
            return _read(checkpoint / FILE.format(rank=rank))
        if not paths:
            return None
        found = [_read(path) for path in paths]
        loss = torch.stack([each.loss for each in found]).mean()  # the mean over processes is logged, but this sum:
        parts = {n: torch.stack([each.parts[n] for each in found]).sum() / processes for n in found[0].parts}
        return cls(loss, found[0].logged, found[0].last_step, parts, found[0].taken, found[0].skipped)


def _read(path: Path) -> UnloggedLosses:
    with safe_open(path, "pt") as file:
        logged, last_step, taken, skipped, names = json.loads(file.metadata()["numbers"])
        parts = {name: file.get_tensor(f"part {name}") for name in names}
        return UnloggedLosses(file.get_tensor(TOTAL), logged, last_step, parts, taken, skipped)
