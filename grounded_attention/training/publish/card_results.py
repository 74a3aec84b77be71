# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The numbers of a run for its card: tables, `model-index`, `.eval_results`."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from huggingface_hub import EvalResult, EvalResultEntry, eval_result_entries_to_yaml

from grounded_attention.heads.attention_grounding import INTERVALS, summarise
from grounded_attention.metrics.intervals import interval_text
from grounded_attention.tasks import Task
from grounded_attention.training.experiments.measuring import scored_splits
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.plain_text import markdown_table

ACCURACY = "_accuracy"
HEADS = "text_to_region"
COLUMNS = ("accuracy", "split", "this model", "95 % interval", "number", "majority", "chance")
HEAD_NUMBERS = {
    "all_heads": "mean over all heads",
    "best_layer": "best layer",
    "best_head": "best head",
    "rollout": "rollout",
}

Numbers = Mapping[str, Columns]


def headline_numbers(numbers: Numbers) -> Iterator[tuple[str, str, float]]:
    """Yields (split, metric, value) for every accuracy of the reported splits."""
    for name, measured in scored_splits({name: dict(values) for name, values in numbers.items()}).items():
        if not measured:  # only losses were measured
            return
        split = name or next(split for split, values in numbers.items() if values == measured)
        floats = {key: value for key, value in measured.items() if isinstance(value, float)}
        yield from ((split, key, value) for key, value in floats.items() if key.endswith(ACCURACY))
        if f"{HEADS}_by_head" in measured and "validation" in numbers:
            chosen = summarise(numbers["validation"], measured)
            yield from ((split, f"{HEADS}_{key}", chosen[key]) for key in HEAD_NUMBERS if key in chosen)


def result_table(numbers: Numbers) -> str:
    """A Markdown table with one row per metric, and the most frequent class and chance where they are known."""
    rows = []
    for split, name, value in headline_numbers(numbers):
        beside = numbers.get(split, {})
        if name.startswith(f"{HEADS}_"):
            key = name.removeprefix(f"{HEADS}_")
            title = f"words attend to a gold region, {HEAD_NUMBERS[key]}"
            stem = HEADS
            counted = "tokens"
            ends = None
            if key == "best_head" and beside:
                ends = summarise(numbers["validation"], beside)["interval"]
        else:
            stem = name.removesuffix(ACCURACY)
            counted = "count"
            ends = None
            title = stem.replace("_", " ")
        number = str(beside.get(f"{stem}_{counted}", "–"))
        others = [_shown(beside.get(f"{stem}_{kind}")) for kind in ("majority", "chance")]
        rows.append((title, split, _shown(value), _interval(ends), number, *others))
    if not rows:
        return "Only the losses were measured, see `history.json`."
    shown = markdown_table(COLUMNS, rows)
    if any(HEAD_NUMBERS["best_head"] in row[0] for row in rows):
        return f"{shown}\n\n{_how_chosen(rows)}"
    return shown


def _how_chosen(rows: Sequence[Sequence[str]]) -> str:
    """States on which rows layers and heads were chosen."""
    rollout = any(HEAD_NUMBERS["rollout"] in title for title, *_ in rows)
    chosen = "Best layer, best head and the rollout's layer" if rollout else "Best layer and best head"
    if all(split == "validation" for _, split, *_ in rows):
        return f"{chosen} were chosen on the same rows that they are reported on."
    return f"{chosen} were chosen on the validation split."


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}"


def _interval(ends: Sequence[float] | None) -> str:
    if ends is None:
        return "–"
    return interval_text((ends[0], ends[1]), ".3f")


def head_table(grounding: Columns) -> str:
    """A Markdown table with the grounding accuracy of each layer; empty if heads were not measured."""
    by_head = grounding.get(f"{HEADS}_by_head")
    if by_head is None:
        return ""
    accuracy = np.array(by_head)
    share = np.array(grounding[f"{HEADS}_share_by_head"])
    ends = grounding.get(INTERVALS)
    rows = []
    for place, layer in enumerate(grounding.get(f"{HEADS}_layers", range(len(accuracy)))):
        best = int(accuracy[place].argmax())
        shown = _interval(ends and [ends[end][place][best] for end in ("low", "high")])
        means = _shown(accuracy[place].mean()), _shown(share[place].mean())
        rows.append((str(layer), means[0], str(best), _shown(accuracy[place, best]), shown, means[1]))
    head = ("layer", "mean over heads", "best head", "its accuracy", "95 % interval", "attention on regions")
    text = (
        f"Share of the {grounding[f'{HEADS}_tokens']:,} grounded words whose most-attended region is a gold region. "
        f"Chance is {grounding[f'{HEADS}_chance']:.3f}. Layers and heads count from 0; the last column is the share "
        "of a word's attention that goes to regions. The best head of a layer is chosen on these same words."
    )
    return f"{text}\n\n{markdown_table(head, rows)}"


def eval_results(numbers: Numbers, task: Task, dataset: str, dataset_name: str) -> list[EvalResult] | None:
    """The numbers for `model-index`; `None` if there are none."""
    results = []
    for split, name, value in headline_numbers(numbers):
        results.append(
            EvalResult(
                task.hub_task, dataset, dataset_name, name, round(value, 4), task_name=task.name, dataset_split=split
            )
        )
    return results or None


def eval_entries(numbers: Numbers, dataset_id: str | None, commit: str | None = None) -> list[Fields]:
    """The numbers for `.eval_results`, which needs a Hub data set; empty without one."""
    if dataset_id is None:
        return []
    entries = []
    for split, name, value in headline_numbers(numbers):
        entries.append(EvalResultEntry(dataset_id, f"{split}_{name}", round(value, 4), dataset_revision=commit))
    return eval_result_entries_to_yaml(entries)
