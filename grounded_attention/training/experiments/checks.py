# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks of a recipe that run before any training."""

from accelerate import PartialState

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.supervision import AttentionMethod, get_method
from grounded_attention.supervision.controls import LABELS
from grounded_attention.tasks import TASKS, Task
from grounded_attention.training.loop.chosen_heads import check_heads, model_sizes
from grounded_attention.training.recipes.model_family import check_family_config
from grounded_attention.training.recipes.number_checks import check_seed
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, check_names, recipe_key_errors

from .setup import PreparedData, check_model, check_options, check_training
from .start_model import check_preserve


def check(recipe: Recipe, prefix: str = "") -> None:
    """
    Checks a recipe: names and options must be known, and methods that need grounding need regions.

    Args:
        recipe (`Recipe`): the recipe.
        prefix (`str`, *optional*, defaults to `""`): text before each key in a message, such as "start.".

    Raises:
        RecipeError: if the recipe cannot run; the message contains the key.
    """
    _check_known(f"{prefix}task", recipe.task, TASKS)
    _check_known(f"{prefix}data.builder", recipe.data.builder, BUILDERS)
    _check_sources(recipe, TASKS[recipe.task], prefix)
    check_training(recipe.training, f"{prefix}training.")
    check_seed(recipe.seed, f"{prefix}seed")
    if recipe.start is not None:
        check(recipe.start, "start.")
    check_family_config(recipe.model)
    check_model(recipe.model, TASKS[recipe.task].head)
    if not recipe.output_dir:
        raise RecipeError("output_dir is empty: give the folder for the output of the run")
    _check_workers(recipe)
    if "box_layer" in recipe.model.config:
        raise RecipeError(
            "model.config.box_layer is set from supervision.options.METHOD.box_layer: remove it from model.config"
        )
    for name in recipe.methods:
        _check_method(name, recipe)
    _check_labels(recipe)
    check_heads(recipe)
    check_preserve(recipe)
    if recipe.pictures and not _has_phrases(recipe):
        raise RecipeError(
            f"pictures show the attention of phrases, but the task {recipe.task!r} has no phrases: give pictures=0"
        )


def _check_workers(recipe: Recipe) -> None:
    if recipe.workers < 1:
        raise RecipeError(f"workers must be 1 or more, found {recipe.workers}")
    several = len(recipe.methods) + recipe.text_only_baseline > 1
    if recipe.workers > 1 and several and PartialState().num_processes > 1:
        raise RecipeError(
            f"workers={recipe.workers} needs a single process: run without the launcher, or give workers=1"
        )


def _check_known(key: str, name: str | None, known: dict) -> None:
    if name is not None and name not in known:
        raise RecipeError(f"unknown {key} {name!r}; expected one of {', '.join(sorted(known))}")


def _check_sources(recipe: Recipe, task: Task, prefix: str) -> None:
    """Checks that the data contain what the task predicts, and that the task uses all given data."""
    options, data = check_options(task, recipe.options, f"{prefix}options"), recipe.data
    if getattr(options, "regions", False) and data.regions is None:
        raise RecipeError(
            f"{prefix}data.regions is null, but {prefix}options.regions=true predicts masked regions: "
            f"give a region table, or {prefix}options.regions=false"
        )
    if task.needs_regions and (data.regions is None or recipe.text_only_baseline):
        key = f"{prefix}data.regions is null" if data.regions is None else f"{prefix}text_only_baseline is true"
        raise RecipeError(f"{key}, but the task {recipe.task!r} chooses among regions and needs a region table")
    if data.tracks and data.regions is None:
        raise RecipeError(
            f"{prefix}data.tracks are given, but {prefix}data.regions is null: give a region table for training"
        )
    if data.text_corpus and not (getattr(options, "words", False) and options.texts_per_image):
        raise RecipeError(
            f"{prefix}data.text_corpus is given, but the task does not use text without images: remove it, or use "
            f"the task pretraining with {prefix}options.words=true and texts_per_image above 0"
        )


def _has_phrases(recipe: Recipe) -> bool:
    return "phrase_mask" in TASKS[recipe.task].model_inputs


def _check_method(name: str, recipe: Recipe) -> None:
    with recipe_key_errors(f"methods, supervision.options.{name}"):
        method = get_method(name, **recipe.supervision.options.get(name, {}))
    if not method.needs_grounding:
        return
    if not _has_phrases(recipe):
        raise RecipeError(
            f"method {name!r} supervises the attention of phrases, but the task {recipe.task!r} has no phrases: "
            "use method 'none'"
        )
    if recipe.data.regions is None:
        raise RecipeError(
            f"method {name!r} supervises attention on regions, but data.regions is null: "
            "give a region table, or use method 'none'"
        )
    if isinstance(method, AttentionMethod) and method.boxes.weight:
        _check_boxes(method, recipe)


def _check_boxes(method: AttentionMethod, recipe: Recipe) -> None:
    """Checks that the model has the box head that the method trains."""
    key = f"supervision.options.{method.name}"
    if TASKS[recipe.task].head != "vgp":
        raise RecipeError(
            f"{key}.box_weight is {method.boxes.weight:g}, but models for the task {recipe.task!r} have no box head: "
            "remove it"
        )
    layers, _ = model_sizes(recipe.model)
    if method.boxes.layer >= layers:
        raise RecipeError(
            f"{key}.box_layer is {method.boxes.layer}, but the model has layers 0 to {layers - 1}: give one of them"
        )


def _check_labels(recipe: Recipe) -> None:
    labels = recipe.supervision.labels
    check_names([labels], LABELS, "supervision.labels=")
    if labels != "gold" and not any(get_method(name).needs_grounding for name in recipe.methods):
        raise RecipeError(
            f"supervision.labels={labels} has no effect: none of the methods {', '.join(recipe.methods)} uses the "
            "grounding of phrases"
        )


def check_grounding(recipe: Recipe, data: PreparedData) -> None:
    """Checks that a training row has grounding if a method needs it."""
    needing = [name for name in recipe.methods if get_method(name).needs_grounding]
    rows = data.splits["train"]
    if needing and not any(phrase["boxes"] for phrases in rows["phrases"] for phrase in phrases):
        raise RecipeError(
            f"method {needing[0]!r} needs grounding, but no phrase of the {len(rows)} training rows in "
            f"{recipe.data.data_dir} has a box: give data with boxes, or use method 'none'"
        )
