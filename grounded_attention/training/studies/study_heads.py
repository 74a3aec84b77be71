# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The grounding accuracy of each head after the rows' own trainings, by start model, for figures of heads."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from transformers import AutoConfig

from grounded_attention.modeling.attention_calls import layer_labels
from grounded_attention.supervision.supervise import find_calls
from grounded_attention.training.experiments.measuring import reported
from grounded_attention.training.experiments.output import read_json

from .study_cells import FINISHED, Cell
from .study_recipe import FINE_TUNING, Study


def study_heads(study: Study, cells: Iterable[Cell], states: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """
    The accuracy of each head, mean over seeds. If every seed has its own start, a head of one is not that of another:
    then the accuracy is that of the first seed.
    """
    measured: dict[str, dict[str, list[tuple[Cell, Mapping[str, Any]]]]] = {}
    for cell in cells:
        if study.start_each_seed and cell.seed != study.seeds[0]:
            continue
        if cell.stage == FINE_TUNING and cell.row is not None and states[cell.name] == FINISHED:
            figures = reported(read_json(cell.checkpoint / "results.json")["figures"])
            if "text_to_region_by_head" in figures:
                rows = measured.setdefault(start_name(study, cell.row), {})
                rows.setdefault(cell.row, []).append((cell, figures))
    return {start: _heads(rows) for start, rows in measured.items()}


def start_name(study: Study, row: str) -> str:
    """The name of a row's start: `original`, the name of a shared start, or the row itself if it has its own."""
    start = study.known_rows[row].start
    if start is None:
        return "original"
    return start if isinstance(start, str) else row


def _heads(rows: Mapping[str, list[tuple[Cell, Mapping[str, Any]]]]) -> dict[str, Any]:
    cell, figures = next(iter(rows.values()))[0]
    accuracy = {
        row: np.mean([found["text_to_region_by_head"] for _, found in runs], axis=0).tolist()
        for row, runs in rows.items()
    }
    labels = layer_labels(find_calls(AutoConfig.from_pretrained(cell.checkpoint)))
    return {"layers": labels, "chance": figures["text_to_region_chance"], "accuracy": accuracy}
