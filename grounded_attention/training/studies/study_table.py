# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The numbers of the finished cells of a study, the significant differences between its rows, and their table."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grounded_attention.heads.attention_grounding import ROLLOUT, summarise
from grounded_attention.metrics.significance import FEWEST_SEEDS, ItemScores, paired_difference
from grounded_attention.training.experiments.measuring import on_track
from grounded_attention.training.experiments.output import read_json
from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.plain_text import markdown_table

from .study_recipe import FINE_TUNING, Column, Study

if TYPE_CHECKING:
    from .study import Cell

BASELINES = {"majority": "always the most frequent answer", "chance": "chance", "upper_bound": "best possible"}
GROUNDING = "text_to_region_"
# Numbers of the best of several layers or heads, which is chosen on another split.
CHOSEN = tuple(GROUNDING + kind for kind in ("all_heads", "best_layer", "best_head", "rollout"))
MISSING = "–"
STAR = "\\*"
Items = Mapping[str, list]


def study_results(study: Study, finished: Sequence["Cell"], counts: Mapping[str, int]) -> Fields:
    """The numbers of the finished cells, in [0, 1], and their differences."""
    columns = []
    numbers: dict[str, Fields] = {row: {} for row in study.sections.rows}
    for column in study.columns:
        cells = [cell for cell in finished if _is_of(cell, column, study)]
        runs: dict[str, dict[int, Items]] = {row: {} for row in study.sections.rows}
        for cell in cells:
            runs[str(cell.row)][int(cell.seed or 0)] = _scores(cell, column)
        columns.append(_describe(column, runs, cells))
        for row, own in runs.items():
            if own:
                numbers[row][column.name] = _number(own, {other: runs[other] for other in study.against_of(row)})
    return {
        "study": study.sections.study,
        "seeds": study.sections.seeds,
        "rows": study.sections.rows,
        "cells": dict(counts),
        "columns": columns,
        "figures": numbers,
        "notes": study.sections.notes,
    }


def check_scores(study: Study, cell: "Cell") -> None:
    """Checks, after a cell has finished, that it has written the scores of all its columns."""
    for column in study.columns:
        if _is_of(cell, column, study):
            _scores(cell, column)


def _is_of(cell: "Cell", column: Column, study: Study) -> bool:
    """Whether a column is about a cell: rows may have trainings of other tasks than that of `fine_tuning`."""
    return cell.stage == column.task and (cell.stage != FINE_TUNING or cell.recipe.task == study.tuned_task)


def _scores(cell: "Cell", column: Column) -> Items:
    """The items of the column, with `score`; a metric without items has one score, without ids."""
    path = cell.checkpoint / f"items_{column.split}.json"
    name = on_track(column.track, column.score)
    items = read_json(path) or {}
    if name in items:
        wanted = {"example_id": items["example_id"], "image_id": items["image_id"], "score": items[name]}
        scored = [place for place, value in enumerate(items[name]) if value is not None]
        return {key: [values[place] for place in scored] for key, values in wanted.items()}
    numbers = _numbers(cell.checkpoint, column.split)
    if isinstance(numbers.get(name), float):
        return {"score": [numbers[name]]}
    known = sorted({*items, *(key for key, value in numbers.items() if isinstance(value, float))})
    raise RecipeError(
        f"column {column.name!r}: no score {name!r} in {path}, and no such metric of the split {column.split} in "
        f"results.json beside it; found {', '.join(known) or 'none'}"
    )


def _numbers(checkpoint: Path, split: str) -> Fields:
    """The numbers of a split. The best layer and head are those of the validation split, if that is measured."""
    by_split = read_json(checkpoint / "results.json")["figures"]
    numbers = by_split.get(split, {})
    validation = by_split.get("validation", {})
    if ROLLOUT not in numbers or ROLLOUT not in validation:
        return numbers
    chosen = summarise(validation, numbers)
    return numbers | {name: chosen[name.removeprefix(GROUNDING)] for name in CHOSEN}


def _mean(items: Items) -> float:
    return float(np.mean(items["score"]))


def _number(runs: Mapping[int, Items], others: Mapping[str, Mapping[int, Items]]) -> Fields:
    means = {str(seed): _mean(items) for seed, items in runs.items()}
    differences = {}
    for other, their in others.items():
        seeds = [seed for seed in runs if seed in their]
        if seeds:
            difference = _difference([runs[seed] for seed in seeds], [their[seed] for seed in seeds])
            differences[other] = {"seeds": seeds, **difference}
    return {"mean": sum(means.values()) / len(means), "seeds": means, "differences": differences}


def _difference(mine: Sequence[Items], theirs: Sequence[Items]) -> Fields:
    """Paired by seed and item, with an interval; a metric without items has the lowest and the highest seed."""
    if "example_id" in mine[0]:
        paired = paired_difference(ItemScores.collect(mine, "score"), ItemScores.collect(theirs, "score"))
        ends = {"mean": paired.mean, "low": paired.low, "high": paired.high}
        return {**ends, "interval": True, "claimed": paired.claimed}
    by_seed = [_mean(own) - _mean(other) for own, other in zip(mine, theirs, strict=True)]
    ends = {"mean": sum(by_seed) / len(by_seed), "low": min(by_seed), "high": max(by_seed)}
    return {**ends, "interval": False, "claimed": False}


def _describe(column: Column, runs: Mapping[str, Mapping[int, Items]], cells: Sequence["Cell"]) -> Fields:
    """The name of a column, its counts, and the baselines that the task reports for its score."""
    described: Fields = {"name": column.name, "items": None, "images": None, "baselines": {}}
    for of_row in runs.values():
        for items in of_row.values():
            if "image_id" in items:
                described |= {"items": len(items["score"]), "images": len(set(items["image_id"]))}
    numbers = _numbers(cells[0].checkpoint, column.split) if cells else {}
    if column.score in CHOSEN:
        stem = GROUNDING
    else:
        stem = column.score.removesuffix("accuracy")
    for kind in BASELINES:
        value = numbers.get(on_track(column.track, stem + kind))
        if isinstance(value, float):
            described["baselines"][kind] = value
    return described


# The table


def study_table(results: Columns) -> str:
    """The numbers of every row and seed in percent, differences of rows in points, and what they mean."""
    columns = results["columns"]
    names = [column["name"] for column in columns]
    numbers = [[row, *(_cell_text(results, row, name) for name in names)] for row in results["rows"]]
    for kind, title in BASELINES.items():
        if any(kind in column["baselines"] for column in columns):
            numbers.append([f"*{title}*", *(_percent(column["baselines"].get(kind)) for column in columns)])
    parts = [markdown_table(["Row", *names], numbers)]
    differences = _differences(results)
    texts: dict[str, dict[str, str]] = {}
    for row, column, other, difference in differences:
        low = _points(difference["low"])
        high = _points(difference["high"])
        if difference["interval"]:
            ends = f"[{low}, {high}]"
        else:
            ends = f"({low} to {high})"
        texts.setdefault(f"{row} − {other}", {})[column] = (
            f"{_points(difference['mean'])}{STAR * difference['claimed']} {ends}"
        )
    if texts:
        rows = []
        for pair, of_pair in texts.items():
            rows.append([pair, *(of_pair.get(name, MISSING) for name in names)])
        parts.append(markdown_table(["Difference", *names], rows))
    notes = [*_notes(results, differences), *results["notes"]]
    parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _cell_text(results: Columns, row: str, column: str) -> str:
    number = results["figures"][row].get(column)
    if number is None:
        return MISSING
    seeds = " ".join(_percent(number["seeds"].get(str(seed))) for seed in results["seeds"])
    return f"{_percent(number['mean'])} ({seeds})"


def _differences(results: Columns) -> list[tuple[str, str, str, Columns]]:
    """Row, column, the row that it is compared with, and the difference."""
    found = []
    for row, of_row in results["figures"].items():
        for column, number in of_row.items():
            for other, difference in number["differences"].items():
                found.append((row, column, other, difference))
    return found


def _notes(results: Columns, differences: Sequence[tuple[str, str, str, Columns]]) -> Iterator[str]:
    """How the table is read, and what it claims."""
    sizes = [f"{c['name']}: {c['items']} items of {c['images']} images" for c in results["columns"] if c["items"]]
    yield (
        f"Percent, mean over seeds; in brackets each seed ({', '.join(map(str, results['seeds']))}). Differences in "
        "percentage points, paired by seed and item, with their 95% interval by a bootstrap over images and seeds in "
        "square brackets; where single items are not saved, the lowest and the highest seed in round ones. "
        + "; ".join(sizes)
    )
    claimed = []
    for row, column, other, difference in differences:
        if difference["claimed"]:
            claimed.append(f"{row} is {'better' if difference['mean'] > 0 else 'worse'} than {other} on {column}")
    if claimed:
        compared = sum(difference["interval"] for *_, difference in differences)
        yield (
            f"Claimed ({STAR}: {FEWEST_SEEDS} or more seeds, and the interval does not contain 0): "
            f"{'; '.join(claimed)}. Of {compared} compared differences about {compared * 0.05:.0f} would be claimed "
            "by chance."
        )
    else:
        yield f"No difference is claimed: none of {FEWEST_SEEDS} or more seeds has an interval without 0."
    cells = results["cells"]
    if cells["finished"] < cells["all"]:
        yield (
            f"Not complete: {cells['all'] - cells['finished']} of {cells['all']} cells are not trained yet. A row "
            "with missing seeds shows the mean of its seeds, and is compared on the seeds of both rows."
        )


def _percent(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{100 * value:.1f}"


def _points(value: float) -> str:
    text = f"{100 * value:+.1f}"
    if text in ("+0.0", "-0.0"):
        return "0.0"
    return text.replace("-", "−")
