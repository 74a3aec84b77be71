# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the schema of a recipe does not say: options of its task and methods, and keys that do not fit each other."""

from accelerate import PartialState

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.builders.row_forms import FORMS
from grounded_attention.dataset_scripts.hub.tables import is_on_hub
from grounded_attention.supervision.registry import METHODS, make_method
from grounded_attention.tasks import TASKS, Task
from grounded_attention.training.loop.chosen_heads import check_heads
from grounded_attention.training.recipes.methods import recipe_method
from grounded_attention.training.recipes.model_family import check_family_config
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, check_names

from .arguments import CHECKPOINTING, check_options, check_training
from .models import check_model
from .prepared_data import PreparedData, builder_options
from .start_model import check_preserve


def check(recipe: Recipe, prefix: str = "") -> None:
    """Checks a recipe before any training."""
    task = TASKS[recipe.task]
    options = check_options(task, recipe.options, f"{prefix}options")
    check_training(recipe.training, f"{prefix}training.")
    if recipe.start is not None:
        check(recipe.start, "start.")
    check_family_config(recipe.model)
    check_model(recipe.model, task.head)
    check_names(recipe.supervision.options, METHODS, f"{prefix}supervision.options.")
    for name, method_options in recipe.supervision.options.items():  # also of methods that only other recipes run
        make_method(name, method_options, f"{prefix}supervision.options.{name}.", RecipeError)
    methods = [recipe_method(recipe, name, f"{prefix}supervision.options.") for name in recipe.methods]
    builder = BUILDERS[recipe.data.builder or task.builder]
    check_names(recipe.data.options, builder_options(builder), f"{prefix}data.options.")
    _check_limit(recipe, prefix)
    _check_data(recipe, task, options, prefix)
    grounded = [method.name for method in methods if method.needs_grounding]
    if grounded:
        _check_grounded(recipe, task, grounded[0], prefix)
    several = len(recipe.methods) + recipe.text_only_baseline > 1
    refuse(
        {
            "output_dir is empty: give the folder for the output of the run": not recipe.output_dir,
            "model.adapter cannot be combined with start, which would train the same adapter: remove one": (
                recipe.start is not None and bool(recipe.model.adapter)
            ),
            f"workers={recipe.workers} needs a single process: run without the launcher, or give workers=1": (
                recipe.workers > 1 and several and PartialState().num_processes > 1
            ),
            f"supervision.labels={recipe.supervision.labels} has no effect: no method uses the grounding of phrases": (
                recipe.supervision.labels != "gold" and not grounded
            ),
            f"{prefix}supervision.heads chooses heads of a trained start, which a start has not: give "
            f"{prefix}supervision.options.METHOD.heads": bool(prefix) and recipe.supervision.heads != "all",
            f"pictures show the attention of phrases, but the task {recipe.task!r} has no phrases: give pictures=0": (
                bool(recipe.pictures) and not task.always_has_phrases and recipe.data.source is None
            ),
        }
    )
    check_heads(recipe)
    check_preserve(recipe)


def refuse(reasons: dict[str, bool]) -> None:
    """Raises `RecipeError` with the first reason that holds."""
    for reason, holds in reasons.items():
        if holds:
            raise RecipeError(reason)


def _check_limit(recipe: Recipe, prefix: str) -> None:
    """Checks the names of splits; rows on the Hub may have splits of their own."""
    builder = recipe.data.builder or TASKS[recipe.task].builder
    every = {split for name in BUILDERS for split in _split_names(name)}
    named = is_on_hub(recipe.data.data_dir) or recipe.data.source is not None
    for split in () if named else recipe.data.limit:
        if split not in every:
            raise RecipeError(
                f"unknown key {f'{prefix}data.limit.{split}'!r}; the splits of {builder} are "
                f"{', '.join(_split_names(builder))}"
            )


def _split_names(builder: str) -> list[str]:
    return [str(split) for split in BUILDERS[builder].BUILDER_CONFIG_CLASS.SPLIT_NAMES.values()]


def _check_data(recipe: Recipe, task: Task, options: object, prefix: str) -> None:
    """Checks that the data contain what the task predicts, and that the task uses all given data."""
    data, bare = recipe.data, recipe.data.regions is None
    alone = [name for name in ("columns", "boxes", "splits", "max_rows") if getattr(data, name)]
    unread = [name for name in ("data_dir", "scenes", "options") if getattr(data, name)]
    name = data.builder or task.builder
    refuse(
        {
            f"{prefix}data.{unread[0] if unread else ''} is not read beside {prefix}data.source: remove one of them": (
                bool(unread) and data.source is not None
            ),
            f"{prefix}data.{alone[0] if alone else ''} says how {prefix}data.source is read, which is null": (
                bool(alone) and data.source is None
            ),
            f"{prefix}data.source gives rows of the form of {', '.join(FORMS)}, but the task {recipe.task!r} has "
            f"those of {name}": data.source is not None and name not in FORMS,
            f"{prefix}data.regions is null, but {prefix}options.regions=true predicts masked regions: "
            f"give a region table, or {prefix}options.regions=false": (
                bare and bool(getattr(options, "regions", False))
            ),
            f"{prefix}data.regions is null, but the task {recipe.task!r} chooses among regions": (
                bare and task.needs_regions
            ),
            f"{prefix}text_only_baseline is true, but the task {recipe.task!r} chooses among regions": (
                recipe.text_only_baseline and task.needs_regions
            ),
            f"{prefix}data.{'tracks' if bare else 'regions'} is given, but the regions of the task {recipe.task!r} "
            "are the image tokens of the model: remove it": task.image_tokens and (not bare or bool(data.tracks)),
            f"{prefix}data.tracks are given, but {prefix}data.regions is null: give a region table for training": (
                bare and bool(data.tracks)
            ),
            f"{prefix}data.text_corpus is given, but the task does not use text without images: remove it, or use the "
            f"task pretraining with {prefix}options.words=true and texts_per_image above 0": (
                bool(data.text_corpus)
                and not (getattr(options, "words", False) and getattr(options, "texts_per_image", 0))
            ),
        }
    )


def _check_grounded(recipe: Recipe, task: Task, method: str, prefix: str) -> None:
    """Checks that rows of a method that needs grounding have phrases and regions, and that gradients reach it."""
    key = f"{prefix}data.{'images' if task.image_tokens else 'regions'}"
    again = [recipe.training.get(f"{kind}_kwargs") for kind in CHECKPOINTING]
    refuse(
        {
            f"method {method!r} supervises the grounding of phrases, but the task {recipe.task!r} has no phrases: use "
            "method 'none'": not task.can_have_phrases,
            f"method {method!r} supervises the grounding in regions, but {key} is null: give it, or use method "
            "'none'": ((recipe.data.images or recipe.data.source) if task.image_tokens else recipe.data.regions)
            is None,
            f"{prefix}training has use_reentrant=true, but the gradient of supervised attention gets lost in "
            "re-entrant checkpointing: remove it, or use method 'none'": any(
                isinstance(settings, dict) and bool(settings.get("use_reentrant")) for settings in again
            ),
        }
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
    phrase_lists = rows["phrases"] if labels is None else (labels[caption].phrases for caption in rows["caption_id"])
    if not any(phrase["boxes"] for phrases in phrase_lists for phrase in phrases):
        place = (recipe.data.source or recipe.data.data_dir) if labels is None else labels.path
        raise RecipeError(
            f"method {needing[0]!r} needs grounding, but no phrase of the {len(rows)} training rows in {place} has a "
            "box: give data with boxes, or use method 'none'"
        )
