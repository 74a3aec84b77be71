# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes the Trainer of one method of a recipe."""

import pickle
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image
from transformers import PreTrainedModel, Trainer, TrainerCallback, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback, TrackioCallback

from grounded_attention.heads.attention_grounding import AttentionGrounding
from grounded_attention.metrics.classification import AlignmentAccuracy
from grounded_attention.modeling.attention_calls import layer_labels
from grounded_attention.pages.figures import HEADS, heads_figure
from grounded_attention.supervision import GroundingAlignment, supervise
from grounded_attention.supervision.soft_attention import tell_anchor
from grounded_attention.supervision.supervise import find_calls
from grounded_attention.tasks import TASKS, Task
from grounded_attention.training.loop.checkpoint import last_complete_checkpoint, prepare_resume, seal, step_of
from grounded_attention.training.loop.preserve import Preservation
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.publish.hub import HubPush
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, recipe_key_errors, recipe_method
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.whole_files import write_json

from .arguments import training_arguments
from .measuring import measured_splits
from .models import (
    check_pixels,
    check_width,
    fit_tokenizer,
    load_model,
    make_model,
)
from .prepared_data import PreparedData


class PictureTracking(TrainerCallback):
    """Sends pictures after each evaluation that has measured heads."""

    def __init__(self, trainer: Trainer, name: str, layers: Sequence[str]):
        self.trainer = trainer
        self.name = name
        self.layers = list(layers)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        measured = []
        for entry in state.log_history:
            if HEADS in entry and entry["step"] == state.global_step:
                measured.append(entry)
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


def make_trainer(
    recipe: Recipe, method_name: str, data: PreparedData, processor: Any, directory: Path, hub: HubPush | None = None
) -> GroundingTrainer:
    """Makes the Trainer of one method, with a new model."""
    task = TASKS[recipe.task].configure(data.options)
    method = recipe_method(recipe, method_name)
    set_seed(recipe.seed)
    model = make_model(task.head, recipe.model, processor, **method.model_config, **task.model_config())
    with recipe_key_errors("options"):
        task.initialise(model, processor)
        task = task.configure(config=model.config)
    supervise(model)
    with recipe_key_errors(f"supervision.options.{method_name}"):
        method.prepare(model)
    check_fit(model, processor, recipe, data)
    tell_anchor(method, processor.tokenizer)
    grounded = _has_annotated_phrases(task, data)
    aligned = [part for part in method.parts if isinstance(part, GroundingAlignment)]

    def metrics() -> list[Any]:
        measured = list(task.metrics())
        if grounded:  # rollout over thousands of image tokens takes too much memory
            measured += [AttentionGrounding(rollout=not task.image_tokens), *map(AlignmentAccuracy, aligned)]
        return measured

    train = data.splits["train"]
    validation = data.splits.get("validation")
    arguments = training_arguments(recipe, directory)
    preservation = _preservation(recipe, model)
    with recipe_key_errors("training"):
        trainer = GroundingTrainer(
            model,
            arguments,
            data_collator=data.collator(
                task, processor, recipe.seed, split=train, labels=recipe.supervision.labels, method=method
            ),
            train_dataset=train,
            eval_dataset=validation,
            processing_class=getattr(processor, "processor", processor),
            task=task,
            method=method,
            metrics=metrics,
            attention_weight=recipe.supervision.weight,
            preservation=preservation,
            hub=hub,
        )
    if tracks_pictures(trainer):
        layers = layer_labels(find_calls(model))
        trainer.add_callback(PictureTracking(trainer, directory.name, layers))
    return trainer


def _preservation(recipe: Recipe, model: PreTrainedModel) -> Preservation | None:
    """Makes the loss of the `preserve` section. The start must be trained (`model.source` is set)."""
    weight = recipe.preserve.distillation
    if not weight:
        return None
    # With the configuration of the model, because its heads and fields may differ from those of the checkpoint.
    start, _ = load_model(type(model), replace(recipe.model, config={}), config=deepcopy(model.config))
    return Preservation(weight, start, TASKS[recipe.task].model_inputs)


def check_best_metric(trainer: GroundingTrainer, key: str) -> None:
    """Raises `RecipeError` if no evaluation, on a batch or else on all rows, gives the metric that chooses a model."""
    arguments = trainer.args
    rows = cast(Any, trainer.eval_dataset)
    name = arguments.metric_for_best_model
    key = f"{key}.metric_for_best_model"
    if name is None or arguments.eval_strategy == "no":
        return
    for part in (rows.select(range(min(len(rows), arguments.eval_batch_size))), rows):
        numbers = trainer.measure(part, key)
        known = sorted(name for name, value in numbers.items() if isinstance(value, int | float))
        if name.removeprefix("eval_") in known:
            return
    raise RecipeError(f"{key} is {name!r}, expected a metric of the evaluation: {', '.join(known)}")


def _has_annotated_phrases(task: Task, data: PreparedData) -> bool:
    """Whether the rows of every measured split have phrases, and regions that these may name."""
    measured = [data.splits[name] for name in measured_splits(data.splits)]
    annotated = all("phrases" in rows.column_names for rows in measured)
    if task.image_tokens:  # rows without phrases have empty lists
        annotated = annotated and all(any(map(len, rows["phrases"])) for rows in measured)
    inputs = data.images if task.image_tokens else data.regions
    return inputs is not None and task.can_have_phrases and annotated


def check_fit(model: PreTrainedModel, processor: Any, recipe: Recipe, data: PreparedData) -> None:
    """Checks that a model and its processor can read the data, and lets the processor cut texts where both end."""
    fit_tokenizer(model, processor)
    tables: Fields = {f"data.tracks.{name}": table for name, table in data.tracks.items()}
    if data.regions is not None:
        tables[str(recipe.data.regions)] = data.regions
    if data.images is not None or tables:  # otherwise the model reads text only
        check_pixels(model, data.images)
    for name, table in tables.items() if data.images is None else ():
        check_width(model, processor, name, table.feature_size)


@dataclass(frozen=True)
class TrainingTime:
    """The duration of a training."""

    seconds: float
    after_step: int


def fit(trainer: GroundingTrainer, resume: bool, directory: Path) -> TrainingTime:
    """Trains and saves the model; with `resume` it continues from the last complete checkpoint."""
    checkpoint = last_complete_checkpoint(directory) if resume else None
    if checkpoint is not None:
        prepare_resume(trainer, checkpoint)
    try:
        outcome = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except pickle.UnpicklingError as error:
        raise RecipeError(
            f"{checkpoint}: a saved state (optimizer.pt, scheduler.pt or rng_state.pth) is damaged or would run code, "
            "so it is not read; delete this folder to continue from the checkpoint before it"
        ) from error
    if trainer.hub is not None:
        trainer.hub.wait()  # it reads from the directory that is sealed next
    trainer.save_model(str(directory))
    if trainer.is_world_process_zero():
        write_json(directory / "history.json", trainer.state.log_history)
    return TrainingTime(outcome.metrics["train_runtime"], step_of(checkpoint) if checkpoint else 0)


def seal_folder(trainer: GroundingTrainer, directory: Path) -> None:
    """Seals the folder of a saved model, once, when all processes have arrived."""
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        seal(directory)
    trainer.accelerator.wait_for_everyone()
