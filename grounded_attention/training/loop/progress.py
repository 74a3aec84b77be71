# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The bar of a training, and those of libraries."""

from typing import Any

import datasets
import huggingface_hub
import transformers
from transformers.trainer_callback import ProgressCallback

from grounded_attention.utils.progress import is_quiet


class TrainingBar(ProgressCallback):
    """The bar of transformers, with the name of the run and its losses; of the logs it prints those of evaluations."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description(args.run_name)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if any(name.startswith("eval_") for name in logs):
            super().on_log(args, state, control, logs, **kwargs)
        elif self.training_bar is not None and "loss" in logs:  # the log at the end has times and no loss
            # The components are not weighted, so that methods can be compared; their sum with weights cannot.
            parts = {name[5:]: value for name, value in logs.items() if name.startswith("loss_")}
            self.training_bar.set_postfix(parts or {"loss": logs["loss"]}, refresh=False)


def plain_bars(quiet: bool) -> None:
    """Disables the progress bars of libraries if nothing shall show progress."""
    if quiet or is_quiet():
        datasets.disable_progress_bars()
        huggingface_hub.utils.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()
