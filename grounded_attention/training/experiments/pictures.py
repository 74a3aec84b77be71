# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures of held-out images with the regions that the words of a caption attend to, for each method."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import Trainer

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.heads.attention_grounding import phrase_attention
from grounded_attention.heads.example_attention import ExampleAttention, capture_examples
from grounded_attention.heads.examples import entity_examples
from grounded_attention.metrics.significance import Estimate
from grounded_attention.modeling.attention_calls import layer_labels
from grounded_attention.reports.figures import WordAttention, heads_figure, method_comparison_figure
from grounded_attention.reports.tables import SAME_ITEMS
from grounded_attention.supervision.supervise import find_calls
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.tracking import PictureTracking, tracks_pictures
from grounded_attention.training.publish.hub import START
from grounded_attention.training.recipes.model_family import head_class, processor_class
from grounded_attention.training.recipes.recipe import Model, Recipe
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.safe_paths import path_below
from grounded_attention.utils.whole_files import make_folder

from .output import PICTURES
from .prepared_data import PreparedData

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
