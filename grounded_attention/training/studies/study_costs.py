# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the cells of a study cost: parameters of their models, seconds, training rows."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from grounded_attention.training.experiments.output import read_json

from .study_cells import FINISHED, START, Cell
from .study_recipe import Study


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
    """
    The costs of the finished cells.
    """
    found: dict[str, dict[str, list[Cell]]] = {row: {} for row in study.rows}
    for cell in cells:
        if cell.row is not None and cell.stage != START:
            for each in (*_starts_of(cell), cell):
                same = found[cell.row].setdefault(each.stage, [])
                if states[each.name] == FINISHED and each not in same:
                    same.append(each)
    return {row: {stage: _cost(same) for stage, same in by_stage.items() if same} for row, by_stage in found.items()}


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
        "seconds": _mean([record.get("seconds") for record in records]),
        "train_seconds": _mean(trained),
        "runs": max(record.get("runs", 1) for record in records),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known else None
