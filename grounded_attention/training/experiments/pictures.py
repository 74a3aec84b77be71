# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What words look at in held-out pictures, before the training and in each method, for the page of a run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.heads.example_attention import ExampleAttention, capture_examples
from grounded_attention.heads.examples import AuditExample, grounded_examples
from grounded_attention.tasks import TASKS
from grounded_attention.training.publish.hub import START
from grounded_attention.training.recipes.model_family import head_class
from grounded_attention.training.recipes.recipe import Model, Recipe
from grounded_attention.utils.named_types import Columns

from .made_regions import picture_files
from .measuring import BEFORE, reported_split
from .models import load_model, make_processor
from .prepared_data import PreparedData, built_rows


def capture_pictures(results: Columns, recipe: Recipe, data: PreparedData) -> dict[str, list[ExampleAttention]]:
    """What words look at in held-out pictures, in each method, and before the training: in the trained start, or else
    the checkpoint that the recipe names.
    """
    task = TASKS[recipe.task]
    split = reported_split(next(iter(results["methods"].values()))["figures"])
    if not split or not recipe.pictures or (data.regions is None and not task.image_tokens):
        return {}
    examples, files = _to_show(split, recipe, data)
    if not examples:
        return {}
    output = Path(recipe.output_dir)
    sources = {name: str(output / name) for name in results["methods"]}
    before = str(output / START) if (output / START).is_dir() else recipe.model.source
    if before:
        sources = {BEFORE: before, **sources}
    return {name: _capture(Model(source=folder), recipe, data, examples, files) for name, folder in sources.items()}


def _to_show(split: str, recipe: Recipe, data: PreparedData) -> tuple[list[AuditExample], dict[str, Path]]:
    """The first text with boxes of each of the first images whose files are there, and the files."""
    if recipe.data.source is not None:
        rows = built_rows(recipe, data)[split]
        folder = os.sep
    else:
        rows = data.splits[split]
        folder = recipe.data.images or str(Path(recipe.data.data_dir, "flickr30k-images"))
    if "phrases" not in rows.column_names:
        return [], {}
    files = picture_files({split: rows}, folder)
    first: dict[str, AuditExample] = {}
    for example in grounded_examples(rows):
        has_boxes = any(len(phrase.boxes) for phrase in example.phrases)
        if has_boxes and files[example.image_id].is_file():
            first.setdefault(example.image_id, example)
        if len(first) == recipe.pictures:
            break
    return [*first.values()], files


def _capture(
    source: Model, recipe: Recipe, data: PreparedData, examples: Sequence[AuditExample], files: Mapping[str, Path]
) -> list[ExampleAttention]:
    task = TASKS[recipe.task]
    model = load_model(head_class(task.head, source), source)[0].eval()
    regions: Any = None if task.image_tokens else data.regions
    prompt = task.configure(data.options).options.caption_prompt if task.image_tokens else None
    return capture_examples(model, make_processor(source), examples, regions, files, prompt)
