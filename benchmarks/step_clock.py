# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""CPU seconds of the steps of a training.

`main` runs the `train.py` of the current folder, which may be another version of this project. So this file imports
nothing of the project.
"""

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback


class StepClock(TrainerCallback):
    """Measures the CPU seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.begin = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.begin = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.process_time() - self.begin)


def main(path: str, arguments: list[str]) -> None:
    """Runs `train.py`, and stops after its first training.

    Args:
        path (`str`): file that gets the seconds of each step and the logged losses, JSON.
        arguments (`list[str]`): arguments of `train.py`.
    """
    train = Trainer.train

    def timed(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        clock = StepClock()
        trainer.add_callback(clock)
        train(trainer, *args, **kwargs)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        Path(path).write_text(json.dumps({"seconds": clock.seconds, "losses": losses}))
        sys.exit(0)  # what follows measures the model

    Trainer.train = timed  # type: ignore[method-assign]
    sys.argv = ["train.py", *arguments]
    runpy.run_path("train.py", run_name="__main__")
