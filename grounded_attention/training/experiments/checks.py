# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks of a recipe that run before any training."""

import math

from accelerate import PartialState

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.regions.hub import is_on_hub
from grounded_attention.supervision import AttentionMethod, method_names
from grounded_attention.supervision.controls import LABELS
from grounded_attention.supervision.grounding_alignment import HEAD_FIELDS
from grounded_attention.tasks import TASKS, Task
from grounded_attention.training.loop.chosen_heads import check_heads, model_sizes
from grounded_attention.training.recipes.early_checks import check_known
from grounded_attention.training.recipes.methods import needs_grounding, recipe_method
from grounded_attention.training.recipes.model_family import check_family_config
from grounded_attention.training.recipes.number_checks import check_seed
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, check_names, recipe_key_errors
from grounded_attention.utils.bounded_numbers import MAX_PROCESSES

from .arguments import CHECKPOINTING, check_options, check_training
from .models import check_model
from .prepared_data import PreparedData
from .start_model import check_preserve

# Configuration fields that a method sets -> the option that sets them.
METHOD_FIELDS = {"box_layer": "METHOD.box_layer"} | {
    field: f"grounding_alignment.{option}" for option, field in HEAD_FIELDS.items()
}


def check(recipe: Recipe, prefix: str = "") -> None:
    """
    Checks a recipe: names and options must be known, and methods that need grounding need regions.
    """
    check_known(f"{prefix}task", recipe.task, TASKS)
    check_known(f"{prefix}data.builder", recipe.data.builder, BUILDERS)
    _check_sources(recipe, TASKS[recipe.task], prefix)
    check_training(recipe.training, f"{prefix}training.")
    check_seed(recipe.seed, f"{prefix}seed")
    if recipe.start is not None:
        check(recipe.start, "start.")
    check_family_config(recipe.model)
    check_model(recipe.model, TASKS[recipe.task].head)
    if recipe.start is not None and recipe.model.adapter:
        raise RecipeError(
            "model.adapter cannot be combined with start, which would train the same adapter: remove one"
        )
    if not recipe.output_dir:
        raise RecipeError("output_dir is empty: give the folder for the output of the run")
    _check_numbers(recipe, prefix)
    _check_workers(recipe)
    _check_limit(recipe, prefix)
    for field, option in METHOD_FIELDS.items():
        if field in recipe.model.config:
            raise RecipeError(
                f"model.config.{field} is set from supervision.options.{option}: remove it from model.config"
            )
    check_names(recipe.supervision.options, method_names(), f"{prefix}supervision.options.")
    for name in recipe.methods:
        _check_method(name, recipe, prefix)
    _check_checkpointing(recipe, prefix)
    _check_labels(recipe)
    if prefix and recipe.supervision.heads != "all":
        raise RecipeError(
            f"{prefix}supervision.heads chooses heads of a trained start, which a start has not: remove it, or give "
            f"{prefix}supervision.options.METHOD.heads"
        )
    check_heads(recipe)
    check_preserve(recipe)
    if recipe.pictures and not TASKS[recipe.task].always_has_phrases:
        raise RecipeError(
            f"pictures show the attention of phrases, but the task {recipe.task!r} has no phrases: give pictures=0"
        )


def _check_numbers(recipe: Recipe, prefix: str) -> None:
    """Checks numbers that have no sense below 0, and the list of methods."""
    weight = recipe.supervision.weight
    if not 0 <= weight < math.inf:
        raise RecipeError(f"{prefix}supervision.weight must be a number of 0 or more, found {weight}")
    if recipe.pictures < 0:
        raise RecipeError(f"{prefix}pictures must be 0 or more, found {recipe.pictures}")
    if not recipe.methods and not recipe.text_only_baseline:
        raise RecipeError(f"{prefix}methods is empty: give a method, such as methods=[none]")
    twice = [name for name in recipe.methods if recipe.methods.count(name) > 1]
    if twice:
        raise RecipeError(f"{prefix}methods contains {twice[0]!r} twice: give each method once")


def _check_workers(recipe: Recipe) -> None:
    if recipe.workers < 1:
        raise RecipeError(f"workers must be 1 or more, found {recipe.workers}")
    if recipe.workers > MAX_PROCESSES:
        raise RecipeError(f"workers must be at most {MAX_PROCESSES}, found {str(recipe.workers)[:40]}")
    several = len(recipe.methods) + recipe.text_only_baseline > 1
    if recipe.workers > 1 and several and PartialState().num_processes > 1:
        raise RecipeError(
            f"workers={recipe.workers} needs a single process: run without the launcher, or give workers=1"
        )


def _check_limit(recipe: Recipe, prefix: str) -> None:
    """Checks the numbers of rows and the names of their splits; rows on the Hub may have splits of their own.

    A limit is shared by the recipes of a study, so a split of another builder is allowed.
    """
    for split, limit in recipe.data.limit.items():
        if limit < 1:
            raise RecipeError(f"{prefix}data.limit.{split} must be 1 or more, found {limit}")
    builder = recipe.data.builder or TASKS[recipe.task].builder
    known = _split_names(builder)
    others = [split for split in recipe.data.limit if split not in known]
    if not others or is_on_hub(recipe.data.data_dir):
        return
    every = {split for name in BUILDERS for split in _split_names(name)}
    for split in others:
        if split not in every:
            raise RecipeError(
                f"unknown key {f'{prefix}data.limit.{split}'!r}; the splits of {builder} are {', '.join(known)}"
            )


def _split_names(builder: str) -> list[str]:
    return [str(split) for split in BUILDERS[builder].BUILDER_CONFIG_CLASS.SPLIT_NAMES.values()]


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
    if task.image_tokens and (data.regions is not None or data.tracks):
        raise RecipeError(
            f"{prefix}data.{'tracks' if data.regions is None else 'regions'} is given, but the regions of the task "
            f"{recipe.task!r} are the image tokens of the model: remove it"
        )
    if data.tracks and data.regions is None:
        raise RecipeError(
            f"{prefix}data.tracks are given, but {prefix}data.regions is null: give a region table for training"
        )
    if data.text_corpus and not (getattr(options, "words", False) and options.texts_per_image):
        raise RecipeError(
            f"{prefix}data.text_corpus is given, but the task does not use text without images: remove it, or use "
            f"the task pretraining with {prefix}options.words=true and texts_per_image above 0"
        )


def _check_method(name: str, recipe: Recipe, prefix: str) -> None:
    with recipe_key_errors(f"{prefix}methods, {prefix}supervision.options.{name}"):
        method = recipe_method(recipe, name)
    if not method.needs_grounding:
        return
    if not TASKS[recipe.task].can_have_phrases:
        raise RecipeError(
            f"method {name!r} supervises the grounding of phrases, but the task {recipe.task!r} has no phrases: "
            "use method 'none'"
        )
    tokens = TASKS[recipe.task].image_tokens
    if (recipe.data.images if tokens else recipe.data.regions) is None:
        key, give = ("data.images", "the folder of the images") if tokens else ("data.regions", "a region table")
        raise RecipeError(
            f"method {name!r} supervises the grounding in regions, but {key} is null: "
            f"give {give}, or use method 'none'"
        )
    for part in method.parts:
        if isinstance(part, AttentionMethod) and part.boxes.weight:
            _check_boxes(part, recipe)


def _check_checkpointing(recipe: Recipe, prefix: str) -> None:
    """Refuses re-entrant checkpointing with supervision: a layer's report would have no gradient."""
    for name in (f"{kind}_kwargs" for kind in CHECKPOINTING):
        given = recipe.training.get(name)
        if isinstance(given, dict) and given.get("use_reentrant") and set(recipe.methods) != {"none"}:
            raise RecipeError(
                f"{prefix}training.{name}.use_reentrant is true, but the gradient of supervised attention gets lost "
                "in re-entrant checkpointing: remove it, or use method 'none'"
            )


def _check_boxes(method: AttentionMethod, recipe: Recipe) -> None:
    """Checks that the model has the box head that the method trains."""
    key = f"supervision.options.{method.name}"
    if TASKS[recipe.task].head != "vgp":
        raise RecipeError(
            f"{key}.box_weight is {method.boxes.weight:g}, but models for the task {recipe.task!r} have no box head: "
            "remove it"
        )
    layers = len(model_sizes(recipe.model)[0])
    if method.boxes.layer >= layers:
        raise RecipeError(
            f"{key}.box_layer is {method.boxes.layer}, but the model has layers 0 to {layers - 1}: give one of them"
        )


def _check_labels(recipe: Recipe) -> None:
    labels = recipe.supervision.labels
    check_names([labels], LABELS, "supervision.labels=")
    if labels != "gold" and not needs_grounding(recipe):
        raise RecipeError(
            f"supervision.labels={labels} has no effect: none of the methods {', '.join(recipe.methods)} uses the "
            "grounding of phrases"
        )


def check_grounding(recipe: Recipe, data: PreparedData, prefix: str = "") -> None:
    """Checks that a training row has grounding if a method needs it."""
    needing = [name for name in recipe.methods if recipe_method(recipe, name).needs_grounding]
    rows, labels = data.splits["train"], data.pseudo_labels
    if labels is not None and not needing and not TASKS[recipe.task].always_has_phrases:
        raise RecipeError(
            f"{prefix}data.pseudo_labels is given, but no method uses phrases: remove it, or give methods such as "
            "grounding_alignment or direct"
        )
    if not needing:
        return
    if labels is None and "phrases" not in rows.column_names:
        raise RecipeError(
            f"method {needing[0]!r} needs phrases with boxes, but the rows of {prefix}data.builder "
            f"{recipe.data.builder or TASKS[recipe.task].builder} have none: give {prefix}data.pseudo_labels, or the "
            "builder flickr30k_entities, or use method 'none'"
        )
    given = rows["phrases"] if labels is None else (labels[caption].phrases for caption in rows["caption_id"])
    if not any(phrase["boxes"] for phrases in given for phrase in phrases):
        place = recipe.data.data_dir if labels is None else labels.path
        raise RecipeError(
            f"method {needing[0]!r} needs grounding, but no phrase of the {len(rows)} training rows in {place} has a "
            "box: give data with boxes, or use method 'none'"
        )
