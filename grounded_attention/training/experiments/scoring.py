# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores a saved checkpoint, or a file of answers, on prepared data; gives numbers and predictions."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
from torch.utils.data import DataLoader

from grounded_attention.analysis.perturbation_curves import STEPS, PerturbationCurves, perturb
from grounded_attention.analysis.relevancy import MAPS
from grounded_attention.heads.attention_grounding import AttentionGrounding
from grounded_attention.pages.failures import Judged
from grounded_attention.supervision import get_method, supervise
from grounded_attention.tasks import TASKS, Task
from grounded_attention.tasks.judges import Judge, JudgeContext, with_scores
from grounded_attention.training.loop.checkpoint import refuse_changed
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.recipes.adapters import read_model_config
from grounded_attention.training.recipes.model_family import family_name, head_class
from grounded_attention.training.recipes.recipe import Model, Recipe
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.progress import with_progress

from .arguments import training_arguments
from .models import load_model, make_processor
from .prepared_data import PreparedData
from .trainers import check_fit


@dataclass(frozen=True)
class Scored:
    """The scores of one split on one track."""

    split: str
    track: str
    numbers: Fields
    judged: list[Judged]
    items: Mapping[str, list]

    @property
    def name(self) -> str:
        """The end of its file names."""
        return "_".join(filter(None, (self.split, self.track)))


def read_config(checkpoint: str, task: Task | None = None) -> Any:
    """Reads the configuration of a checkpoint that is whole, and whose family has the head of the task."""
    refuse_changed(checkpoint)
    model = Model(source=checkpoint)
    if task is None:
        family_name(model)
    else:
        head_class(task.head, model)
    return read_model_config(checkpoint)


def make_scorer(recipe: Recipe, checkpoint: str, data: PreparedData, directory: str) -> GroundingTrainer:
    """Makes a Trainer that only measures."""
    task = TASKS[recipe.task]
    source = Model(source=checkpoint)
    processor = make_processor(source)
    model, loading = load_model(head_class(task.head, source), source)
    if loading["missing_keys"]:
        what = f"{type(model).__name__} lacks weights, such as {min(loading['missing_keys'])}"
        raise ValueError(f"{checkpoint}: {what}: give the task that it was trained for, or copy it again")
    check_fit(model, processor, recipe, data)
    task = task.configure(data.options, model.config)
    supervise(model)
    return GroundingTrainer(
        model,
        training_arguments(recipe, Path(directory)),
        data_collator=data.collator(task, processor, recipe.seed),
        processing_class=getattr(processor, "processor", processor),
        task=task,
        method=get_method("none"),
        metrics=task.metrics,
    )


def tables(data: PreparedData) -> Fields:
    """Track -> its region table; without tracks, an empty name -> the only table."""
    return dict(data.tracks) or ({"": data.regions} if data.regions is not None else {})


def score_splits(checkpoint: str, recipe: Recipe, data: PreparedData, heads: bool = False) -> Iterator[Scored]:
    """Scores every split on every track; `heads` keeps the attention of each example too, whose rows have phrases."""
    with tempfile.TemporaryDirectory() as directory:
        trainer = make_scorer(recipe, checkpoint, data, directory)
        for split, rows in data.splits.items():
            for track, regions in (tables(data) or {"": None}).items():
                yield _score(trainer, split, track, rows, regions, heads)


def _score(trainer: Any, split: str, track: str, rows: Any, regions: Any, heads: bool) -> Scored:
    task = trainer.task
    judge = Judge(task.judge, rows, _context(trainer, rows, regions))
    if task.image_tokens:
        annotated = "phrases" in rows.column_names and any(map(len, rows["phrases"]))
        grounded = annotated and trainer.data_collator.images is not None
    else:
        grounded = regions is not None and task.always_has_phrases
    if grounded or heads:
        measured = [AttentionGrounding(not task.image_tokens and not heads, heads)]
    else:
        measured = []
    trainer.metrics = lambda: [*task.metrics(), *measured, judge]
    title = f"evaluate {split}" + (f", {track}" if track else "")
    numbers, items = trainer.measure_items(rows, title, regions)
    return Scored(split, track, numbers, with_scores(judge.judged, items), items)


def _context(trainer: Any, rows: Any, regions: Any) -> JudgeContext:
    labels = {name: each.names for name, each in _class_labels(rows.features)}
    names = [] if regions is None else regions.class_names
    background = getattr(trainer.task.options, "background", True)
    return JudgeContext(trainer.model.config, trainer.processing_class.tokenizer, labels, names, background)


def _class_labels(features: Any) -> Iterator[tuple[str, datasets.ClassLabel]]:
    """Every class column; a nested one has its last name."""
    for name, kind in features.items():
        if isinstance(kind, datasets.ClassLabel):
            yield name, kind
        elif isinstance(getattr(kind, "feature", None), dict):
            yield from _class_labels(kind.feature)


# Predictions without a model


def score_file(path: Path, task: Task, split: str, rows: Any) -> Scored:
    """Scores an official file of predictions."""
    scored = task.score_predictions(path, task.read_predictions(path), split, rows)
    return Scored(split, "", scored.numbers, scored.judged, scored.items)


def explainable() -> list[str]:
    """Names of the tasks with a decision that a relevancy map can explain."""
    return [name for name, task in TASKS.items() if task.explains]


def measure_perturbation(
    recipe: Recipe,
    checkpoint: str,
    data: PreparedData,
    split: str,
    *,
    maps: Sequence[str] = MAPS,
    steps: int = STEPS,
    about: Columns | None = None,
) -> PerturbationCurves:
    """Computes the perturbation curves of a checkpoint on a split; see `perturb`."""
    rows = data.splits[split]
    if not TASKS[recipe.task].explains:
        known = ", ".join(explainable())
        raise ValueError(f"the task {recipe.task!r} has no decision to explain; expected one of {known}")
    with tempfile.TemporaryDirectory() as directory:
        trainer: Any = make_scorer(recipe, checkpoint, data, directory)
        names = trainer.task.model_inputs
        return perturb(
            trainer.model,
            _batches(trainer, rows),
            inputs=lambda batch: {name: batch[name] for name in names if name in batch},
            read_out=trainer.task.read_out,
            scores=trainer.task.example_scores,
            maps=maps,
            steps=steps,
            seed=recipe.seed,
            about=about,
        )


def _batches(trainer: Any, rows: Any) -> Iterator[tuple[Fields, list[str]]]:
    collator = trainer.data_collator.evaluating(rows)
    size = trainer.args.eval_batch_size
    images = rows["image_id"]
    loader = DataLoader(rows, size, collate_fn=collator)
    for number, batch in enumerate(with_progress(loader, "remove regions")):
        moved = {}
        for k, v in batch.items():
            moved[k] = v.to(trainer.args.device) if torch.is_tensor(v) else v
        yield moved, list(images[number * size : (number + 1) * size])
