# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The report of a finished run: comparison table, loss curves, heads, pictures."""

import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState

from grounded_attention.heads.attention_grounding import best_head
from grounded_attention.heads.example_attention import ExampleAttention, capture_examples
from grounded_attention.heads.examples import AuditExample, grounded_examples
from grounded_attention.modeling.attention_calls import layer_labels
from grounded_attention.pages.explorer import explorer, explorer_body
from grounded_attention.pages.figures import (
    heads_figure,
    loss_curves_figure,
)
from grounded_attention.pages.page import Html, embedded_image, html_page, html_table, note, preformatted
from grounded_attention.pages.tables import (
    accuracy_table,
    best_method,
    comparison_table,
    conclusion,
    generation_table,
)
from grounded_attention.supervision.supervise import find_calls
from grounded_attention.tasks import TASKS
from grounded_attention.training.publish.hub import START
from grounded_attention.training.recipes.adapters import read_model_config
from grounded_attention.training.recipes.model_family import head_class
from grounded_attention.training.recipes.recipe import Model, Recipe, recipe_yaml
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.whole_files import write_text

from .experiment import Outcome
from .made_regions import picture_files
from .measuring import BEFORE, chosen_heads, reported, reported_split, scored_splits
from .models import load_model, make_processor
from .prepared_data import PreparedData, built_rows


def capture_pictures(results: Columns, recipe: Recipe, data: PreparedData) -> dict[str, list[ExampleAttention]]:
    """What words look at in held-out pictures, in each method, and before the training: in the trained start, or else
    the checkpoint that the recipe names.
    """
    task = TASKS[recipe.task]
    split = reported_split(next(iter(results["methods"].values()))["figures"])
    if not split or not recipe.pictures or (data.regions is None and not task.image_tokens):
        return {}
    examples, files = _to_show(split, recipe, data)
    if not examples:
        return {}
    output = Path(recipe.output_dir)
    sources = {name: str(output / name) for name in results["methods"]}
    before = str(output / START) if (output / START).is_dir() else recipe.model.source
    if before:
        sources = {BEFORE: before, **sources}
    return {name: _capture(Model(source=folder), recipe, data, examples, files) for name, folder in sources.items()}


def _to_show(split: str, recipe: Recipe, data: PreparedData) -> tuple[list[AuditExample], dict[str, Path]]:
    """The first text with boxes of each of the first images whose files are there, and the files."""
    if recipe.data.source is not None:
        rows = built_rows(recipe, data)[split]
        folder = os.sep
    else:
        rows = data.splits[split]
        folder = recipe.data.images or str(Path(recipe.data.data_dir, "flickr30k-images"))
    if "phrases" not in rows.column_names:
        return [], {}
    files = picture_files({split: rows}, folder)
    first: dict[str, AuditExample] = {}
    for example in grounded_examples(rows):
        has_boxes = any(len(phrase.boxes) for phrase in example.phrases)
        if has_boxes and files[example.image_id].is_file():
            first.setdefault(example.image_id, example)
        if len(first) == recipe.pictures:
            break
    return [*first.values()], files


def _capture(
    source: Model, recipe: Recipe, data: PreparedData, examples: Sequence[AuditExample], files: Mapping[str, Path]
) -> list[ExampleAttention]:
    task = TASKS[recipe.task]
    model = load_model(head_class(task.head, source), source)[0].eval()
    regions: Any = None if task.image_tokens else data.regions
    if task.image_tokens:
        prompt = task.configure(data.options).options.caption_prompt
    else:
        prompt = None
    return capture_examples(model, make_processor(source), examples, regions, files, prompt)


def report(outcome: Outcome, recipe: Recipe) -> None:
    """Prints the table, and writes `table.md` and the pictures to the output folder; only in the main process."""
    if not PartialState().is_main_process:
        return
    results = outcome.results
    output = Path(recipe.output_dir)
    table = _table(results)
    print(table)
    write_text(output / "table.md", table + "\n")
    histories = {name: read_json(output / name / "history.json") for name in results["methods"]}
    logged = {}
    for name, entries in histories.items():
        if any("loss" in entry for entry in entries):
            logged[name] = entries
    if logged:  # a run shorter than logging_steps has no entries
        loss_curves_figure(logged, output / "loss_curves.png")
    _heads(results, output)
    page = write_run_page(results, recipe, table, capture_pictures(results, recipe, outcome.data))
    sentence = _conclusion(results)[0]
    if sentence:
        print(sentence)
    print(f"written: {output}/ (results.json, table.md, pictures; one checkpoint directory per method)")
    print("\n".join([f"next: open {page}; then", *(f"  {line}" for line in next_steps(recipe, results))]))


def _table(results: Fields) -> str:
    """The comparison of the methods, or the accuracies of the task, as Markdown."""
    if any("vgp_accuracy" in result for result in results["methods"].values()):
        return comparison_table(results)
    trained = {**results["methods"], **{n: r for n, r in results["baselines"].items() if "figures" in r}}
    numbers = {name: result["figures"] for name, result in trained.items()}
    if any("answer_perplexity" in measured for splits in numbers.values() for measured in splits.values()):
        return generation_table({BEFORE: results["before"], **numbers} if "before" in results else numbers)
    shown = {}
    for name, splits in numbers.items():
        for split, measured in scored_splits(splits).items():
            shown[", ".join(filter(None, (name, split)))] = measured
    return accuracy_table(shown)


def _heads(results: Fields, output: Path) -> None:
    measured = {name: result["figures"] for name, result in results["methods"].items()}
    if "before" in results:
        measured = {BEFORE: results["before"], **measured}
    numbers = {name: reported(splits) for name, splits in measured.items()}
    accuracy = {}
    for name, f in numbers.items():
        if "text_to_region_by_head" in f:
            accuracy[name] = np.array(f["text_to_region_by_head"])
    if accuracy:
        chance = numbers[next(iter(accuracy))]["text_to_region_chance"]
        layers = layer_labels(find_calls(read_model_config(str(output / next(iter(results["methods"]))))))
        heads_figure(accuracy, chance, output / "heads.png", layers, chosen_heads(measured))


PAGE = "run.html"


def _conclusion(results: Columns) -> tuple[str, tuple[str, int, int] | None]:
    """A sentence about the heads that were chosen on validation; method, layer and head of the best of them."""
    grounding = {name: result.get("text_to_region_accuracy", {}) for name, result in results["methods"].items()}
    grounding = {name: numbers for name, numbers in grounding.items() if "head" in numbers}
    if not grounding:
        return "", None
    heads = {name: ("{}-{}".format(*numbers["head"]), best_head(numbers)) for name, numbers in grounding.items()}
    best = max(heads, key=lambda name: heads[name][1].value)
    split = reported_split(results["methods"][best]["figures"])
    what = f"words of {split} images"
    sentence = conclusion(heads, grounding[best]["chance"], what, same=split == "validation")
    return sentence, (best, *grounding[best]["head"])


def write_run_page(
    results: Columns,
    recipe: Recipe,
    table: str,
    examples: Mapping[str, Sequence[ExampleAttention]] | None = None,
) -> Path:
    """Writes `run.html` to the output folder of a run, with the explorer if there are examples."""
    output = Path(recipe.output_dir)
    sentence, best = _conclusion(results)
    parts = {
        "Examples": explorer_body([explorer(examples, best)]) if examples else "",
        "Comparison": "".join(markdown_parts(table)),
        "Heads": _figure(
            output / "heads.png",
            "Heat map of the accuracy of each head by layer, for each method",
            "One cell is one head after the training: how often the region that a word attends to most is a region "
            "that the word refers to. Compare with chance, the line in the colour bar.",
        ),
        "Curves": _figure(
            output / "loss_curves.png",
            "Loss components and accuracies by step, one line for each method",
            "Each panel is one component of the loss, or one accuracy during the training; one line is one method.",
        ),
        "Recipe": preformatted(recipe_yaml(recipe)),
        "Next": preformatted("\n".join(next_steps(recipe, results))),
    }
    about = [
        ("task", recipe.task),
        ("methods", ", ".join(results["methods"])),
        ("data", recipe.data.source or recipe.data.data_dir),
        ("seed", str(recipe.seed)),
    ]
    write_text(output / PAGE, html_page(f"Run {output.name}", parts, about, sentence))
    return output / PAGE


def markdown_parts(text: str) -> Iterator[str]:
    """HTML of Markdown that consists of tables and paragraphs, as the tables of runs do; bold cells stay bold."""
    for block in text.strip().split("\n\n"):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith("|"):
            head, _, *rows = [[_unmarked(cell.strip()) for cell in line.strip("|").split("|")] for line in lines]
            yield html_table(head, rows)
        elif lines:
            yield note(" ".join(lines))


def _unmarked(cell: str) -> str:
    bold = len(cell) > 4 and cell.startswith("**") and cell.endswith("**")
    if bold:
        return Html(f"<b>{escape(cell.strip('*'))}</b>")
    return cell


def _figure(path: Path, alt: str, caption: str) -> str:
    if path.is_file():
        return embedded_image(path, alt, caption)
    return ""


def next_steps(recipe: Recipe, results: Columns) -> Sequence[str]:
    """Commands that go on from a finished run."""
    output = Path(recipe.output_dir)
    best = output / best_method(results)
    grounded = any("text_to_region_accuracy" in result for result in results["methods"].values())
    audited = [f"grounded-attention heads --run {output}      # which head looks where, before and after"]
    return [
        *(audited if grounded and (recipe.data.source or recipe.data.scenes) else ()),
        "grounded-attention ground --help      # what a model looks at in your image",
        f"grounded-attention push {best} ORG/NAME --private",
    ]
