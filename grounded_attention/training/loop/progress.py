# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The progress line (`utils/progress.py`) for the Trainer, and the bars of libraries."""

import sys
from collections.abc import Callable
from typing import Any

import datasets
import huggingface_hub
import transformers
from transformers import TrainerCallback

from grounded_attention.utils.progress import clear, is_job, phase
from grounded_attention.utils.quiet import is_quiet


class ProgressCallback(TrainerCallback):
    """Shows the progress of a training, instead of transformers' bar; a job also prints the logs to its log file."""

    def __init__(self) -> None:
        self._phase: Any = None
        self._advance: Callable[..., None] = lambda *_, **__: None
        self._losses = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()
        quiet = not state.is_world_process_zero
        self._phase, self._losses = phase("step", state.max_steps, quiet), ""
        self._advance = self._phase.__enter__()
        self._advance(state.global_step, resumed=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._advance(state.global_step, self._losses)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        # The components are not weighted, so that methods can be compared; their sum with weights cannot.
        parts = {name[5:].replace("_", " "): value for name, value in logs.items() if name.startswith("loss_")}
        parts = parts or {name: value for name, value in logs.items() if name == "loss"}
        self._losses = ", ".join(f"{name} {value:.3g}" for name, value in parts.items()) or self._losses
        measured = any(name.startswith("eval_") for name in logs)
        if state.is_world_process_zero and (measured or is_job()):
            clear()
            print({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in logs.items()}, flush=True)

    def close(self) -> None:
        """Removes the line, also after an interrupted training."""
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._phase = None


def plain_bars(quiet: bool = False) -> None:
    """Disables the progress bars of libraries if the output is not a terminal, or `quiet` is set."""
    if quiet or is_quiet() or not sys.stderr.isatty():
        datasets.disable_progress_bars()
        huggingface_hub.utils.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()
