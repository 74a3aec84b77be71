# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The report of a finished run: comparison table, loss curves, heads, pictures."""

from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState

from grounded_attention.metrics.classification import accuracy_table
from grounded_attention.modeling.attention_calls import layer_labels
from grounded_attention.reports.figures import heads_figure, layer_curve_figure, loss_curves_figure
from grounded_attention.reports.generation_table import generation_table
from grounded_attention.reports.heads_over_time import heads_over_time_figure, measured_heads
from grounded_attention.reports.tables import comparison_table, print_table
from grounded_attention.supervision.supervise import find_calls
from grounded_attention.training.loop.checkpoint import CARD
from grounded_attention.training.publish.card_results import with_text_only
from grounded_attention.training.recipes.adapters import read_model_config
from grounded_attention.training.recipes.recipe import Recipe
from grounded_attention.utils.bounded_files import read_json, read_text
from grounded_attention.utils.whole_files import write_text

from .experiment import Outcome
from .measuring import BEFORE, TEXT_ONLY, chosen_heads, reported, scored_splits
from .pictures import draw_pictures
from .run_page import next_steps, write_run_page


def report(outcome: Outcome, recipe: Recipe) -> None:
    """Prints the table, and writes `table.md` and the figures to the output folder; only in the main process."""
    if not PartialState().is_main_process:
        return
    results, output = outcome.results, Path(recipe.output_dir)
    table = _table(results)
    write_text(output / "table.md", table + "\n")
    _curves(results, output)
    _heads(results, output)
    if recipe.pictures and outcome.data.regions is not None:
        draw_pictures(results, recipe, outcome.data, output / "pictures")
    _complete_cards(results, output)
    page = write_run_page(results, recipe, table)
    print(f"written: {output}/ (results.json, table.md, figures; one checkpoint directory per method)")
    print("\n".join([f"next: open {page}; then", *(f"  {line}" for line in next_steps(recipe, results))]))


def _table(results: dict[str, Any]) -> str:
    """Prints the comparison of the methods, or the accuracies of the task, and returns it as Markdown."""
    if any("vgp_accuracy" in result for result in results["methods"].values()):
        print_table(results)
        return comparison_table(results)
    trained = {**results["methods"], **{n: r for n, r in results["baselines"].items() if "figures" in r}}
    figures = {name: result["figures"] for name, result in trained.items()}
    if any("answer_perplexity" in found for splits in figures.values() for found in splits.values()):
        table = generation_table({BEFORE: results["before"], **figures} if "before" in results else figures)
        print(table)
        return table
    shown = {
        ", ".join(filter(None, (name, split))): figures
        for name, result in trained.items()
        for split, figures in scored_splits(result["figures"]).items()
    }
    table = accuracy_table(shown)
    print(table)
    return table


def _complete_cards(results: dict[str, Any], output: Path) -> None:
    """Adds the accuracies from words alone to the cards; the text-only baseline is trained after the methods."""
    if TEXT_ONLY not in results["baselines"]:
        return
    for name in results["methods"]:
        card = output / name / CARD
        text = read_text(card) if card.is_file() else ""
        completed = with_text_only(text, results["baselines"][TEXT_ONLY]["figures"])
        if completed != text:
            write_text(card, completed)


def _curves(results: dict[str, Any], output: Path) -> None:
    histories = {name: _history(output / name) for name in results["methods"]}
    logged = {name: entries for name, entries in histories.items() if any("loss" in entry for entry in entries)}
    if logged:  # a run shorter than logging_steps has no entries
        loss_curves_figure(logged, output / "loss_curves.png")


def _history(directory: Path) -> list[dict[str, Any]]:
    return read_json(directory / "history.json")


def _heads(results: dict[str, Any], output: Path) -> None:
    measured = {name: result["figures"] for name, result in results["methods"].items()}
    if "before" in results:
        measured = {BEFORE: results["before"], **measured}
    figures = {name: reported(found) for name, found in measured.items()}
    accuracy = {
        name: np.array(f["text_to_region_by_head"]) for name, f in figures.items() if "text_to_region_by_head" in f
    }
    if accuracy:
        chance = figures[next(iter(accuracy))]["text_to_region_chance"]
        layers = layer_labels(find_calls(read_model_config(str(output / next(iter(results["methods"]))))))
        heads_figure(accuracy, chance, output / "heads.png", layers, chosen_heads(measured))
        history = {name: measured_heads(_history(output / name)) for name in accuracy if name != BEFORE}
        if any(len(steps) > 1 for steps in history.values()):
            heads_over_time_figure(history, output / "heads_over_time.png", layers)
        layer_curve_figure(accuracy, chance, output / "layers.png", layers)
