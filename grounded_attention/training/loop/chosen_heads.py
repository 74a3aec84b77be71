# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which heads are supervised: all, those that ground best or worst before supervision, some layers, or a list.

Shape letters: L layers, H heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import AutoConfig

from grounded_attention.families import FAMILIES
from grounded_attention.metrics.attention_grounding import AttentionGrounding
from grounded_attention.modeling.attention_calls import layer_names
from grounded_attention.modeling.bert_start import read_bert_config
from grounded_attention.supervision import get_method
from grounded_attention.supervision.supervise import find_calls
from grounded_attention.training.recipes.model_family import family_name
from grounded_attention.training.recipes.recipe import Model, Recipe, RecipeError, blame, check_names

from .data import limit_rows
from .trainer import GroundingTrainer

KEY = "supervision.heads"
KINDS = ("best", "worst", "layers", "list")
# Of the train split, drawn by the recipe's seed: the standard error of an accuracy is below 1% from 2,500 tokens on.
MEASURED_ROWS = 1000


@dataclass(frozen=True)
class HeadChoice:
    """A recipe's `supervision.heads`.

    Args:
        kind (`str`): `best`, `worst`, `layers` or `list`.
        value (`Any`): how many heads, the layers, or (layer, head) pairs.
    """

    kind: str
    value: Any

    def pick(self, accuracy: np.ndarray) -> list[tuple[int, int]]:
        """The chosen (layer, head) pairs, in order.

        Args:
            accuracy (`np.ndarray`): (L, H) grounding accuracy before supervision; of equal ones the first counts as
                better.
        """
        layers, heads = accuracy.shape
        if self.kind == "list":
            return sorted({(layer, head) for layer, head in self.value})
        if self.kind == "layers":
            return [(layer, head) for layer in sorted(set(self.value)) for head in range(heads)]
        order = np.argsort(-accuracy, axis=None, kind="stable")
        chosen = order[: self.value] if self.kind == "best" else order[layers * heads - self.value :]
        return sorted((int(place) // heads, int(place) % heads) for place in chosen)

    def options(self, pairs: list[tuple[int, int]]) -> dict[str, Any]:
        """The options of a method that confine it to the chosen heads."""
        return {"layers": sorted(set(self.value))} if self.kind == "layers" else {"heads": [list(p) for p in pairs]}


def read_choice(heads: Any) -> HeadChoice | None:
    """`supervision.heads` as a recipe has it; None for all heads.

    Raises:
        RecipeError: neither `all` nor one of the forms of `KINDS`.
    """
    if heads == "all":
        return None
    if not isinstance(heads, Mapping) or len(heads) != 1:
        raise RecipeError(
            f"{KEY} is {heads!r}, expected all, {{best: k}}, {{worst: k}}, {{layers: [..]}} or {{list: [..]}}"
        )
    check_names(heads, KINDS, f"{KEY}.")
    ((kind, value),) = heads.items()
    if kind in ("best", "worst"):
        good, expected = _is_index(value) and value > 0, "a number of heads from 1 on"
    elif kind == "layers":
        good, expected = _is_list(value) and all(map(_is_index, value)), "layers from 0 on, at least one"
    else:
        good = _is_list(value) and all(_is_list(p) and len(p) == 2 and all(map(_is_index, p)) for p in value)
        expected = "pairs [layer, head], each from 0 on, at least one"
    if not good:
        raise RecipeError(f"{KEY}.{kind} is {value!r}, expected {expected}")
    return HeadChoice(kind, value)


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def check_heads(recipe: Recipe) -> None:
    """Refuses a choice that the methods can't follow, or that the model has not.

    Raises:
        RecipeError: names the method, the option or the head.
    """
    choice = read_choice(recipe.supervision.heads)
    if choice is None:
        return
    wanted = "layers" if choice.kind == "layers" else "heads"
    for name in recipe.methods:
        _check_method(name, wanted, recipe.supervision.options.get(name, {}))
    _check_sizes(choice, *model_sizes(recipe.model))


def _check_method(name: str, wanted: str, options: Mapping[str, Any]) -> None:
    choosable = get_method(name).choosable
    if wanted not in choosable:
        can = f"only {', '.join(choosable)}" if choosable else "supervises none"
        raise RecipeError(
            f"{KEY} chooses {wanted}, but of these method {name!r} {'chooses ' if choosable else ''}{can}: "
            f"leave it out of methods, or give {KEY}=all"
        )
    given = [option for option in ("layers", "heads") if options.get(option) is not None]
    if given:
        raise RecipeError(f"{KEY} and supervision.options.{name}.{given[0]} both choose what is supervised: give one")


def model_sizes(model: Model) -> tuple[int, int]:
    """Layers and heads of the recipe's model, which is not loaded for it."""
    name = model.source or model.bert
    with blame(f"model.{'source' if model.source else 'bert'} {name}" if name else "model.config"):
        if model.source:
            config = AutoConfig.from_pretrained(model.source, **model.config)
        else:
            made: Any = FAMILIES[family_name(model)].config_class
            config = made(**{**(read_bert_config(model.bert) if model.bert else {}), **model.config})
    calls = find_calls(config)
    return len(layer_names(calls)), min(call.num_heads for call in calls)


def _check_sizes(choice: HeadChoice, layers: int, heads: int) -> None:
    if choice.kind in ("best", "worst"):
        beyond = choice.value > layers * heads
    elif choice.kind == "layers":
        beyond = max(choice.value) >= layers
    else:
        beyond = any(layer >= layers or head >= heads for layer, head in choice.value)
    if beyond:
        raise RecipeError(
            f"{KEY}.{choice.kind} is {choice.value!r}, but the model has {layers} layers of {heads} heads"
        )


def measure_heads(trainer: GroundingTrainer, seed: int) -> dict[str, Any]:
    """Where the heads of the trainer's model look, on at most `MEASURED_ROWS` of the rows it is to train on.

    Returns:
        `rows`, `tokens` (grounded words counted), `chance`, and `accuracy`, lists (L, H).

    Raises:
        RecipeError: no word of these rows is grounded.
    """
    rows = limit_rows(trainer.train_dataset, MEASURED_ROWS, seed)
    trainer.metrics = lambda: [AttentionGrounding(rollout=False)]
    figures = trainer.measure(rows, "measure heads")
    if not figures["text_to_region_tokens"]:
        raise RecipeError(
            f"{KEY}: no word of {len(rows)} training rows is grounded in a region, so no head can be chosen"
        )
    return {
        "rows": len(rows),
        "tokens": figures["text_to_region_tokens"],
        "chance": figures["text_to_region_chance"],
        "accuracy": figures["text_to_region_by_head"],
    }


def supervise_chosen(recipe: Recipe, measured: Mapping[str, Any]) -> tuple[Recipe, dict[str, Any]]:
    """The recipe whose methods supervise the chosen heads alone, and what is recorded of them.

    The record holds the measurement and `heads`: `{layer, head, accuracy}` of each chosen head.
    """
    choice = read_choice(recipe.supervision.heads)
    if choice is None:
        return recipe, {}
    accuracy = np.array(measured["accuracy"])
    pairs = choice.pick(accuracy)
    chosen = choice.options(pairs)
    options = {name: {**recipe.supervision.options.get(name, {}), **chosen} for name in recipe.methods}
    options = {**recipe.supervision.options, **options}
    heads = [{"layer": layer, "head": head, "accuracy": float(accuracy[layer, head])} for layer, head in pairs]
    record = {"choice": {choice.kind: choice.value}, "heads": heads, **measured}
    return replace(recipe, supervision=replace(recipe.supervision, options=options)), record
