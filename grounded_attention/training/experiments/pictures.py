# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures of held-out images with the regions that the words of a caption attend to, for each method."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from transformers import Trainer

from grounded_attention.heads.example_attention import ExampleAttention, capture_examples, naming_words
from grounded_attention.heads.examples import AuditExample, grounded_examples
from grounded_attention.metrics.significance import Estimate
from grounded_attention.modeling.attention_calls import layer_labels
from grounded_attention.pages.attention_pictures import method_comparison_figure
from grounded_attention.pages.figures import heads_figure
from grounded_attention.pages.tables import SAME_ITEMS
from grounded_attention.supervision.supervise import find_calls
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.tracking import PictureTracking, tracks_pictures
from grounded_attention.training.publish.hub import START
from grounded_attention.training.recipes.model_family import head_class
from grounded_attention.training.recipes.recipe import Model, Recipe
from grounded_attention.utils.safe_paths import path_below
from grounded_attention.utils.whole_files import make_folder

from .made_regions import picture_files
from .measuring import BEFORE, reported_split
from .models import load_model, make_processor
from .output import PICTURES
from .prepared_data import PreparedData, built_rows
from .vision_language import load_vlm

WORDS_SHOWN = 4


def capture_pictures(
    results: Mapping[str, Any], recipe: Recipe, data: PreparedData
) -> dict[str, list[ExampleAttention]]:
    """What words look at in held-out pictures, in each method; on rows of `data.source` also before the training.

    Before is the trained start, or else the checkpoint that the recipe names.
    """
    output = Path(recipe.output_dir)
    sources = {name: str(output / name) for name in results["methods"]}
    if recipe.data.source is None:
        examples, files = _captions(_rows_to_show(data, recipe, "test"))
    else:
        split = reported_split(next(iter(results["methods"].values()))["figures"])
        first: dict[str, AuditExample] = {}
        for example in grounded_examples(built_rows(recipe, data)[split] if split else ()):
            if any(len(phrase.boxes) for phrase in example.phrases) and len(first) < recipe.pictures:
                first.setdefault(example.image_id, example)
        examples = [*first.values()]
        files = picture_files(data.splits, os.sep)
        before = str(output / START) if (output / START).is_dir() else recipe.model.source
        if before:
            sources = {BEFORE: before, **sources}
    if not examples:
        return {}
    return {name: _capture(Model(source=folder), recipe, data, examples, files) for name, folder in sources.items()}


def _capture(
    source: Model, recipe: Recipe, data: PreparedData, examples: Sequence[AuditExample], files: Mapping[str, Path]
) -> list[ExampleAttention]:
    task = TASKS[recipe.task]
    processor = make_processor(source)
    if task.image_tokens:
        prompt = task.configure(data.options).options.caption_prompt
        return capture_examples(load_vlm(source)[0].eval(), processor, examples, None, files, prompt)
    regions: Any = data.regions
    model = load_model(head_class(task.head, source), source)[0].eval()
    return capture_examples(model, processor, examples, regions, files)


def _captions(rows: Sequence[tuple[dict[str, Any], Path]]) -> tuple[list[AuditExample], dict[str, Path]]:
    """The first caption of each row, and the files of their pictures."""
    return [next(grounded_examples([row])) for row, _ in rows], {row["image_id"]: path for row, path in rows}


def draw_pictures(
    captured: Mapping[str, Sequence[ExampleAttention]], layers: Mapping[str, int], directory: Path
) -> list[Path]:
    """Draws one picture per image: rows are models, each in one of its layers, columns words of the caption."""
    make_folder(directory)
    drawn = []
    for same in zip(*captured.values(), strict=True):
        words = naming_words(same[0], WORDS_SHOWN)
        rows = {
            name: [example.word_attention(word, layers[name]) for word in words]
            for name, example in zip(captured, same, strict=True)
        }
        drawn.append(path_below(directory, f"{same[0].image_id}.png"))
        method_comparison_figure(same[0].image, same[0].caption, rows, drawn[-1])
    return drawn


def show_start(measured: Mapping[str, Any], model: Any, processor: Any, recipe: Recipe, data: PreparedData) -> str:
    """Draws the heads of the start model, and what it attends to in validation images; returns a line about them."""
    output = Path(recipe.output_dir)
    accuracy = np.array(measured["accuracy"])
    layer, head = np.unravel_index(np.nanargmax(accuracy), accuracy.shape)
    ends = measured.get("intervals") or {end: np.full_like(accuracy, np.nan) for end in ("low", "high")}
    right = Estimate(accuracy[layer, head], ends["low"][layer][head], ends["high"][layer][head], measured["tokens"])
    labels = layer_labels(find_calls(model))
    figure = output / "start_heads.png"
    heads_figure({START: accuracy}, measured["chance"], figure, labels)
    drawn = draw_examples(model, processor, recipe, data, START, int(layer), output / PICTURES / START)
    return (
        f"start: its best head, {layer}-{head}, is right for {right.of('words')} of {measured['rows']} training rows; "
        f"chance {measured['chance']:.1%}. {SAME_ITEMS} "
        f"Open {', '.join(map(str, [figure, *drawn[:1]]))}"
    )


def track_pictures(trainer: Trainer, recipe: Recipe, data: PreparedData, name: str) -> None:
    """Lets TensorBoard and trackio receive pictures of heads and examples, if one of them receives the logs."""
    if not tracks_pictures(trainer):
        return
    task = TASKS[recipe.task]
    with_examples = recipe.pictures and data.regions is not None and not data.tracks
    examples = None
    if with_examples and task.always_has_phrases and "validation" in data.splits:

        def examples(model: Any, layer: int, folder: Path) -> list[Path]:
            return draw_examples(model, trainer.processing_class, recipe, data, name, layer, folder)

    layers = layer_labels(find_calls(trainer.model))
    trainer.add_callback(PictureTracking(trainer, name, layers, examples))


def draw_examples(
    model: Any, processor: Any, recipe: Recipe, data: PreparedData, name: str, layer: int, directory: Path
) -> list[Path]:
    """Draws the same pictures of validation images for one model, such as one that is being trained."""
    regions = cast(Any, data.regions)
    training = model.training
    examples, files = _captions(_rows_to_show(data, recipe, "validation"))
    model.eval()
    try:
        captured = capture_examples(model, processor, examples, regions, files)
    finally:
        model.train(training)
    return draw_pictures({name: captured}, {name: layer}, directory)


def _rows_to_show(data: PreparedData, recipe: Recipe, split: str) -> list[tuple[dict[str, Any], Path]]:
    shown: dict[str, tuple[dict[str, Any], Path]] = {}
    if recipe.data.source is not None:  # see `capture_pictures`
        return []
    images = Path(recipe.data.data_dir) / "flickr30k-images"
    wanted = recipe.pictures
    for row in data.splits[split]:
        path = path_below(images, f"{row['image_id']}.jpg")
        grounded = [phrase for phrase in row["phrases"] if phrase["sentence"] == 0 and phrase["boxes"]]
        if len(grounded) >= 2 and row["image_id"] not in shown and path.is_file():
            shown[row["image_id"]] = ({**row, "phrases": grounded[:WORDS_SHOWN]}, path)
        if len(shown) == wanted:
            break
    return list(shown.values())
