# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures for TensorBoard and trackio: the accuracy of all heads at each evaluation.

The numbers of the logs (every loss component, every accuracy) are sent by transformers' own callbacks.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image
from transformers import Trainer, TrainerCallback
from transformers.integrations.integration_utils import TensorBoardCallback, TrackioCallback

from grounded_attention.pages.figures import HEADS, heads_figure


class PictureTracking(TrainerCallback):
    """Sends pictures after each evaluation that has measured heads."""

    def __init__(self, trainer: Trainer, name: str, layers: Sequence[str]):
        self.trainer = trainer
        self.name = name
        self.layers = list(layers)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        measured = [entry for entry in state.log_history if HEADS in entry and entry["step"] == state.global_step]
        if state.is_world_process_zero and measured:
            key = "eval_text_to_region_chance"
            chance = next((entry[key] for entry in reversed(state.log_history) if key in entry), 0.0)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "heads.png")
                heads_figure({self.name: measured[-1][HEADS]}, chance, path, self.layers)
                send_picture(self.trainer, "heads", path, state.global_step)


def tracks_pictures(trainer: Trainer) -> bool:
    """Whether a program that shows pictures receives the logs of a Trainer."""
    kinds = (TensorBoardCallback, TrackioCallback)
    return any(isinstance(callback, kinds) for callback in trainer.callback_handler.callbacks)


def send_picture(trainer: Trainer, name: str, path: Path, step: int) -> None:
    """Sends a picture to TensorBoard and trackio, whichever of them receives the logs."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
            pixels = np.asarray(Image.open(path, formats=["PNG"]).convert("RGB"))
            callback.tb_writer.add_image(name, pixels, step, dataformats="HWC")
        if isinstance(callback, TrackioCallback):
            trackio = cast(Any, callback)._trackio
            trackio.log({name: trackio.Image(str(path), caption=f"step {step}"), "train/global_step": step})
