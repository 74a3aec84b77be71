# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures the heads of all models of a run and writes the files of `grounded-attention run-heads`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
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
from grounded_attention.dataset_scripts.licences import read_scenes, scenes_command
from grounded_attention.heads.card import AUDIT, CARD, HEADS
from grounded_attention.heads.changes import compare
from grounded_attention.heads.example_attention import best_heads, naming_words
from grounded_attention.heads.example_attention import words_across_layers_figure as draw_words
from grounded_attention.heads.examples import AuditExample, entity_examples
from grounded_attention.heads.heads_file import FILE
from grounded_attention.heads.page import ExtraSection, heads_page
from grounded_attention.heads.ranking import Relate
from grounded_attention.metrics.intervals import interval_text, to_json
from grounded_attention.reports.patch_pictures import patch_comparison_figure
from grounded_attention.reports.perturbation_figure import NAMES, perturbation_figure
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.arguments import check_options
from grounded_attention.training.experiments.measuring import TEXT_ONLY
from grounded_attention.training.experiments.output import RECIPE, read_run
from grounded_attention.training.experiments.prepared_data import PreparedData, open_regions, prepare_data
from grounded_attention.training.experiments.scoring import explainable, measure_perturbation, read_config
from grounded_attention.training.loop.checkpoint import MANIFEST, is_complete
from grounded_attention.training.recipes.recipe import Data, Recipe
from grounded_attention.utils.progress import named, with_progress
from grounded_attention.utils.whole_files import write_text

from .builder_options import options_of
from .heads_work import best_of, one_of_each_image, put_in_card, rows_of_builder, write_files
from .run_heads_answers import COLUMNS, TASK, measure_answers, table, write_answers
from .run_heads_models import BUILDER, CHOSEN_ON, REPORTED, Measured, Run, measure_method

UNSUPERVISED = "none"  # the method that the others are compared with
PARSES, PAGE = "parses", "heads.html"
MOST_LAYERS = 4
# Caveats for the reader of the page.
NOT_SHOWN = (
    "A head that looks at a region does not show that the answer of the model depends on it. The comparison of maps "
    "measures this dependence; an answer that is no better with the regions than without them depends on none. An "
    "accurate head that is not active puts little of its attention on any region. The tests sample images, not "
    "training runs: each model has one seed, and another seed may change a figure by more than its interval."
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
        data.data_dir, data.regions = options.data_dir, str(Path(options.data_dir, "regions"))
    elif data.source is not None:
        raise ValueError(
            f"{folder}: its rows are those of {data.source}, but this command reads the layout of Flickr30K Entities: "
            "give --data-dir, or measure these rows with `grounded-attention heads --data`"
        )
    task_options = check_options(TASKS[recipe.task], recipe.options, f"{folder / RECIPE}: options")
    methods = sorted(recipe.methods, key=lambda name: name != UNSUPERVISED)
    for name in methods:
        if not (folder / name / "results.json").is_file():
            raise ValueError(f"{folder / name}: results.json is missing, so this model is not finished; {remedy}")
        read_config(str(folder / name), TASKS[recipe.task])
        if (folder / name / MANIFEST).is_file() and not is_complete(folder / name):
            raise ValueError(f"{folder / name}: the checkpoint is incomplete or was changed; copy or train it again")
    instruction = task_options.caption_prompt if TASKS[recipe.task].image_tokens else None
    text_only = TEXT_ONLY if recipe.text_only_baseline and (folder / TEXT_ONLY / "results.json").is_file() else None
    return Run(folder, recipe.task, methods, data, recipe.seed, instruction, text_only)


def load_examples(run: Run, limit: int) -> dict[str, list[AuditExample]]:
    """Split -> the captions with phrases of its first images; of a vision-language model one for each image."""
    builder_options = {key: value for key, value in run.data.options.items() if key in options_of(BUILDERS[BUILDER])}
    splits = (CHOSEN_ON, REPORTED)
    parts = rows_of_builder(BUILDER, str(run.data.data_dir), splits, limit, builder_options)
    chosen = one_of_each_image if run.reads_tokens else list
    return {split: chosen(entity_examples(rows)) for split, rows in zip(splits, parts, strict=True)}


def relations_of(data: Data) -> tuple[Relate | None, str]:
    """What finds words related to entities, and a note for the page; nothing if the data have no parses."""
    folder = Path(data.data_dir, PARSES)
    if not folder.is_dir():
        scenes = read_scenes(Path(data.data_dir))
        remedy = f"; {scenes_command(scenes, data.data_dir)} --force writes them with parses" if scenes else ""
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
    data = Data(
        data_dir=run.data.data_dir,
        builder=run.data.builder,
        regions=run.data.regions,
        images=run.data.images,
        options={**run.data.options, "splits": [REPORTED]},
        train_splits=[REPORTED],
        limit={REPORTED: count},
    )
    training = {"per_device_eval_batch_size": 32, "use_cpu": cpu}
    recipe = Recipe(run.task, seed=run.seed, data=data, training=training)
    return recipe, prepare_data(recipe)


def curves_of(run: Run, name: str, recipe: Recipe, data: PreparedData) -> PerturbationCurves:
    """The accuracy of one model while regions are removed."""
    source = str(run.folder / name)
    about = {"checkpoint": source, "task": run.task, "split": REPORTED, "seed": run.seed}
    return measure_perturbation(recipe, source, data, REPORTED, about=about)


def measure(options: argparse.Namespace, run: Run) -> tuple[dict[str, Measured], str]:
    """Everything on the page: method -> results of its model; and a note about the relations."""
    regions = None if run.reads_tokens else open_regions(run.data.regions)
    examples = load_examples(run, options.limit)
    relate, note = relations_of(run.data)
    if relate is None:
        print(f"relations {note}", file=sys.stderr)
    explored = to_explore(run, examples[REPORTED], options.explore)
    compared = perturbation_rows(run, options.rows, options.cpu)
    methods: dict[str, Measured] = {}
    for name in run.methods:
        print(f"heads: {name}", file=sys.stderr)
        with named(name):
            methods[name] = measure_method(run, name, examples, relate, regions, explored, options)
        if not run.reads_tokens and len(methods[name].table.entities) < 2:
            raise ValueError(
                f"{run.data.data_dir}, split {REPORTED}: no phrase has a region of {run.region_name} on a box; no "
                "head can be measured: give more images with --limit, or a region table of these images"
            )
        if name != UNSUPERVISED and UNSUPERVISED in methods:
            methods[name].changes = compare(methods[UNSUPERVISED].table, methods[name].table, (UNSUPERVISED, name))
        if compared is not None:
            methods[name].curves = curves_of(run, name, *compared)
    return methods, note


# Output


def write(run: Run, methods: Mapping[str, Measured], folder: Path, relations: str, answers: Any) -> list[str]:
    """Writes the output folder and the sections of the model cards; returns warnings about the cards."""
    for name, measured in with_progress(methods.items(), "figures of models", len(methods)):
        _write_method(measured, folder / name)
    tables = {name: measured.table for name, measured in methods.items()}
    about = [
        ("run", f"{run.folder}, seed {run.seed}; models: {', '.join(methods)}"),
        ("data", f"{run.data.data_dir}, builder {BUILDER}; heads chosen on {CHOSEN_ON}, reported on {REPORTED}"),
        (
            "images",
            f"the first {len(next(iter(tables.values())).counts.image_ids)} of {REPORTED}, and up to as many "
            f"of {CHOSEN_ON}",
        ),
        ("relations", relations),
    ]
    shown = {name: measured.shown for name, measured in methods.items() if measured.shown}
    limits = NOT_SHOWN + (SCENES if read_scenes(Path(run.data.data_dir)) else "")
    extra = [*_answers(answers), *_maps(methods, folder), ExtraSection("What this does not show", limits)]
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
        looks = {name: measured.looks[number] for name, measured in methods.items()}
        gold = first.gold[number]
        patch_comparison_figure(run.picture(example.image_id), looks, gold, folder / f"{example.image_id}.png")


def _put_card(measured: Measured, run: Run, name: str, pictures: Path) -> str | None:
    """Writes what was measured into the model card; returns a warning if there is no card or no place for it.

    `heads.json` of a vision-language model is also put beside it, where the pipeline reads it.
    """
    model = run.folder / name
    if run.reads_tokens:
        write_text(model / FILE, to_json(measured.ranking.to_dict(), indent=1) + "\n")
    if not AUDIT.is_in(model) and not HEADS.is_in(model):
        return f"{model / CARD}: no card with a place for the heads; nothing was written to it"
    put_in_card(measured.ranking, None, str(model), pictures)
    return None


def _answers(answers: Any) -> list[ExtraSection]:
    if answers is None:
        return []
    rows, note = answers[0], answers[1]
    return [
        ExtraSection("Answers", note, ("model", *COLUMNS), [(n, *(f"{v:.1%}" for v in r)) for n, r in rows.items()])
    ]


def _maps(methods: Mapping[str, Measured], folder: Path) -> list[ExtraSection]:
    """The comparison of maps: a table of all models, and the curves of the model that needs its regions most."""
    curves = {name: measured.curves for name, measured in methods.items() if measured.curves is not None}
    if not curves:
        return []
    rows = [row for name, each in curves.items() for row in _map_rows(name, each)]
    name, most = max(curves.items(), key=lambda pair: pair[1].accuracy[0, 0] - pair[1].accuracy[0, -1])
    text = (
        f"{int(most.items.sum())} rows of {REPORTED}: regions are removed in the order of a map, the most relevant "
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


def _table(methods: Mapping[str, Measured]) -> str:
    lines = [f"heads chosen on {CHOSEN_ON}, reported on {REPORTED}; changed: against {UNSUPERVISED}, p ≤ 0.05 (Holm)"]
    for direction, title in (("text_to_region", "text → region"), ("region_to_text", "region → text")):
        if all(direction not in measured.table.entities for measured in methods.values()):
            continue  # causal models have no rows of the image
        lines.append(f"{title:16}{'best head':>10}{'accuracy':>26}{'attention':>11}{'changed heads':>20}")
        for name, measured in methods.items():
            best = next(b for b in measured.table.best_heads() if b.kind == direction and b.group == "all")
            head = measured.table.name(best.layer, best.head) + ("" if best.active else "*")
            accuracy = f"{best.accuracy:.1%} ({interval_text(best.interval)})"
            lines.append(f"  {name:14}{head:>10}{accuracy:>26}{best.share:>11.0%}{_changed(measured, direction):>20}")
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


def _json(measured_methods: Mapping[str, Measured], page: Path, answers: Any) -> dict[str, Any]:
    methods = {
        name: {
            "best": best_of(measured.table),
            "changes": None if measured.changes is None else measured.changes.to_dict(),
            "perturbation": None if measured.curves is None else measured.curves.summary(),
        }
        for name, measured in measured_methods.items()
    }
    content = {"page": str(page), "heads_chosen_on": CHOSEN_ON, "split": REPORTED, "methods": methods}
    if answers is not None:
        rows = {name: dict(zip(COLUMNS, row, strict=True)) for name, row in answers[0].items()}
        content |= {"rows": rows, "answers": answers[2]}
    return content


def _best_method(methods: Mapping[str, Measured]) -> str:
    """The method whose best heads are right most often, mean over the directions."""

    def accuracy(name: str) -> float:
        return fmean(best.accuracy for best in methods[name].table.best_heads() if best.group == "all")

    return max(methods, key=lambda name: (accuracy(name), name != UNSUPERVISED))


def _text(methods: Mapping[str, Measured], folder: Path, run: Path, answers: Any) -> str:
    answered = "" if answers is None else f"\n\n{table(answers[0])}"
    return (
        f"{_table(methods)}{answered}\nwritten: {folder / PAGE}\n"
        f"next: open {folder / PAGE} in a browser (its explorer shows every head); then\n"
        "  grounded-attention ground --help    # what a model looks at in your image\n"
        f"  grounded-attention push {run / _best_method(methods)} ORG/NAME --private"
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
    if run.task == TASK and options.questions and read_scenes(Path(run.data.data_dir)):
        rankings = {name: measured.ranking for name, measured in methods.items()}
        rows, figures = measure_answers(run, rankings, options.questions, options)
        answers = (rows, write_answers(rows, rankings)[1], figures)
    folder.mkdir(parents=True, exist_ok=True)
    print("figures and page", file=sys.stderr)
    for warning in write(run, methods, folder, relations, answers):
        print(warning, file=sys.stderr)
    if answers is not None:
        write_text(folder / "heads.md", f"{table(answers[0])}\n\n{answers[1]}\n")
    content = _json(methods, folder / PAGE, answers)
    write_text(folder / "heads_run.json", to_json(content, indent=1) + "\n")
    return to_json(content) if options.json else _text(methods, folder, run.folder, answers)
