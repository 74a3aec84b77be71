# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The perturbation test of a saved checkpoint: accuracy on a split while regions are removed."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from grounded_attention.analysis.perturbation_curves import STEPS, PerturbationCurves, perturb
from grounded_attention.analysis.relevancy import MAPS
from grounded_attention.tasks import TASKS
from grounded_attention.training.recipes.recipe import Recipe
from grounded_attention.utils.progress import phase

from .prepared_data import PreparedData
from .scoring import make_scorer


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
    about: Mapping[str, Any] | None = None,
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


def _batches(trainer: Any, rows: Any) -> Iterator[tuple[dict[str, Any], list[str]]]:
    collator, size = trainer.data_collator.evaluating(rows), trainer.args.eval_batch_size
    images = rows["image_id"]
    loader = DataLoader(rows, size, collate_fn=collator)
    with phase("remove regions", len(loader)) as advance:
        for number, batch in enumerate(loader):
            moved = {k: v.to(trainer.args.device) if torch.is_tensor(v) else v for k, v in batch.items()}
            yield moved, list(images[number * size : (number + 1) * size])
            advance()
