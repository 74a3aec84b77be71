# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The numbers of the finished cells of a study, and the significant differences between its rows."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from transformers import AutoConfig

from grounded_attention.heads.attention_grounding import summarise
from grounded_attention.metrics.significance import FEWEST_SEEDS, ItemScores, paired_difference
from grounded_attention.modeling.attention_calls import layer_labels
from grounded_attention.supervision.supervise import find_calls
from grounded_attention.training.experiments.measuring import reported
from grounded_attention.training.experiments.output import read_json
from grounded_attention.training.recipes.recipe import RecipeError

from .study_cells import FINISHED, START, Cell
from .study_recipe import FINE_TUNING, Column, Study

BASELINES = ("majority", "chance", "upper_bound")
GROUNDING = "text_to_region_"
# Numbers of the best of several layers or heads, which is chosen on another split.
CHOSEN = tuple(GROUNDING + kind for kind in ("all_heads", "best_layer", "best_head", "rollout"))
Items = Mapping[str, list]


def study_results(study: Study, cells: Iterable[Cell], states: Mapping[str, str]) -> dict[str, Any]:
    """All numbers of the finished cells."""
    cells = list(cells)
    judged = {(c.row, c.seed, c.stage): c for c in cells if c.row is not None and states[c.name] == FINISHED}
    numbers: dict[str, dict[str, Any]] = {row: {} for row in study.rows}
    compared = {row: [other for other in study.against_of(row) if other in study.rows] for row in study.rows}
    columns = []
    for column in study.columns:
        runs = {row: _runs(study, row, column, judged) for row in study.rows}
        columns.append(_describe(study, column, runs, judged))
        for row in study.rows:
            if runs[row]:
                others = {other: runs[other] for other in compared[row]}
                numbers[row][column.name] = _number(runs[row], others)
    costs = study_costs(study, cells, states)
    return {
        "study": study.name,
        "seeds": study.seeds,
        "rows": study.rows,
        "against": study.against,
        "compared": compared,
        "fewest_seeds": FEWEST_SEEDS,
        "cells": {"finished": sum(state == FINISHED for state in states.values()), "all": len(states)},
        "columns": columns,
        "figures": numbers,
        "curves": {name: _points(study, columns, costs) for name, columns in study.curves.items()},
        "groups": study.groups,
        "costs": costs,
        "heads": study_heads(study, cells, states),
        "notes": study.notes,
    }


def _points(study: Study, columns: Mapping[str, int | None], costs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The columns of a learning curve with their numbers of training rows; all rows are those that a cell counted."""
    tasks = {column.name: column.task for column in study.columns}
    counted = {stage: cost["train_rows"] for of_row in costs.values() for stage, cost in of_row.items()}
    points = [{"column": name, "rows": counted.get(tasks[name]) or rows} for name, rows in columns.items()]
    return sorted((point for point in points if point["rows"] is not None), key=lambda point: point["rows"])


def _score_name(column: Column, score: str) -> str:
    return f"{column.track}_{score}" if column.track else score


def _runs(study: Study, row: str, column: Column, judged: Mapping[Any, Cell]) -> dict[int, Items]:
    """Seed -> the items of the column, with `score`; a metric without items has one score, without ids."""
    wanted = ((seed, judged.get((row, seed, column.task))) for seed in study.seeds)
    return {seed: _scores(cell, column) for seed, cell in wanted if cell is not None and _has_column(study, cell)}


def _has_column(study: Study, cell: Cell) -> bool:
    """Whether a cell is one that columns of its stage are about: rows may have trainings of other tasks."""
    return cell.stage != FINE_TUNING or cell.recipe.task == study.tuned_task


def check_scores(study: Study, cell: Cell) -> None:
    """Checks, after a cell has finished, that it has written the scores of all its columns."""
    for column in study.columns:
        if column.task == cell.stage and _has_column(study, cell):
            _scores(cell, column)


def _scores(cell: Cell, column: Column) -> Items:
    path, name = cell.checkpoint / f"items_{column.split}.json", _score_name(column, column.score)
    items = read_json(path) or {}
    if name in items:
        counted = [number for number, value in enumerate(items[name]) if value is not None]
        columns = {"example_id": items["example_id"], "image_id": items["image_id"], "score": items[name]}
        return {key: [values[number] for number in counted] for key, values in columns.items()}
    numbers = _numbers(cell, column.split)
    if isinstance(numbers.get(name), float):
        return {"score": [numbers[name]]}
    known = ", ".join(sorted({*items, *(key for key, value in numbers.items() if isinstance(value, float))}))
    raise RecipeError(
        f"column {column.name!r}: no score {name!r} in {path}, and no such metric of the split {column.split} in "
        f"results.json beside it; found {known or 'none'}"
    )


def _numbers(cell: Cell, split: str) -> dict[str, Any]:
    """The numbers of a split. The best layer and head are those of the validation split, if that is measured."""
    by_split = read_json(cell.checkpoint / "results.json")["figures"]
    numbers, validation = by_split.get(split, {}), by_split.get("validation", {})
    if all(GROUNDING + "rollout_by_layer" in measured for measured in (numbers, validation)):
        chosen = summarise(validation, numbers)
        return numbers | {name: chosen[name.removeprefix(GROUNDING)] for name in CHOSEN}
    return numbers


def _mean(items: Items) -> float:
    """The mean of the items, or the metric without items."""
    return ItemScores.collect([items], "score").mean if "example_id" in items else items["score"][0]


def _number(runs: Mapping[int, Items], others: Mapping[str, Mapping[int, Items]]) -> dict[str, Any]:
    means = {seed: _mean(items) for seed, items in runs.items()}
    compared = {}
    for other, their in others.items():
        shared = [seed for seed in runs if seed in their]
        if shared:
            compared[other] = _difference([runs[seed] for seed in shared], [their[seed] for seed in shared], shared)
    mean = sum(means.values()) / len(means)
    return {"mean": mean, "seeds": {str(seed): value for seed, value in means.items()}, "differences": compared}


def _difference(mine: Sequence[Items], their: Sequence[Items], seeds: list[int]) -> dict[str, Any]:
    if not all("example_id" in items for items in (*mine, *their)):
        by_seed = [_mean(ours) - _mean(theirs) for ours, theirs in zip(mine, their, strict=True)]
        low, high, mean, interval, claimed = min(by_seed), max(by_seed), sum(by_seed) / len(by_seed), False, False
    else:
        model, other = ItemScores.collect(mine, "score"), ItemScores.collect(their, "score")
        paired = paired_difference(model, other)
        by_seed = (model.scores - other.scores).mean(axis=1).tolist()
        low, high, mean, interval, claimed = paired.low, paired.high, paired.mean, True, paired.claimed
    return {
        "mean": mean,
        "low": low,
        "high": high,
        "interval": interval,
        "seeds": seeds,
        "by_seed": dict(zip(map(str, seeds), by_seed, strict=True)),
        "claimed": claimed,
    }


def _describe(
    study: Study, column: Column, runs: Mapping[str, Mapping[int, Items]], judged: Mapping[Any, Cell]
) -> dict[str, Any]:
    """The description of a column: name, task, split, score, counts and baselines."""
    scored = [items for of_row in runs.values() for items in of_row.values() if "image_id" in items]
    images = len(set(scored[0]["image_id"])) if scored else None
    described: dict[str, Any] = {
        "name": column.name,
        "task": column.task,
        "split": column.split,
        "track": column.track,
    }
    described |= {"score": column.score, "items": len(scored[0]["score"]) if scored else None, "images": images}
    cell = next((c for (_, _, stage), c in judged.items() if stage == column.task and _has_column(study, c)), None)
    return described | {"baselines": _baselines(cell, column) if cell else {}}


def _baselines(cell: Cell, column: Column) -> dict[str, float]:
    """Baselines without training that the task reports for the score of the column."""
    numbers = _numbers(cell, column.split)
    stem = GROUNDING if column.score in CHOSEN else column.score.removesuffix("accuracy")
    names = {kind: _score_name(column, stem + kind) for kind in BASELINES}
    return {kind: numbers[name] for kind, name in names.items() if isinstance(numbers.get(name), float)}


def count_parameters(checkpoint: Path) -> int:
    """The number of saved weights of a checkpoint; tied weights are saved, and counted, once."""
    sizes: dict[str, int] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            sizes |= {name: math.prod(file.get_slice(name).get_shape()) for name in file.keys()}
    return sum(sizes.values())


def study_costs(
    study: Study, cells: Iterable[Cell], states: Mapping[str, str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """The costs of the finished cells."""
    of_row: dict[str, dict[str, list[Cell]]] = {row: {} for row in study.rows}
    for cell in cells:
        if cell.row is not None and cell.stage != START:
            for each in (*_starts_of(cell), cell):
                same = of_row[cell.row].setdefault(each.stage, [])
                if states[each.name] == FINISHED and each not in same:
                    same.append(each)
    return {row: {stage: _cost(same) for stage, same in by_stage.items() if same} for row, by_stage in of_row.items()}


def _starts_of(cell: Cell) -> Iterator[Cell]:
    """The start that a cell was trained from."""
    parent = cell.parent
    while parent is not None:
        if parent.stage == START:
            yield parent
        parent = parent.parent


def _cost(cells: list[Cell]) -> dict[str, Any]:
    records = [cell.record or {} for cell in cells]
    trained = [read_json(cell.checkpoint / "results.json").get("train_seconds") for cell in cells]
    return {
        "parameters": records[0].get("parameters"),
        "train_rows": records[0].get("train_rows"),
        "seconds": _mean_seconds([record.get("seconds") for record in records]),
        "train_seconds": _mean_seconds(trained),
        "runs": max(record.get("runs", 1) for record in records),
    }


def _mean_seconds(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known else None


def study_heads(study: Study, cells: Iterable[Cell], states: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The accuracy of each head, mean over seeds."""
    measured: dict[str, dict[str, list[tuple[Cell, Mapping[str, Any]]]]] = {}
    for cell in cells:
        if study.start_each_seed and cell.seed != study.seeds[0]:
            continue
        if cell.stage == FINE_TUNING and cell.row is not None and states[cell.name] == FINISHED:
            numbers = reported(read_json(cell.checkpoint / "results.json")["figures"])
            if "text_to_region_by_head" in numbers:
                rows = measured.setdefault(start_name(study, cell.row), {})
                rows.setdefault(cell.row, []).append((cell, numbers))
    return {start: _heads(rows) for start, rows in measured.items()}


def start_name(study: Study, row: str) -> str:
    """The name of a row's start: `original`, the name of a shared start, or the row itself if it has its own."""
    start = study.known_rows[row].start
    if start is None:
        return "original"
    return start if isinstance(start, str) else row


def _heads(rows: Mapping[str, list[tuple[Cell, Mapping[str, Any]]]]) -> dict[str, Any]:
    cell, numbers = next(iter(rows.values()))[0]
    accuracy = {
        row: np.mean([measured["text_to_region_by_head"] for _, measured in runs], axis=0).tolist()
        for row, runs in rows.items()
    }
    labels = layer_labels(find_calls(AutoConfig.from_pretrained(cell.checkpoint)))
    return {"layers": labels, "chance": numbers["text_to_region_chance"], "accuracy": accuracy}
