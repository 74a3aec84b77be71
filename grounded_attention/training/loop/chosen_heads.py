# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The supervised heads: all, the best or worst before supervision, some layers, or a list.

Shape letters: L layers, H heads.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grounded_attention.heads.attention_grounding import INTERVALS, LAYERS, AttentionGrounding
from grounded_attention.heads.choosing import top_heads
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.supervision import get_method, split_name
from grounded_attention.training.recipes.recipe import HEADS, Recipe, RecipeError, recipe_key_errors
from grounded_attention.utils.named_types import Columns, Fields, Head

from .data import limit_rows
from .trainer import GroundingTrainer

KEY = "supervision.heads"
# Rows of the train split, drawn with the recipe's seed. With 2,500 tokens the standard error of an accuracy is below
# 1%.
MEASURED_ROWS = 1000


@dataclass(frozen=True)
class HeadChoice:
    """The `supervision.heads` of a recipe."""

    kind: str
    value: Any
    size: tuple[int | None, int | None] | None = None  # layers and heads of the model that a file is of

    def pick(self, accuracy: np.ndarray) -> list[Head]:
        """The chosen (layer, head) pairs, sorted."""
        heads = accuracy.shape[1]
        if self.kind == "list":
            return sorted({(layer, head) for layer, head in self.value})
        if self.kind == "layers":
            return [(layer, head) for layer in sorted(set(self.value)) for head in range(heads)]
        ranked = top_heads(accuracy)
        return sorted(ranked[: self.value] if self.kind == "best" else ranked[len(ranked) - self.value :])

    def options(self, pairs: list[Head]) -> Fields:
        """Options of a method that restrict it to the chosen heads."""
        if self.kind == "layers":
            return {"layers": sorted(set(self.value))}
        return {"heads": [list(p) for p in pairs]}


def read_choice(heads: Any) -> HeadChoice | None:
    """Parses `supervision.heads` of a recipe."""
    if heads == "all":
        return None
    if len(heads) != 1:
        raise RecipeError(f"{KEY} must be all or one of {', '.join(HEADS)}, found {heads!r}")
    ((kind, value),) = heads.items()
    if kind == "file":
        with recipe_key_errors(f"{KEY}.file"):
            read = ChosenHeads.from_file(value)
        return HeadChoice("list", [list(pair) for pair in read.heads], (read.layers, read.heads_per_layer))
    return HeadChoice(kind, value)


def check_heads(recipe: Recipe) -> None:
    """Checks that the methods support the choice of heads."""
    choice = read_choice(recipe.supervision.heads)
    if choice is None:
        return
    wanted = "layers" if choice.kind == "layers" else "heads"
    for name in recipe.methods:
        choosable = get_method(name).choosable
        if wanted not in choosable:
            can = f"can only choose {', '.join(choosable)}" if choosable else "supervises no heads"
            raise RecipeError(
                f"{KEY} chooses {wanted}, but method {name!r} {can}: remove the method from methods, or give {KEY}=all"
            )


def measure_heads(trainer: GroundingTrainer, seed: int) -> Fields:
    """Measures the grounding accuracy of every head on at most `MEASURED_ROWS` training rows."""
    rows = limit_rows(trainer.train_dataset, MEASURED_ROWS, seed)
    trainer.metrics = lambda: [AttentionGrounding(rollout=False)]
    numbers = trainer.measure(rows, "measure heads")
    if not numbers["text_to_region_tokens"]:
        raise RecipeError(
            f"{KEY}: no word of {len(rows)} training rows is grounded in a region, so no head can be chosen"
        )
    return {
        "rows": len(rows),
        "tokens": numbers["text_to_region_tokens"],
        "chance": numbers["text_to_region_chance"],
        "accuracy": numbers["text_to_region_by_head"],
        "intervals": numbers.get(INTERVALS),
        **({"layers": numbers[LAYERS]} if LAYERS in numbers else {}),
    }


def supervise_chosen(recipe: Recipe, measured: Columns) -> tuple[Recipe, Fields]:
    """Restricts the methods of a recipe, or the parts of them that choose heads, to the chosen heads."""
    choice = read_choice(recipe.supervision.heads)
    if choice is None:
        return recipe, {}
    of_layers = np.array(measured["accuracy"])
    numbers = measured.get("layers", range(len(of_layers)))
    accuracy = np.full((max(numbers) + 1, of_layers.shape[1]), np.nan)
    accuracy[list(numbers)] = of_layers
    if choice.size not in (None, accuracy.shape) and "layers" not in measured:
        layers, heads = accuracy.shape
        raise RecipeError(
            f"{KEY}.file: heads of a model with {choice.size[0]} layers of {choice.size[1]} heads, but this one has "
            f"{layers} layers of {heads} heads"
        )
    pairs = choice.pick(accuracy)
    chosen = choice.options(pairs)
    parts = []
    for name in recipe.methods:
        for part in split_name(name):
            if get_method(part).choosable:
                parts.append(part)
    options = {part: {**recipe.supervision.options.get(part, {}), **chosen} for part in parts}
    options = {**recipe.supervision.options, **options}
    heads = [{"layer": layer, "head": head, "accuracy": float(accuracy[layer, head])} for layer, head in pairs]
    record = {"choice": {choice.kind: choice.value}, "heads": heads, **measured}
    return replace(recipe, supervision=replace(recipe.supervision, options=options)), record
