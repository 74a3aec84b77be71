# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures the heads of all models of a run and writes the files of `grounded-attention run-heads`."""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import PartialState
from transformers.utils import logging

from grounded_attention.analysis.dependencies import relation_examples
from grounded_attention.analysis.dependency_parses import read_conllu
from grounded_attention.analysis.perturbation_curves import PerturbationCurves, area_text
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.licences import scenes_command
from grounded_attention.heads.card import CARD, HEADS
from grounded_attention.heads.changes import compare
from grounded_attention.heads.example_attention import best_heads, naming_words
from grounded_attention.heads.example_attention import words_across_layers_figure as draw_words
from grounded_attention.heads.examples import AuditExample, entity_examples, grounded_examples
from grounded_attention.heads.heads_file import FILE
from grounded_attention.heads.page import ExtraSection, heads_page
from grounded_attention.heads.ranking import Relate
from grounded_attention.metrics.intervals import interval_text, to_json
from grounded_attention.pages.patch_pictures import patch_figure
from grounded_attention.pages.perturbation_figure import NAMES, perturbation_figure
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.arguments import check_options
from grounded_attention.training.experiments.made_regions import picture_files
from grounded_attention.training.experiments.measuring import TEXT_ONLY
from grounded_attention.training.experiments.output import RECIPE, check_rows, read_run
from grounded_attention.training.experiments.pictures import with_text
from grounded_attention.training.experiments.prepared_data import (
    PreparedData,
    built_rows,
    open_regions,
    prepare_data,
    rows_of_images,
)
from grounded_attention.training.experiments.scoring import explainable, measure_perturbation, read_config
from grounded_attention.training.loop.data import limit_rows
from grounded_attention.training.recipes.recipe import Data, Recipe
from grounded_attention.utils.progress import with_progress
from grounded_attention.utils.whole_files import write_text

from .builder_options import options_of
from .heads_work import one_of_each_image, put_in_card, rows_of_builder, write_files
from .run_heads_answers import BATCH, BY_TYPE, COLUMNS, TASK, Answers, measure_answers
from .run_heads_models import BUILDER, REPORTED, UNSUPERVISED, Measured, OwnRows, Run, measure_method

PARSES, PAGE = "parses", "heads.html"
MOST_LAYERS = 4
# Caveats for the reader of the page.
NOT_SHOWN = (
    "A head that looks at a region does not show that the answer of the model depends on it. The comparison of maps "
    "measures this dependence; an answer that is no better with the regions than without them depends on none. An "
    "accurate head that is not active puts little of its attention on any region. The tests sample images, not "
    "training runs: each model has one seed, and another seed may change a number by more than its interval."
)
SCENES = " Scenes are drawn shapes with a vocabulary of a few hundred words; results may differ on photographs."


# Input


def find_run(options: argparse.Namespace) -> Run:
    """Finds the run and checks that its models are complete."""
    folder = Path(options.run)
    remedy = "make it with `make train`, or with train.py and another recipe"
    recipe = read_run(folder, remedy)
    data = replace(recipe.data, scenes=None)
    if options.data_dir is not None:
        trained, images = Path(str(data.data_dir)), Path(data.images or "")
        if data.images and images.is_relative_to(trained):
            data.images = str(Path(options.data_dir, images.relative_to(trained)))
        data.data_dir, data.source = options.data_dir, None
        data.regions = str(Path(options.data_dir, "regions"))
    task_options = check_options(TASKS[recipe.task], recipe.options, f"{folder / RECIPE}: options")
    methods = sorted(recipe.methods, key=lambda name: name != UNSUPERVISED)
    for name in methods:
        if not (folder / name / "results.json").is_file():
            raise ValueError(f"{folder / name}: results.json is missing, so this model is not finished; {remedy}")
        read_config(str(folder / name), TASKS[recipe.task])
    instruction = task_options.caption_prompt if TASKS[recipe.task].image_tokens else None
    text_only = TEXT_ONLY if recipe.text_only_baseline and (folder / TEXT_ONLY / "results.json").is_file() else None
    own = None if data.source is None else _own_rows(recipe, folder, options)
    return Run(folder, recipe.task, methods, data, recipe.seed, instruction, text_only, own)


def _own_rows(recipe: Recipe, folder: Path, options: argparse.Namespace) -> OwnRows:
    """The rows of `data.source`, if they are still those of the run."""
    training = {"per_device_eval_batch_size": BATCH, "use_cpu": options.cpu, "disable_tqdm": True}
    recipe = replace(recipe, training=training)
    with redirect_stdout(sys.stderr):  # how rows were read
        data = prepare_data(recipe)
    check_rows(folder, data.split or {})
    return OwnRows(recipe, data, built_rows(recipe, data), picture_files(data.splits, os.sep))


def load_examples(run: Run, limit: int) -> dict[str, list[AuditExample]]:
    """Split -> the captions with phrases of its first images; of a vision-language model one for each image."""
    splits = run.splits
    if run.own is None:
        known = options_of(BUILDERS[BUILDER])
        builder_options = {key: value for key, value in run.data.options.items() if key in known}
        parts = rows_of_builder(BUILDER, str(run.data.data_dir), splits, limit, builder_options)
        examples = [entity_examples(rows) for rows in parts]
    else:
        every = (run.own.rows[split] for split in splits)
        parts = [rows_of_images(rows, rows.unique("image_id")[:limit]) for rows in every]
        examples = [grounded_examples(map(with_text, rows)) for rows in parts]
    chosen = one_of_each_image if run.reads_tokens else list
    return {split: chosen(found) for split, found in zip(splits, examples, strict=True)}


def relations_of(run: Run) -> tuple[Relate | None, str]:
    """What finds words related to entities, and a note for the page; nothing if the data have no parses."""
    if run.own is not None:
        return None, f"left out: {run.place} has no parses"
    folder = Path(run.place, PARSES)
    if not folder.is_dir():
        remedy = f"; {scenes_command(run.scenes, run.place)} --force writes them with parses" if run.scenes else ""
        return None, f"left out: no parses in {folder}{remedy}"
    return lambda examples: relation_examples(examples, read_conllu(folder)), f"from the parses in {folder}"


# Measurement


def to_explore(run: Run, examples: Sequence[AuditExample], count: int) -> list[AuditExample]:
    """The first caption with several grounded phrases, for each of the first images whose file exists."""
    grounded = (
        replace(example, phrases=tuple(phrase for phrase in example.phrases if len(phrase.boxes)))
        for example in examples
        if run.picture_path(example.image_id).is_file()
    )
    return one_of_each_image(grounded, count, least=2)


def perturbation_rows(run: Run, count: int, cpu: bool) -> tuple[Recipe, PreparedData] | None:
    """The rows on which maps are compared; `None` if maps are not compared."""
    if not count or run.task not in explainable():
        return None
    if run.own is not None:
        rows = run.own.data.splits[run.splits[1]]
        return run.own.recipe, replace(run.own.data, splits={run.splits[1]: limit_rows(rows, count, run.seed)})
    data = Data(
        data_dir=run.data.data_dir,
        builder=run.data.builder,
        regions=run.data.regions,
        images=run.data.images,
        options={**run.data.options, "splits": [REPORTED]},
        train_splits=[REPORTED],
        limit={REPORTED: count},
    )
    training = {"per_device_eval_batch_size": BATCH, "use_cpu": cpu}
    recipe = Recipe(run.task, seed=run.seed, data=data, training=training)
    return recipe, prepare_data(recipe)


def curves_of(run: Run, name: str, recipe: Recipe, data: PreparedData) -> PerturbationCurves:
    """The accuracy of one model while regions are removed."""
    source = str(run.folder / name)
    split = run.splits[1]
    about = {"checkpoint": source, "task": run.task, "split": split, "seed": run.seed}
    return measure_perturbation(recipe, source, data, split, about=about)


def measure(options: argparse.Namespace, run: Run) -> tuple[dict[str, Measured], str]:
    """Everything on the page: method -> results of its model; and a note about the relations."""
    table = open_regions(run.data.regions) if run.own is None else run.own.data.regions
    regions, reported = None if run.reads_tokens else table, run.splits[1]
    examples = load_examples(run, options.limit)
    relate, note = relations_of(run)
    if relate is None:
        print(f"relations {note}", file=sys.stderr)
    explored = to_explore(run, examples[reported], options.explore)
    compared = perturbation_rows(run, options.rows, options.cpu)
    methods: dict[str, Measured] = {}
    for name in run.methods:
        print(f"heads: {name}", file=sys.stderr)
        methods[name] = measure_method(run, name, examples, relate, regions, explored, options)
        if not run.reads_tokens and len(methods[name].table.entities) < 2:
            raise ValueError(
                f"{run.place}, split {reported}: no phrase has a region of {run.region_name} on a box; no "
                "head can be measured: give more images with --limit, or a region table of these images"
            )
        if name != UNSUPERVISED and UNSUPERVISED in methods:
            methods[name].changes = compare(methods[UNSUPERVISED].table, methods[name].table, (UNSUPERVISED, name))
        if compared is not None:
            methods[name].curves = curves_of(run, name, *compared)
    return methods, note


# Output


def write(
    run: Run, methods: Mapping[str, Measured], folder: Path, relations: str, answers: Answers | None
) -> list[str]:
    """Writes the output folder and the sections of the model cards; returns warnings about the cards."""
    for name, measured in with_progress(methods.items(), "numbers of models", len(methods)):
        _write_method(measured, folder / name)
    tables = {name: measured.table for name, measured in methods.items()}
    chosen_on, reported = run.splits
    about = [
        ("run", f"{run.folder}, seed {run.seed}; models: {', '.join(methods)}"),
        ("data", f"{run.place}, builder {BUILDER}; heads chosen on {chosen_on}, reported on {reported}"),
        (
            "images",
            f"the first {len(next(iter(tables.values())).counts.image_ids)} of {reported}, and up to as many "
            f"of {chosen_on}",
        ),
        ("relations", relations),
    ]
    shown = {name: measured.shown for name, measured in methods.items() if measured.shown}
    limits = NOT_SHOWN + (SCENES if run.scenes else "")
    extra = [*_answers(answers), *_maps(methods, folder, reported), ExtraSection("What this does not show", limits)]
    page = heads_page(tables, "What the methods do to the heads", about=about, examples=shown, extra=extra)
    write_text(folder / PAGE, page)
    if any(measured.looks for measured in methods.values()):
        _draw_looks(run, methods, folder / "pictures")
    warnings = (_put_card(methods[name], run, name, folder / name) for name in methods)
    return [warning for warning in warnings if warning is not None]


def _write_method(measured: Measured, folder: Path) -> None:
    write_files(measured.ranking, measured.changes, folder)
    if measured.curves is not None:
        measured.curves.save(folder)
        perturbation_figure(measured.curves, folder / "perturbation.png", "Which map is faithful?")
    if measured.shown:
        counts = measured.table.counts
        heads = best_heads(counts.accuracy, MOST_LAYERS, counts.active)
        draw_words(measured.shown[0], naming_words(measured.shown[0]), heads, folder / "words_across_layers.png")


def _draw_looks(run: Run, methods: Mapping[str, Measured], folder: Path) -> None:
    """Pictures of what the phrases of a few captions look at, with each model."""
    first = next(iter(methods.values()))
    for number, example in enumerate(first.shown):
        looks = [phrase for measured in methods.values() for phrase in measured.looks[number]]
        gold = first.gold[number]
        name = re.sub(r"[^\w.-]", "_", example.image_id)  # ids of `data.source` are any text
        patch_figure(run.picture(example.image_id), looks, folder / f"{name}.png", gold, list(methods))


def _put_card(measured: Measured, run: Run, name: str, pictures: Path) -> str | None:
    """Writes what was measured into the model card; returns a warning if there is no card or no place for it."""
    model = run.folder / name
    if run.reads_tokens:
        write_text(model / FILE, to_json(measured.ranking.to_dict(), indent=1) + "\n")
    if not HEADS.is_in(model):
        return f"{model / CARD}: no card with a place for the heads; nothing was written to it"
    put_in_card(measured.ranking, None, str(model), pictures)
    return None


def _answers(answers: Answers | None) -> list[ExtraSection]:
    if answers is None:
        return []
    rows = [(name, *(f"{each:.1%}" for each in row)) for name, row in answers.rows.items()]
    head, *lines = answers.by_type
    return [
        ExtraSection("Answers", answers.note, ("model", *COLUMNS), rows),
        ExtraSection("Answers by question type", BY_TYPE, head, lines),
    ]


def _maps(methods: Mapping[str, Measured], folder: Path, split: str) -> list[ExtraSection]:
    """The comparison of maps: a table of all models, and the curves of the model that needs its regions most."""
    curves = {name: measured.curves for name, measured in methods.items() if measured.curves is not None}
    if not curves:
        return []
    rows = [row for name, each in curves.items() for row in _map_rows(name, each)]
    name, most = max(curves.items(), key=lambda pair: pair[1].accuracy[0, 0] - pair[1].accuracy[0, -1])
    text = (
        f"{int(most.items.sum())} rows of {split}: regions are removed in the order of a map, the most relevant "
        "first or the least relevant first, and the remaining accuracy is measured. An area is the mean accuracy "
        "over the removal steps, with a 95% interval over images. A faithful map has a small area for most relevant "
        "first, a large area for least relevant first, and so a gap above 0. If the accuracy of a model is the same "
        "without any region, a map has nothing to explain."
    )
    head = ("model", "map", "all regions", "none", "most relevant first", "least relevant first", "gap")
    figure = (folder / name / "perturbation.png", f"Accuracy of {name} while regions are removed.")
    return [ExtraSection("Which map is faithful?", text, head, rows, [figure])]


def _map_rows(name: str, curves: PerturbationCurves) -> list[tuple[str, ...]]:
    ends = (f"{curves.accuracy[0, 0]:.3f}", f"{curves.accuracy[0, -1]:.3f}")
    return [
        (name, NAMES.get(row["map"], row["map"]), *ends, *(area_text(row, area) for area in ("most", "least", "gap")))
        for row in curves.summary()
    ]


# Printed table


def _table(methods: Mapping[str, Measured], splits: tuple[str, str]) -> str:
    chosen = "heads chosen on {}, reported on {}".format(*splits)
    lines = [f"{chosen}; changed: against {UNSUPERVISED}, p ≤ 0.05 (Holm)"]
    for direction, title in (("text_to_region", "text → region"), ("region_to_text", "region → text")):
        if all(direction not in measured.table.entities for measured in methods.values()):
            continue  # causal models have no rows of the image
        lines.append(f"{title:16}{'best head':>10}{'accuracy':>26}{'items':>8}{'attention':>11}{'changed heads':>20}")
        for name, measured in methods.items():
            best = next(b for b in measured.table.best_heads() if b.kind == direction and b.group == "all")
            head = measured.table.name(best.layer, best.head) + ("" if best.active else "*")
            accuracy = f"{best.accuracy:.1%} ({interval_text(best.interval)})"
            shown = f"{accuracy:>26}{best.items:>8,}{best.share:>11.0%}{_changed(measured, direction):>20}"
            lines.append(f"  {name:14}{head:>10}{shown}")
        lines.append(f"  {'rule, chance':14}{'':10}{f'{best.baseline:.1%}, {best.chance:.1%}':>26}")
    if any(
        not best.active for measured in methods.values() for best in measured.table.best_heads() if best.group == "all"
    ):
        lines.append("* not active: at most a fifth of its attention is on the candidates")
    return "\n".join(lines)


def _changed(measured: Measured, direction: str) -> str:
    if measured.changes is None:
        return "–"
    sure = measured.changes.significant(direction)
    up = int((sure & (measured.changes.comparisons[direction].difference > 0)).sum())
    return f"{up} better, {int(sure.sum()) - up} worse"


def _json(
    measured_methods: Mapping[str, Measured], page: Path, answers: Answers | None, splits: Sequence[str]
) -> dict[str, Any]:
    methods = {
        name: {
            "best": measured.table.to_dict()["best"],
            "changes": None if measured.changes is None else measured.changes.to_dict(),
            "perturbation": None if measured.curves is None else measured.curves.summary(),
        }
        for name, measured in measured_methods.items()
    }
    content: dict[str, Any] = {"page": str(page), "heads_chosen_on": splits[0], "split": splits[1], "methods": methods}
    if answers is not None:
        rows = {name: dict(zip(COLUMNS, row, strict=True)) for name, row in answers.rows.items()}
        content |= {"rows": rows, "answers": answers.numbers, "by_question_type": answers.by_type}
    return content


def _best_method(methods: Mapping[str, Measured]) -> str:
    """The method whose best heads are right most often, mean over the directions."""

    def accuracy(name: str) -> float:
        return round(fmean(best.accuracy for best in methods[name].table.best_heads() if best.group == "all"), 3)

    return max(methods, key=lambda name: (accuracy(name), name != UNSUPERVISED))


def _text(methods: Mapping[str, Measured], folder: Path, run: Run, answers: Answers | None) -> str:
    answered = "" if answers is None else "\n\n".join(("", *answers.tables()))
    return (
        f"{_table(methods, run.splits)}{answered}\nwritten: {folder / PAGE}\n"
        f"next: open {folder / PAGE} in a browser (its explorer shows every head); then\n"
        "  grounded-attention ground --help    # what a model looks at in your image\n"
        f"  grounded-attention push {run.folder / _best_method(methods)} ORG/NAME --private"
    )


def work(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    PartialState(cpu=options.cpu or not torch.cuda.is_available())
    run = find_run(options)
    folder = Path(options.output or run.folder / "heads")
    methods, relations = measure(options, run)
    answers = None
    if run.task == TASK and options.questions and run.scenes:
        rankings = {name: measured.ranking for name, measured in methods.items()}
        answers = measure_answers(run, rankings, options.questions, options)
    print("pictures and page", file=sys.stderr)
    for warning in write(run, methods, folder, relations, answers):
        print(warning, file=sys.stderr)
    if answers is not None:
        models, types = answers.tables()
        write_text(folder / "heads.md", f"{models}\n\n{answers.note}\n\n{types}\n\n{BY_TYPE}\n")
    content = _json(methods, folder / PAGE, answers, run.splits)
    write_text(folder / "heads_run.json", to_json(content, indent=1) + "\n")
    return to_json(content) if options.json else _text(methods, folder, run, answers)
