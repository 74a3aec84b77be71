# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The tables that compare the models of a run: Markdown, aligned for a terminal."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from grounded_attention.heads.attention_grounding import summarise
from grounded_attention.metrics.significance import Estimate
from grounded_attention.utils.named_types import Columns, Fields, Row
from grounded_attention.utils.plain_text import markdown_table

METHODS = ("none", "indirect", "direct", "semi_direct")
BASELINES = ("majority", "text_only", "chance")
MISSING = "–"
SAME_ITEMS = "Heads are chosen on the same items that they are reported on; this overstates them."
CAPTION = (
    "Accuracies on the test split. Identification: which caption describes the image. VGP: relation of two phrases. "
    "Text → region: the most-attended region of a grounded word is gold; over all heads, in the best layer, in the "
    "best head (best layer and head chosen on the validation split), and by attention rollout. "
)

# Path in the results -> heading.
_COLUMNS = {
    ("identification_accuracy",): "Identification accuracy",
    ("vgp_accuracy",): "VGP accuracy",
    ("text_to_region_accuracy", "all_heads"): "Text → region, all heads",
    ("text_to_region_accuracy", "best_layer"): "Text → region, best layer",
    ("text_to_region_accuracy", "best_head"): "Text → region, best head",
    ("text_to_region_accuracy", "rollout"): "Text → region, rollout",
}

# What says how good a method is, the first before the next: the head that finds most regions, then the task itself.
_MAIN = (("text_to_region_accuracy", "best_head"), ("vgp_accuracy",))
_LAST = (
    ("text_to_region_accuracy", "all_heads"),
    *(("figures", s, "answer_perplexity") for s in ("test", "validation")),
)


def best_method(results: Columns) -> str:
    """The best method: best head from text to regions, VGP, other accuracies, all heads, lowest perplexity."""
    methods = _ordered(results["methods"], METHODS)
    names = []
    for row in methods.values():
        for name in row:
            if name.endswith("_accuracy"):
                names.append(name)
    accuracies = ((name,) for name in dict.fromkeys(names) if name != _MAIN[0][0])
    best = list(methods)
    for path in (*_MAIN, *accuracies, *_LAST):
        sign = -1 if path[-1].endswith("perplexity") else 1
        values = {name: _number(methods[name], path) for name in best}
        known = {name: sign * round(value, 3) for name, value in values.items() if value is not None}  # as printed
        best = [name for name in known if known[name] == max(known.values())] or best
        # After a tie the control is not the best one, whatever the next number says.
        best = [name for name in best if name != METHODS[0] or not known] or best
    return best[0]


def conclusion(heads: Mapping[str, tuple[str, Estimate]], chance: float, what: str, same: bool) -> str:
    """What is said first of the best heads of models, as (name, accuracy): the best, chance, and the model before.

    `same`: the heads were chosen on what they are reported on.
    """
    best = max(heads, key=lambda name: heads[name][1].value)
    first, *others = heads
    other = first if best != first else max(others, key=lambda name: heads[name][1].value, default=None)
    beside = "without supervision" if other == METHODS[0] else other
    head, accuracy = heads[best]
    compared = ""
    if other is not None:
        compared = f"; {beside} {heads[other][1].percent}, head {heads[other][0]}"
    chosen = f" {SAME_ITEMS}" if same else ""
    return f"{best}: head {head} is right for {accuracy.of(what)}; chance {chance:.1%}{compared}.{chosen}"


def comparison_table(results: Columns) -> str:
    """Makes a Markdown table of methods and baselines; the best method of each column is bold."""
    methods = _ordered(results["methods"], METHODS)
    baselines = _ordered({**(results.get("baselines") or {}), "chance": _chance(results)}, BASELINES)
    # Numbers are compared as printed, so two methods with the same printed number are both the best.
    printed = {name: [_printed(row, path) for path in _COLUMNS] for name, row in methods.items()}
    tops = [max(column) for column in zip(*printed.values(), strict=True)]
    rows = []
    for name, cells in printed.items():
        marked = []
        for cell, top in zip(cells, tops, strict=True):
            marked.append(f"**{cell}**" if cell == top and top else cell)
        rows.append([name, *marked])
    rows += [[name, *(_printed(row, path) for path in _COLUMNS)] for name, row in baselines.items()]
    table = markdown_table(
        ["Method", *_COLUMNS.values()], [[cell or MISSING for cell in row] for row in rows], aligned=True
    )
    return f"{table}\n\n{CAPTION}Bold: best method."


def _ordered(rows: Row, known: tuple[str, ...]) -> Fields:
    """The known rows in their order, then the others; missing rows are omitted."""
    present = [name for name in known if name in rows]
    return {name: rows[name] or {} for name in dict.fromkeys([*present, *rows])}


def _chance(results: Columns) -> Fields:
    """Chance of the grounding columns as reported by the methods, plus the numbers of a baseline "chance"."""
    measured = (results.get("baselines") or {}).get("chance") or {}
    reported = (_number(row or {}, ("text_to_region_accuracy", "chance")) for row in results["methods"].values())
    chance = next((value for value in reported if value is not None), None)
    grounding = {path[-1]: chance for path in _COLUMNS if path[0] == "text_to_region_accuracy"}
    return {"text_to_region_accuracy": grounding, **measured}


def _number(row: Row, path: tuple[str, ...]) -> float | None:
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None or math.isnan(value):
        return None
    return float(value)


def _printed(row: Row, path: tuple[str, ...]) -> str:
    """The number with three decimals, which sort as strings like the numbers in [0, 1]; empty if missing."""
    value = _number(row, path)
    if value is None:
        return ""
    return f"{value:.3f}"


# Other tasks

COLUMNS = ("accuracy", "majority", "chance", "count")
# Shown if any row has them.
FURTHER = ("consistency", "recall@5", "recall@10", "upper_bound")


def accuracy_table(results: Mapping[str, Columns]) -> str:
    """Makes a Markdown table of accuracies."""
    predicted = []
    for model, metrics in results.items():
        for key in metrics:
            if key.endswith("_accuracy"):
                predicted.append((model, key.removesuffix("_accuracy"), metrics))
    further = []
    for column in FURTHER:
        if any(f"{name}_{column}" in metrics for _, name, metrics in predicted):
            further.append(column)
    columns = [*COLUMNS, *further]
    rows = [
        [model, name, *(_shown(metrics.get(f"{name}_{column}")) for column in columns)]
        for model, name, metrics in predicted
    ]
    return markdown_table(["model", "predicted", *columns], rows, 2, aligned=True)


# Number -> heading, in this order; without the numbers that no model has.
GENERATION_COLUMNS = {
    "answer_perplexity": "perplexity",
    "answers_accuracy": "exact",
    "vqa_accuracy": "VQA",
    "question_accuracy": "questions",
    "box_accuracy": "acc@0.5",
    "point_accuracy": "point",
    "boxes_off_scale": "off scale",
    "boxes_of_other_form": "other form",
    "best_head": "best head",
    "all_heads": "all heads",
    "chance": "chance",
    "hallucination_random_f1": "POPE random",
    "hallucination_popular_f1": "POPE popular",
    "hallucination_adversarial_f1": "POPE adversarial",
}
# Columns -> what they are.
GENERATION_NOTES = {
    "answer_perplexity": "perplexity: of the tokens of the gold answers, lower is better",
    "answers_accuracy": "exact: greedy decoding gives the gold answer",
    "vqa_accuracy": "VQA: official accuracy of the generated answer",
    "box_accuracy": "acc@0.5: the generated box has an IoU of 0.5 or more",
    "point_accuracy": "point: the generated point, or the middle of the box, is in the right box",
    "boxes_off_scale": "off scale: generated boxes with a number beyond the scale of the model, all misses",
    "boxes_of_other_form": "other form: generated boxes that were read though they are not in the form of the model",
    "best_head": "best head, all heads: the image token that a word of a phrase attends to most is in its box; the "
    "head is chosen on validation",
    "hallucination_random_f1": "POPE: F1 of the answer yes",
}


def generation_table(models: Mapping[str, Mapping[str, Columns]]) -> str:
    """Makes a Markdown table of what vision-language models generate."""
    lines = []
    for name, splits in models.items():
        for split, numbers in _measured(splits):
            lines.append((name, split, numbers))
    columns = [name for name in GENERATION_COLUMNS if any(name in numbers for _, _, numbers in lines)]
    rows = [[name, split, *(_shown(numbers.get(column)) for column in columns)] for name, split, numbers in lines]
    text = markdown_table(["model", "split", *(GENERATION_COLUMNS[name] for name in columns)], rows, 2, aligned=True)
    notes = "; ".join(note for name, note in GENERATION_NOTES.items() if name in columns)
    return f"{text}\n\n{notes[:1].upper()}{notes[1:]}."


def _measured(splits: Mapping[str, Columns]) -> Iterator[tuple[str, Columns]]:
    """The splits with answers; their grounding has the head that is best on validation."""
    for split, numbers in splits.items():
        if "answer_perplexity" not in numbers:
            continue
        chosen_on = splits.get("validation", numbers)
        grounded = "text_to_region_by_head" in numbers and "text_to_region_by_head" in chosen_on
        yield split, {**numbers, **(summarise(chosen_on, numbers) if grounded else {})}


def _shown(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)
