# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures of held-out images with the regions that the words of a caption attend to, for each method."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import Trainer

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.heads.attention_grounding import phrase_attention
from grounded_attention.heads.example_attention import ExampleAttention, capture_examples, capture_patches
from grounded_attention.heads.examples import AuditExample, entity_examples, grounded_examples
from grounded_attention.metrics.significance import Estimate
from grounded_attention.modeling.attention_calls import layer_labels
from grounded_attention.pages.figures import WordAttention, heads_figure, method_comparison_figure
from grounded_attention.pages.tables import SAME_ITEMS
from grounded_attention.supervision.supervise import find_calls
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.tracking import PictureTracking, tracks_pictures
from grounded_attention.training.publish.hub import START
from grounded_attention.training.recipes.model_family import head_class, processor_class
from grounded_attention.training.recipes.recipe import Model, Recipe
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.safe_paths import path_below
from grounded_attention.utils.whole_files import make_folder

from .made_regions import picture_files
from .measuring import BEFORE, reported_split
from .models import load_model, make_processor
from .output import PICTURES
from .prepared_data import PreparedData, built_rows
from .vision_language import load_vlm

WORDS_SHOWN = 4


def draw_pictures(
    results: Mapping[str, Any], recipe: Recipe, data: PreparedData, directory: Path
) -> dict[str, list[ExampleAttention]]:
    """Draws one picture per image: rows are methods, columns words of a caption; each method uses its best layer."""
    task, regions = TASKS[recipe.task], cast(RegionTable, data.regions)
    rows = _rows_to_show(data, recipe, "test")
    make_folder(directory)
    shown: list[dict[str, list[WordAttention]]] = [{} for _ in rows]
    paths = {row["image_id"]: path for row, path in rows}
    captions = [next(entity_examples([row])) for row, _ in rows]
    captured = {}
    for name, result in results["methods"].items():
        source = Path(recipe.output_dir) / name
        trained = Model(source=str(source))
        model = head_class(task.head, trained).from_pretrained(source).eval()
        processor = processor_class(trained).from_pretrained(source)
        layer = result["text_to_region_accuracy"]["layer"]
        for words, (row, _) in zip(shown, rows, strict=True):
            words[name] = word_attention(model, processor, row, regions[row["image_id"]], layer)
        captured[name] = capture_examples(model, processor, captions, cast(Any, regions), paths, regions.class_names)
    for (row, path), words in zip(rows, shown, strict=True):
        _draw(row, path, words, directory)
    return captured if captions else {}


def capture_own(results: Mapping[str, Any], recipe: Recipe, data: PreparedData) -> dict[str, list[ExampleAttention]]:
    """What words of `data.source` look at in pictures of the reported split: before the training, and in each method.

    Before is the trained start, or else the checkpoint that the recipe names.
    """
    task, output = TASKS[recipe.task], Path(recipe.output_dir)
    split = reported_split(next(iter(results["methods"].values()))["figures"])
    first: dict[str, AuditExample] = {}
    for example in grounded_examples(map(with_text, built_rows(recipe, data)[split] if split else ())):
        if any(len(phrase.boxes) for phrase in example.phrases) and len(first) < recipe.pictures:
            first.setdefault(example.image_id, example)
    before = str(output / START) if (output / START).is_dir() else recipe.model.source
    sources = {BEFORE: before} if before else {}
    sources |= {name: str(output / name) for name in results["methods"]}
    files, examples, captured = picture_files(data.splits, os.sep), [*first.values()], {}
    for name, folder in sources.items() if examples else ():
        source = Model(source=folder)
        processor = make_processor(source)
        if task.image_tokens:
            prompt = task.configure(data.options).options.caption_prompt
            captured[name] = capture_patches(load_vlm(source)[0].eval(), processor, examples, files, prompt)
        else:
            regions: Any = data.regions
            model = load_model(head_class(task.head, source), source)[0].eval()
            captured[name] = capture_examples(model, processor, examples, regions, files, regions.class_names)
    return captured


def with_text(row: dict[str, Any]) -> dict[str, Any]:
    """Questions and conversations under the names that texts have in rows with phrases."""
    if "messages" in row:
        return {**row, "messages": [{"content": message["text"]} for message in row["messages"]]}
    return {**row, "text": row["question"]} if "question" in row else row


def show_start(measured: Mapping[str, Any], model: Any, processor: Any, recipe: Recipe, data: PreparedData) -> str:
    """Draws the heads of the start model, and what it attends to in validation images; returns a line about them."""
    output, accuracy = Path(recipe.output_dir), np.array(measured["accuracy"])
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
    task, with_examples = TASKS[recipe.task], recipe.pictures and data.regions is not None and not data.tracks
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
    regions, training = cast(RegionTable, data.regions), model.training
    model.eval()
    try:
        return [
            _draw(row, path, {name: word_attention(model, processor, row, regions[row["image_id"]], layer)}, directory)
            for row, path in _rows_to_show(data, recipe, "validation")
        ]
    finally:
        model.train(training)


def _rows_to_show(data: PreparedData, recipe: Recipe, split: str) -> list[tuple[dict[str, Any], Path]]:
    shown: dict[str, tuple[dict[str, Any], Path]] = {}
    if recipe.data.source is not None:  # see `capture_own`
        return []
    images, wanted = Path(recipe.data.data_dir) / "flickr30k-images", recipe.pictures
    for row in data.splits[split]:
        path = path_below(images, f"{row['image_id']}.jpg")
        grounded = [phrase for phrase in row["phrases"] if phrase["sentence"] == 0 and phrase["boxes"]]
        if len(grounded) >= 2 and row["image_id"] not in shown and path.is_file():
            shown[row["image_id"]] = ({**row, "phrases": grounded[:WORDS_SHOWN]}, path)
        if len(shown) == wanted:
            break
    return list(shown.values())


@torch.no_grad()
def word_attention(
    model: Any, processor: Any, row: Mapping[str, Any], regions: Any, layer: int
) -> list[WordAttention]:
    """The attention of each grounded phrase of the row's first caption in `layer`, mean over heads and tokens."""
    inputs = processor(
        text=[row["caption1"]],
        text_pair=[row["caption2"]],
        region_features=[regions.features],
        region_boxes=[regions.boxes],
        phrases=[row["phrases"]],
        return_tensors="pt",
    ).to(model.device)
    candidates = inputs["region_candidate_mask"][0]
    attention = phrase_attention(model, inputs, layer=layer)[0][:, candidates].cpu().numpy()
    gold = inputs["phrase_regions"][0][:, candidates].bool().cpu().numpy()
    boxes = inputs["region_boxes"][0][candidates].cpu().numpy()
    return [
        WordAttention(phrase["text"], (phrase["start"], phrase["end"]), boxes, attention[i], gold[i])
        for i, phrase in enumerate(row["phrases"])
    ]


def _draw(row: Mapping[str, Any], image: Path, words: dict[str, list[WordAttention]], directory: Path) -> Path:
    path = path_below(directory, f"{row['image_id']}.png")
    method_comparison_figure(open_image(image), row["caption1"], words, path)
    return path
