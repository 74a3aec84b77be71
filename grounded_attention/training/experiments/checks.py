# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the schema of a recipe does not say: options of its task and methods, and the grounding that a method needs."""

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.hub.tables import is_on_hub
from grounded_attention.supervision.registry import METHODS
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.chosen_heads import check_heads
from grounded_attention.training.recipes.model_family import is_vision_language
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, check_names, recipe_method

from .arguments import check_options, check_training
from .models import check_model
from .prepared_data import PreparedData, builder_options

SPLITS = {str(split) for name in BUILDERS for split in BUILDERS[name].BUILDER_CONFIG_CLASS.SPLIT_NAMES.values()}


def check(recipe: Recipe, prefix: str = "") -> None:
    """Checks a recipe before any training: the names in its sections, and the grounding that a method needs."""
    task = TASKS[recipe.task]
    data = recipe.data
    if not recipe.output_dir:
        raise RecipeError("output_dir is empty: give the folder for the output of the run")
    options = check_options(task, recipe.options, f"{prefix}options")
    check_training(recipe.training, f"{prefix}training.")
    if recipe.start is not None:
        check(recipe.start, "start.")
    check_model(recipe.model, task.head)
    check_names(recipe.supervision.options, METHODS, f"{prefix}supervision.options.")
    check_names(data.options, builder_options(BUILDERS[data.builder or task.builder]), f"{prefix}data.options.")
    if data.source is None and not is_on_hub(data.data_dir):
        check_names(data.limit, SPLITS, f"{prefix}data.limit.")
    if data.regions is None and (task.needs_regions or getattr(options, "regions", False)):
        raise RecipeError(f"{prefix}data.regions is null, but the task {recipe.task!r} needs regions")
    if recipe.text_only_baseline and task.needs_regions:
        raise RecipeError(f"{prefix}text_only_baseline is true, but the task {recipe.task!r} chooses among regions")
    # Rows of a method that needs grounding have phrases, and regions or image tokens.
    methods = [recipe_method(recipe, name, f"{prefix}supervision.options.") for name in recipe.methods]
    grounded = [method.name for method in methods if method.needs_grounding]
    inputs = (data.images or data.source) if task.image_tokens else data.regions
    if grounded and not task.can_have_phrases:
        raise RecipeError(
            f"method {grounded[0]!r} supervises the grounding of phrases, but the task {recipe.task!r} has none: use "
            "method 'none'"
        )
    if grounded and inputs is None:
        key = f"{prefix}data.{'images' if task.image_tokens else 'regions'}"
        raise RecipeError(
            f"method {grounded[0]!r} supervises the grounding in regions, but {key} is null: give it, or use method "
            "'none'"
        )
    check_heads(recipe)
    check_preserve(recipe)


def check_preserve(recipe: Recipe) -> None:
    """Checks the `preserve` section."""
    if not recipe.preserve.distillation:
        return
    if is_vision_language(recipe.model):
        raise RecipeError("preserve is not for vision-language models: remove it, or train an adapter (model.adapter)")
    if recipe.model.adapter:
        raise RecipeError("preserve compares with the start, which model.adapter keeps: remove one of them")
    if recipe.start is None and recipe.model.source is None:
        raise RecipeError("preserve needs a start model: give a start section, or a checkpoint as model.source")
    if recipe.training.get("fsdp"):
        raise RecipeError("preserve needs whole parameters in every process: remove training.fsdp")


def check_grounding(recipe: Recipe, data: PreparedData, prefix: str = "") -> None:
    """Checks that a training row has grounding if a method needs it."""
    needing = [name for name in recipe.methods if recipe_method(recipe, name).needs_grounding]
    rows = data.splits["train"]
    phrase_lists = rows["phrases"] if "phrases" in rows.column_names else []
    if needing and not any(phrase["boxes"] for phrases in phrase_lists for phrase in phrases):
        place = recipe.data.pseudo_labels or recipe.data.source or recipe.data.data_dir
        raise RecipeError(
            f"{prefix}data: method {needing[0]!r} needs grounding, but no phrase of the {len(rows)} training rows in "
            f"{place} has a box: give data with boxes, or use method 'none'"
        )
