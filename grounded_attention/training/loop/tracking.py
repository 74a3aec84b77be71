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

from grounded_attention.pages.figures import heads_figure, heads_over_time_figure, measured_heads


class PictureTracking(TrainerCallback):
    """Sends pictures after each evaluation that has measured heads."""

    def __init__(self, trainer: Trainer, name: str, layers: Sequence[str]):
        self.trainer = trainer
        self.name = name
        self.layers = list(layers)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        measured = measured_heads(state.log_history)
        if state.is_world_process_zero and state.global_step in measured:
            with tempfile.TemporaryDirectory() as folder:
                for name, path in self._draw(measured, Path(folder)).items():
                    send_picture(self.trainer, name, path, state.global_step)

    def _draw(self, measured: dict[int, np.ndarray], folder: Path) -> dict[str, Path]:
        heads = list(measured.values())[-1]
        paths = {"heads/now": folder / "heads.png", "heads/over_time": folder / "over_time.png"}
        heads_figure({self.name: heads}, self._chance(), paths["heads/now"], self.layers)
        heads_over_time_figure({self.name: measured}, paths["heads/over_time"], self.layers)
        return paths

    def _chance(self) -> float:
        key = "eval_text_to_region_chance"
        return next((entry[key] for entry in reversed(self.trainer.state.log_history) if key in entry), 0.0)


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
