# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The results of a study: Markdown tables of numbers, differences and costs, and a chart of the differences.

The input of both is the content of the study's `results.json`:

    {"seeds": [1, 2], "rows": ["original", "direct"], "against": ["original"], "compared": {"direct": ["original"]},
     "fewest_seeds": 5, "cells": {"finished": 8, "all": 9}, "notes": ["..."],
     "columns": [{"name", "split", "items", "images", "baselines": {"chance": 0.1}}],
     "figures": {row: {column: {"mean", "seeds": {"1": 0.5}, "differences": {other: {"mean", "low", "high",
        "interval": true, "seeds": [1], "by_seed": {"1": 0.1}, "claimed"}}}}},
     "costs": {row: {stage: {"parameters", "train_rows", "seconds", "train_seconds", "runs"}}}}

Numbers are in [0, 1]. They are shown in percent, differences in percentage points. A missing row or number is shown as
a dash.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grounded_attention.utils.plain_text import markdown_table

from .colours import BLUE, GREY, VERMILLION
from .figure_style import DPI, WIDTH, panels, save

MISSING = "–"
BASELINES = {"majority": "always the most frequent answer", "chance": "chance", "upper_bound": "best possible"}
PANELS_ACROSS = 4


def study_table(results: Mapping[str, Any]) -> str:
    """Makes the table: numbers of every row and seed, differences to other rows, and notes on their meaning."""
    sections = [_numbers_table(results)]
    sections += [text for other in _others(results) if (text := _differences_table(results, other))]
    sections += [text] if (text := _costs_table(results)) else []
    notes = [_read(results), *_claims(results), *_spread(results), *_missing(results), *_costs(results)]
    notes += results["notes"]
    return "\n\n".join([*sections, "\n".join(f"- {note}" for note in notes)]) + "\n"


def _numbers_table(results: Mapping[str, Any]) -> str:
    names = [column["name"] for column in results["columns"]]
    best = {name: _best(results, name) for name in names}
    rows = [[row, *(_cell(results, row, name, best[name]) for name in names)] for row in results["rows"]]
    for kind, title in BASELINES.items():
        shares = [column["baselines"].get(kind) for column in results["columns"]]
        if any(value is not None for value in shares):
            rows.append([f"*{title}*", *(MISSING if value is None else _percent(value) for value in shares)])
    return markdown_table(["Row", *names], rows)


def _cell(results: Mapping[str, Any], row: str, column: str, best: Sequence[str]) -> str:
    cell = results["figures"][row].get(column)
    if cell is None:
        return MISSING
    mean, seeds = _percent(cell["mean"]), [cell["seeds"].get(str(seed)) for seed in results["seeds"]]
    return f"{f'**{mean}**' if row in best else mean} ({' '.join(map(_percent_or_dash, seeds))})"


def _best(results: Mapping[str, Any], column: str) -> tuple[str, ...]:
    """The rows with the highest printed mean among those with the most seeds; empty if there is only one such row."""
    cells_of_rows = {row: cells[column] for row, cells in results["figures"].items() if column in cells}
    most = max((len(cell["seeds"]) for cell in cells_of_rows.values()), default=0)
    full = {row: float(_percent(cell["mean"])) for row, cell in cells_of_rows.items() if len(cell["seeds"]) == most}
    return tuple(row for row, mean in full.items() if mean == max(full.values())) if len(full) > 1 else ()


def _others(results: Mapping[str, Any]) -> list[str]:
    """The rows that others are compared with, those of the whole study first."""
    own = [other for row in results["rows"] for other in results["compared"][row]]
    return list(dict.fromkeys([*results["against"], *own]))


def _differences_table(results: Mapping[str, Any], other: str) -> str:
    """The difference of each row to another one; empty if there is nothing to compare."""
    names = [column["name"] for column in results["columns"]]
    rows = [
        [row, *(_compared(results, row, name, other) for name in names)] for row in results["rows"] if row != other
    ]
    rows = [row for row in rows if any(cell != MISSING for cell in row[1:])]
    return markdown_table([f"Difference to {other}", *names], rows) if rows else ""


def _compared(results: Mapping[str, Any], row: str, column: str, other: str) -> str:
    difference = _difference(results, row, column, other)
    if difference is None:
        return MISSING
    mark = "\\*" if difference["claimed"] else ""
    low, high = _points(difference["low"]), _points(difference["high"])
    return f"{_points(difference['mean'])}{mark} " + (
        f"[{low}, {high}]" if difference["interval"] else f"({low} to {high})"
    )


def _difference(results: Mapping[str, Any], row: str, column: str, other: str) -> dict[str, Any] | None:
    return results["figures"].get(row, {}).get(column, {}).get("differences", {}).get(other)


# Costs


def _costs_table(results: Mapping[str, Any]) -> str:
    """Parameters, and seconds of training of each stage; empty before any cell has finished."""
    stages = list(dict.fromkeys(stage for row in results["rows"] for stage in results["costs"][row]))
    stages.sort(key=lambda stage: (stage != "start", stage != "fine_tuning"))  # then the tasks in their order
    rows = [
        [row, _parameters(costs, results), *(_seconds(costs.get(stage)) for stage in stages)]
        for row, costs in ((row, results["costs"][row]) for row in results["rows"])
        if costs
    ]
    return markdown_table(["Row", "parameters", *(f"{stage}, seconds" for stage in stages)], rows) if rows else ""


def _parameters(costs: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """The parameters of the model of the first downstream task that has finished."""
    tasks = [column["task"] for column in results["columns"] if column["task"] in costs]
    known = [costs[task]["parameters"] for task in tasks if task != "fine_tuning"]
    return f"{known[0]:,}" if known and known[0] else MISSING


def _seconds(cost: Mapping[str, Any] | None) -> str:
    if cost is None or cost["train_seconds"] is None:
        return MISSING
    return f"{cost['train_seconds']:,.0f}" + ("†" if cost["runs"] > 1 else "")


def _costs(results: Mapping[str, Any]) -> list[str]:
    """Notes on the costs."""
    costs = [cost for of_row in results["costs"].values() for cost in of_row.values()]
    if not costs:
        return []
    notes = [
        "Costs: parameters of the model of the first downstream task; seconds of training without data and "
        "measurements, mean over seeds, as measured in this run: cells that ran side by side shared the machine."
    ]
    if any(cost["runs"] > 1 for cost in costs):
        notes.append("†: a cell was interrupted and continued; the seconds are those of its last run.")
    return notes


# Notes


def _read(results: Mapping[str, Any]) -> str:
    seeds = ", ".join(map(str, results["seeds"]))
    sizes = [
        f"{column['name']}: {column['items']} items of {column['images']} images"
        for column in results["columns"]
        if column["items"] is not None
    ]
    items = f" {'; '.join(sizes)}." if sizes else ""
    return (
        f"Percent, mean over seeds; in brackets each seed ({seeds}). Bold: best row of the column among those with "
        "the most seeds. Differences in percentage points with their 95% interval: paired by seed and item, bootstrap "
        f"over images and seeds.{items}"
    )


def _claims(results: Mapping[str, Any]) -> list[str]:
    """Notes on the significant differences."""
    compared, claimed = [], []
    for other in _others(results):
        for column in results["columns"]:
            for row in results["rows"]:
                difference = _difference(results, row, column["name"], other)
                if difference is not None and difference["interval"]:
                    compared.append(difference)
                    if difference["claimed"]:
                        better = "better" if difference["mean"] > 0 else "worse"
                        claimed.append(f"{row} is {better} than {other} on {column['name']}")
    if not compared:
        return ["No difference is claimed, because no two rows can be compared yet."]
    seeds = max(len(difference["seeds"]) for difference in compared)
    if seeds < results["fewest_seeds"]:
        few = f"{seeds} seed{'s' * (seeds > 1)}"
        return [
            f"No difference is claimed: a claim needs {results['fewest_seeds']} seeds, and only {few} can be "
            "compared. With fewer seeds the intervals contain little information about chance in training."
        ]
    if not claimed:
        return [f"No difference is claimed: every interval of {results['fewest_seeds']} or more seeds contains 0."]
    expected = len(compared) * 0.05
    return [
        f"Claimed (marked \\*; the interval of {results['fewest_seeds']} or more seeds does not contain 0): "
        f"{'; '.join(claimed)}. All other differences are not claimed.",
        f"{len(compared)} differences are compared; about {expected:.0f} would be claimed by chance if none existed.",
    ]


def _spread(results: Mapping[str, Any]) -> list[str]:
    """A note on differences without an interval."""
    differences = [
        difference
        for of_row in results["figures"].values()
        for number in of_row.values()
        for difference in number["differences"].values()
    ]
    if all(difference["interval"] for difference in differences):
        return []
    return [
        "A difference in round brackets has no interval, because single items are not saved: the brackets contain the "
        "lowest and the highest seed, and nothing is claimed."
    ]


def _missing(results: Mapping[str, Any]) -> list[str]:
    finished, cells = results["cells"]["finished"], results["cells"]["all"]
    if finished == cells:
        return []
    return [
        f"Not complete: {cells - finished} of {cells} cells are not trained yet. A row with missing seeds shows the "
        "mean of its seeds, and is compared on the seeds of both rows."
    ]


# Numbers as text


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _percent_or_dash(value: float | None) -> str:
    return MISSING if value is None else _percent(value)


def _points(value: float) -> str:
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


# The chart


def differences_figure(results: Mapping[str, Any], path: str | Path) -> Figure:
    """Draws one panel per column: the difference of every row to the first row that it is compared with."""
    common, columns = results["against"][0], results["columns"]
    pairs = [(row, others[0]) for row, others in results["compared"].items() if others and row != common]
    one = {other for _, other in pairs} <= {common}
    across = min(len(columns), PANELS_ACROSS)
    down = math.ceil(len(columns) / across)
    size = (WIDTH / DPI, down * (0.26 * max(len(pairs), 3) + 1.0) + 0.6)
    figure, grid = panels(len(columns), across, size, sharey=True)
    for axes, column in zip(grid, columns, strict=True):
        _panel(axes, results, column["name"], pairs)
        reference = results["figures"].get(common, {}).get(column["name"])
        value = MISSING if reference is None else _percent(reference["mean"])
        axes.set_title(f"{column['name']}\n{common} {value}" if one else column["name"], fontsize=8)
    grid[0].set_ylim(max(len(pairs), 1) - 0.5, -0.5)
    grid[0].set_yticks(range(len(pairs)), [row if one else f"{row} − {other}" for row, other in pairs], fontsize=8)
    for axes in grid[::across]:
        axes.tick_params(axis="y", labelsize=8)
    title = f"Difference{f' to {common}' if one else ''}, percentage points: dots are seeds, lines 95% intervals\n"
    figure.suptitle(title + f"(square: claimed, needs {results['fewest_seeds']} seeds)", fontsize=10)
    return save(figure, path)


def _panel(axes: Axes, results: Mapping[str, Any], column: str, pairs: Sequence[tuple[str, str]]) -> None:
    axes.axvline(0, color="black", lw=1)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", lw=0.4, color="#dddddd")
    for place, (row, other) in enumerate(pairs):
        difference = _difference(results, row, column, other)
        if difference is not None:
            _draw_difference(axes, place, difference)


def _draw_difference(axes: Axes, place: int, difference: Mapping[str, Any]) -> None:
    claimed = difference["claimed"]
    colour = (BLUE if difference["mean"] > 0 else VERMILLION) if claimed else GREY
    line: dict[str, Any] = {
        "color": colour,
        "lw": 2.5 if claimed else 1.2,
        "ls": "-" if difference["interval"] else ":",
    }
    axes.plot([100 * difference["low"], 100 * difference["high"]], [place] * 2, **line)
    shape, inside = ("s", colour) if claimed else ("o", "white")
    axes.plot([100 * difference["mean"]], [place], color=colour, marker=shape, mfc=inside, ms=6, ls="")
    values = [100 * value for value in difference["by_seed"].values()]
    axes.plot(values, [place + 0.25] * len(values), color="black", marker=".", ms=3, ls="")
