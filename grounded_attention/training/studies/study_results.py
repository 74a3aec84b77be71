# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The figures of the finished cells of a study, and the significant differences between its rows."""

from collections.abc import Iterable, Mapping
from typing import Any

from grounded_attention.metrics.significance import FEWEST_SEEDS, ItemScores, paired_difference
from grounded_attention.training.experiments.output import read_json
from grounded_attention.training.recipes.recipe import RecipeError

from .study_cells import FINISHED, Cell
from .study_recipe import Column, Study

BASELINES = ("majority", "chance", "upper_bound")
Items = Mapping[str, list]


def study_results(study: Study, cells: Iterable[Cell], states: Mapping[str, str]) -> dict[str, Any]:
    """
    All figures of the finished cells.

    Args:
        study (`Study`): the study.
        cells (`Iterable[Cell]`): its cells.
        states (`Mapping[str, str]`): cell name -> its state.

    Returns:
        `dict[str, Any]`: The content of `results.json`: `columns` (each with its number of items and images and its
        baselines), `rows` in order, `figures[row][column]` with `mean`, `seeds` (seed -> figure) and `differences`
        (other row -> `mean`, `low`, `high`, common `seeds`, `by_seed`, `claimed`), all of them shares in [0, 1].

    Raises:
        RecipeError: if the task of a column has not written the score of the column.
    """
    judged = {(c.row, c.seed, c.stage): c for c in cells if c.row is not None and states[c.name] == FINISHED}
    figures: dict[str, dict[str, Any]] = {row: {} for row in study.rows}
    columns = []
    for column in study.columns:
        runs = {row: _runs(study, row, column, judged) for row in study.rows}
        found = [items for of_row in runs.values() for items in of_row.values()]
        columns.append(_describe(column, found, judged))
        for row in study.rows:
            if runs[row]:
                others = {other: runs[other] for other in study.against if other in runs and other != row}
                figures[row][column.name] = _figure(runs[row], others)
    return {
        "study": study.name,
        "seeds": study.seeds,
        "rows": study.rows,
        "against": study.against,
        "fewest_seeds": FEWEST_SEEDS,
        "cells": {"finished": sum(state == FINISHED for state in states.values()), "all": len(states)},
        "columns": columns,
        "figures": figures,
        "notes": study.notes,
    }


def _score_name(column: Column, score: str) -> str:
    return f"{column.track}_{score}" if column.track else score


def _runs(study: Study, row: str, column: Column, judged: Mapping[Any, Cell]) -> dict[int, Items]:
    """Seed -> the items of the column, with `score`."""
    wanted = ((seed, judged.get((row, seed, column.task))) for seed in study.seeds)
    return {seed: _items(cell, column) for seed, cell in wanted if cell is not None}


def check_scores(study: Study, cell: Cell) -> None:
    """
    Checks, after a downstream task has finished, that it has written the scores of all its columns.

    Raises:
        RecipeError: if a score is missing; the message contains the column, the file and its scores.
    """
    for column in study.columns:
        if column.task == cell.stage:
            _items(cell, column)


def _items(cell: Cell, column: Column) -> Items:
    path, name = cell.checkpoint / f"items_{column.split}.json", _score_name(column, column.score)
    items = read_json(path)
    if items is None or name not in items:
        known = "the file does not exist" if items is None else f"found {', '.join(sorted(items))}"
        raise RecipeError(f"column {column.name!r}: no score {name!r} in {path}; {known}")
    counted = [number for number, value in enumerate(items[name]) if value is not None]
    columns = {"example_id": items["example_id"], "image_id": items["image_id"], "score": items[name]}
    return {key: [values[number] for number in counted] for key, values in columns.items()}


def _figure(runs: Mapping[int, Items], others: Mapping[str, Mapping[int, Items]]) -> dict[str, Any]:
    means = {seed: ItemScores.collect([items], "score").mean for seed, items in runs.items()}
    compared = {}
    for other, their in others.items():
        shared = [seed for seed in runs if seed in their]
        if shared:
            compared[other] = _difference([runs[seed] for seed in shared], [their[seed] for seed in shared], shared)
    mean = sum(means.values()) / len(means)
    return {"mean": mean, "seeds": {str(seed): value for seed, value in means.items()}, "differences": compared}


def _difference(mine: list[Items], their: list[Items], seeds: list[int]) -> dict[str, Any]:
    model, other = ItemScores.collect(mine, "score"), ItemScores.collect(their, "score")
    found = paired_difference(model, other)
    by_seed = (model.scores - other.scores).mean(axis=1).tolist()
    return {
        "mean": found.mean,
        "low": found.low,
        "high": found.high,
        "seeds": seeds,
        "by_seed": dict(zip(map(str, seeds), by_seed, strict=True)),
        "claimed": found.claimed,
    }


def _describe(column: Column, found: list[Items], judged: Mapping[Any, Cell]) -> dict[str, Any]:
    """The description of a column: name, task, split, score, counts and baselines."""
    images = len(set(found[0]["image_id"])) if found else None
    described: dict[str, Any] = {
        "name": column.name,
        "task": column.task,
        "split": column.split,
        "track": column.track,
    }
    described |= {"score": column.score, "items": len(found[0]["score"]) if found else None, "images": images}
    cell = next((cell for (_, _, stage), cell in judged.items() if stage == column.task), None)
    return described | {"baselines": _baselines(cell, column) if cell else {}}


def _baselines(cell: Cell, column: Column) -> dict[str, float]:
    """Baselines without training that the task reports for the score of the column."""
    figures = read_json(cell.checkpoint / "results.json").get("figures", {}).get(column.split, {})
    stem = column.score.removesuffix("accuracy")
    names = {kind: _score_name(column, stem + kind) for kind in BASELINES}
    return {kind: figures[name] for kind, name in names.items() if isinstance(figures.get(name), float)}
