# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Audits all models of a run and writes the page of `grounded-attention audit-run`."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
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
from grounded_attention.heads.card import CARD, PLACE, put_in_card
from grounded_attention.heads.changes import compare
from grounded_attention.heads.example_attention import best_heads, naming_words
from grounded_attention.heads.example_attention import words_across_layers_figure as draw_words
from grounded_attention.heads.examples import entity_examples
from grounded_attention.heads.page import ExtraSection, audit_page
from grounded_attention.heads.table import AuditResult
from grounded_attention.metrics.intervals import interval_text, to_json
from grounded_attention.reports.perturbation_figure import NAMES, perturbation_figure
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.arguments import check_options
from grounded_attention.training.experiments.output import RECIPE, read_run
from grounded_attention.training.experiments.perturbing import explainable, measure_perturbation
from grounded_attention.training.experiments.prepared_data import PreparedData, open_regions, prepare_data
from grounded_attention.training.experiments.scoring import read_config
from grounded_attention.training.recipes.recipe import Data, Recipe
from grounded_attention.utils.bounded_files import read_text
from grounded_attention.utils.whole_files import write_json, write_text

from .audit_run_models import BUILDER, CHOSEN_ON, REPORTED, Audited, Run, audit_method, picture_path, region_name
from .builder_options import options_of

SPLITS = {CHOSEN_ON: "val", REPORTED: "test"}  # split -> stem of its parse file
UNSUPERVISED = "none"  # the method that the others are compared with
PARSES, PAGE = "parses", "audit.html"
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
    """
    Finds the run and checks that its models are complete.
    """
    folder = Path(options.run)
    remedy = "make it with `make train`, or with train.py and another recipe"
    recipe = read_run(folder, remedy)
    data = replace(recipe.data, scenes=None)
    if options.data_dir is not None:
        data.data_dir, data.regions = options.data_dir, str(Path(options.data_dir, "regions"))
    methods = sorted(recipe.methods, key=lambda name: name != UNSUPERVISED)
    for name in methods:
        if not (folder / name / "results.json").is_file():
            raise ValueError(f"{folder / name}: results.json is missing, so this model is not finished; {remedy}")
        read_config(str(folder / name), TASKS[recipe.task])
    task_options = check_options(TASKS[recipe.task], recipe.options, f"{folder / RECIPE}: options")
    instruction = task_options.caption_prompt if TASKS[recipe.task].image_tokens else None
    return Run(folder, recipe.task, methods, data, recipe.seed, instruction)


def load_rows(data: Data, limit: int) -> dict[str, Any]:
    """Split -> rows of its first images, with captions and phrases."""
    given = {key: value for key, value in data.options.items() if key in options_of(BUILDERS[BUILDER])}
    builder = BUILDERS[BUILDER](data_dir=data.data_dir, splits=list(SPLITS), **given)
    builder.download_and_prepare()
    rows = dict(builder.as_dataset())
    return {name: found.select(range(min(limit, len(found)))) for name, found in rows.items()}


def relations_of(rows: Mapping[str, Any], data: Data) -> tuple[dict[str, list], str]:
    """Split -> words related to entities, and a note for the page; no words if the data have no parses."""
    folder = Path(data.data_dir, PARSES)
    if not folder.is_dir():
        scenes = read_scenes(Path(data.data_dir))
        remedy = f"; {scenes_command(scenes, data.data_dir)} --force writes them with parses" if scenes else ""
        return {name: [] for name in rows}, f"left out: no parses in {folder}{remedy}"
    words = {}
    for name, found in rows.items():
        file = folder / f"{SPLITS[name]}.conllu"
        words[name] = relation_examples(entity_examples(found), read_conllu(file if file.is_file() else folder))
    return words, f"from the parses in {folder}"


# Measurement


def to_explore(rows: Any, data: Data, count: int) -> list[Any]:
    """The first caption with several grounded phrases, for each of the first images whose file exists."""
    found: dict[str, Any] = {}
    for example in entity_examples(rows):
        if len(found) == count:
            break
        grounded = sum(len(phrase.boxes) > 0 for phrase in example.phrases)
        path = picture_path(data, example.image_id)
        if grounded > 1 and example.image_id not in found and path.is_file():
            found[example.image_id] = example
    return list(found.values())


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


def measure(options: argparse.Namespace, run: Run) -> tuple[dict[str, Audited], str]:
    """Everything on the page: method -> results of its model; and a note about the relations."""
    regions = None if run.reads_tokens else open_regions(run.data.regions)
    rows = load_rows(run.data, options.limit)
    words, note = relations_of(rows, run.data)
    if note.startswith("left out"):
        print(f"relations {note}", file=sys.stderr)
    explored = to_explore(rows[REPORTED], run.data, options.explore)
    compared = perturbation_rows(run, options.rows, options.cpu)
    found: dict[str, Audited] = {}
    for name in run.methods:
        print(f"audit: {name}", file=sys.stderr)
        of_splits = {split: (rows[split], words[split]) for split in SPLITS}
        found[name] = audit_method(run, name, of_splits, regions, explored, options.cpu)
        _check_measured(found[name].result, run)
        if name != UNSUPERVISED and UNSUPERVISED in found:
            found[name].changes = compare(found[UNSUPERVISED].result, found[name].result, (UNSUPERVISED, name))
        if compared is not None:
            found[name].curves = curves_of(run, name, *compared)
    return found, note


def _check_measured(result: AuditResult, run: Run) -> None:
    """Raises `ValueError` if no word, or no region, could be measured."""
    wanted = {"text_to_region"} if run.reads_tokens else {"text_to_region", "region_to_text"}
    if not wanted <= {best.kind for best in result.best_heads() if best.group == "all"}:
        raise ValueError(
            f"{run.data.data_dir}, split {REPORTED}: no phrase has a region of {region_name(run)} on a box; no head "
            "can be measured: give more images with --limit, or a region table of these images"
        )


# Output


def write(run: Run, found: Mapping[str, Audited], folder: Path, relations: str) -> list[str]:
    """Writes the output folder and the audit sections of the model cards; returns warnings about the cards."""
    for name, audited in found.items():
        _write_method(audited, folder / name)
    images = len(next(iter(found.values())).result.entities["text_to_region"]["all"].image_ids)
    about = [
        ("run", f"{run.folder}, seed {run.seed}; models: {', '.join(found)}"),
        ("data", f"{run.data.data_dir}, builder {BUILDER}; heads chosen on {CHOSEN_ON}, reported on {REPORTED}"),
        ("images", f"the first {images} of {REPORTED}, and up to as many of {CHOSEN_ON}"),
        ("relations", relations),
    ]
    results = {name: audited.result for name, audited in found.items()}
    shown = {name: audited.shown for name, audited in found.items() if audited.shown}
    limits = NOT_SHOWN + (SCENES if read_scenes(Path(run.data.data_dir)) else "")
    extra = [*_maps(found, folder), ExtraSection("What this does not show", limits)]
    page = audit_page(results, "What the methods do to the heads", about=about, examples=shown, extra=extra)
    write_text(folder / PAGE, page)
    warnings = (_put_card(found[name].result, run.folder / name) for name in found)
    return [warning for warning in warnings if warning is not None]


def _write_method(audited: Audited, folder: Path) -> None:
    audited.result.save(folder)
    write_text(folder / "heads.csv", audited.result.to_pandas().to_csv(index=False))
    audited.result.plot(folder)
    if audited.changes is not None:
        write_json(folder / "changes.json", audited.changes.to_dict())
        audited.changes.plot(folder)
    if audited.curves is not None:
        audited.curves.save(folder)
        perturbation_figure(audited.curves, folder / "perturbation.png", "Which map is faithful?")
    if audited.shown:
        counts = audited.result.entities["text_to_region"]["all"]
        heads = best_heads(counts.accuracy, MOST_LAYERS, counts.active)
        draw_words(audited.shown[0], naming_words(audited.shown[0]), heads, folder / "words_across_layers.png")


def _put_card(result: AuditResult, model: Path) -> str | None:
    """Writes the section into the model card; returns a warning if there is no card or no place for it."""
    card = model / CARD
    if not card.is_file() or PLACE not in read_text(card):
        return f"{card}: no card with a place for the audit section; nothing was written to it"
    put_in_card(result, card)
    return None


def _maps(found: Mapping[str, Audited], folder: Path) -> list[ExtraSection]:
    """The comparison of maps: a table of all models, and the curves of the model that needs its regions most."""
    curves = {name: audited.curves for name, audited in found.items() if audited.curves is not None}
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


def _table(found: Mapping[str, Audited]) -> str:
    lines = [f"heads chosen on {CHOSEN_ON}, reported on {REPORTED}; changed: against {UNSUPERVISED}, p ≤ 0.05 (Holm)"]
    for direction, title in (("text_to_region", "text → region"), ("region_to_text", "region → text")):
        if all(direction not in audited.result.entities for audited in found.values()):
            continue  # causal models have no rows of the image
        lines.append(f"{title:16}{'best head':>10}{'accuracy':>26}{'attention':>11}{'changed heads':>20}")
        for name, audited in found.items():
            best = next(b for b in audited.result.best_heads() if b.kind == direction and b.group == "all")
            head = audited.result.name(best.layer, best.head) + ("" if best.active else "*")
            accuracy = f"{best.accuracy:.1%} ({interval_text(best.interval)})"
            lines.append(f"  {name:14}{head:>10}{accuracy:>26}{best.share:>11.0%}{_changed(audited, direction):>20}")
        lines.append(f"  {'rule, chance':14}{'':10}{f'{best.baseline:.1%}, {best.chance:.1%}':>26}")
    if any(
        not best.active for audited in found.values() for best in audited.result.best_heads() if best.group == "all"
    ):
        lines.append("* not active: at most a fifth of its attention is on the candidates")
    return "\n".join(lines)


def _changed(audited: Audited, direction: str) -> str:
    if audited.changes is None:
        return "–"
    sure = audited.changes.significant(direction)
    up = int((sure & (audited.changes.comparisons[direction].difference > 0)).sum())
    return f"{up} better, {int(sure.sum()) - up} worse"


def _json(found: Mapping[str, Audited], page: Path) -> str:
    methods = {
        name: {
            "best": [{**asdict(b), "layer": audited.result.layers[b.layer]} for b in audited.result.best_heads()],
            "changes": None if audited.changes is None else audited.changes.to_dict(),
            "perturbation": None if audited.curves is None else audited.curves.summary(),
        }
        for name, audited in found.items()
    }
    return to_json({"page": str(page), "heads_chosen_on": CHOSEN_ON, "split": REPORTED, "methods": methods})


def _best_method(found: Mapping[str, Audited]) -> str:
    """The method whose best heads are right most often, mean over the directions."""

    def accuracy(name: str) -> float:
        return fmean(best.accuracy for best in found[name].result.best_heads() if best.group == "all")

    return max(found, key=lambda name: (accuracy(name), name != UNSUPERVISED))


def _text(found: Mapping[str, Audited], folder: Path, run: Path) -> str:
    return (
        f"{_table(found)}\nwritten: {folder / PAGE}\n"
        f"next: open {folder / PAGE} in a browser (its explorer shows every head); then\n"
        "  grounded-attention ground --help    # what a model looks at in your image\n"
        f"  grounded-attention push {run / _best_method(found)} ORG/NAME --private"
    )


def work(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for name, least in (("limit", 1), ("rows", 0), ("explore", 0)):
        if getattr(options, name) < least:
            raise ValueError(f"--{name} {getattr(options, name)}: expected {least} or more")
    PartialState(cpu=options.cpu or not torch.cuda.is_available())
    run = find_run(options)
    folder = Path(options.output or run.folder / "audit")
    found, relations = measure(options, run)
    folder.mkdir(parents=True, exist_ok=True)
    print("figures and page", file=sys.stderr)
    for warning in write(run, found, folder, relations):
        print(warning, file=sys.stderr)
    return _json(found, folder / PAGE) if options.json else _text(found, folder, run.folder)
