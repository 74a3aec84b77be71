# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention heads --run`: measures the heads of all models of a run and writes one page."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers.utils import logging

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.licences import read_scenes, scenes_command
from grounded_attention.heads.boxes import CENTRE, RANDOM
from grounded_attention.heads.card import BEST_COLUMNS, CARD, HEADS, best_row, boxes_table
from grounded_attention.heads.changes import Changes, compare
from grounded_attention.heads.dependency_parses import read_conllu, relation_examples
from grounded_attention.heads.example_attention import ExampleAttention, capture_examples
from grounded_attention.heads.examples import AuditExample, grounded_examples
from grounded_attention.heads.heads_file import FILE
from grounded_attention.heads.items import DEFAULT_WORD
from grounded_attention.heads.page import heads_page
from grounded_attention.heads.ranking import HeadRanking, Relate, rank_heads
from grounded_attention.heads.statistics import ALL
from grounded_attention.heads.table import HeadTable
from grounded_attention.metrics.intervals import to_json
from grounded_attention.pages.page import note
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.arguments import check_options
from grounded_attention.training.experiments.made_regions import picture_files
from grounded_attention.training.experiments.output import RECIPE, check_rows, read_run
from grounded_attention.training.experiments.prepared_data import (
    built_rows,
    open_regions,
    prepare_data,
    rows_of_images,
)
from grounded_attention.training.experiments.scoring import read_config
from grounded_attention.training.recipes.recipe import Data, Recipe
from grounded_attention.utils.named_types import Fields, Row
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.plain_text import markdown_table
from grounded_attention.utils.progress import with_progress
from grounded_attention.utils.safe_paths import path_below
from grounded_attention.utils.whole_files import write_text

from .heads_options import Heads
from .heads_work import load, one_of_each_image, put_in_card, rows_of_builder, write_files
from .models import ModelOptions
from .rows_options import options_of

PARSES = "parses"
PAGE = "heads.html"
# First images of each split, captions in the explorer.
IMAGES = 200
SHOWN = 4
BUILDER = "flickr30k_entities"
PICTURES = "flickr30k-images"
UNSUPERVISED = "none"  # the method that the others are compared with
TRAIN = "train"
CHOSEN_ON = "validation"
REPORTED = "test"
# Caveats for the reader of the page.
NOT_SHOWN = (
    "A head that looks at a region does not show that the answer of the model depends on it. `evaluate --faithful` "
    "measures this dependence; an answer that is no better with the regions than without them depends on none. An "
    "accurate head that is not active puts little of its attention on any region. The tests sample images, not "
    "training runs: each model has one seed, and another seed may change a number by more than its interval."
)
SCENES = " Scenes are drawn shapes with a vocabulary of a few hundred words; results may differ on photographs."


# The run


@dataclass
class Measured:
    """All results for the model of one method."""

    ranking: HeadRanking
    shown: list[ExampleAttention] = field(default_factory=list)
    changes: Changes | None = None

    @property
    def table(self) -> HeadTable:
        """What was counted on the reported split."""
        return self.ranking.reported_on


@dataclass(frozen=True)
class OwnRows:
    """What a run of `data.source` reads: its regions, the rows of each split, the picture of each image."""

    regions: Any
    rows: Row
    files: Mapping[str, Path]


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its methods and its data.

    `instruction` is what the user says before a caption, for vision-language models; None for other models. `own` is
    there if the rows are those of `data.source`.
    """

    folder: Path
    task: str
    methods: list[str]
    data: Data
    seed: int
    instruction: str | None = None
    own: OwnRows | None = None

    @property
    def splits(self) -> tuple[str, str]:
        """The split on which heads are chosen, and the one on which they are reported."""
        if self.own is None or REPORTED in self.own.rows:
            return (CHOSEN_ON, REPORTED)
        return (TRAIN, CHOSEN_ON)

    @property
    def place(self) -> str:
        """Where the rows come from."""
        return self.data.source or self.data.data_dir

    @property
    def scenes(self) -> Any:
        """What scenes the data are, if they are scenes."""
        if self.own:
            return None
        return read_scenes(Path(self.data.data_dir))

    @property
    def reads_tokens(self) -> bool:
        """Whether the models are vision-language models, whose regions are image tokens."""
        return self.instruction is not None

    @property
    def region_name(self) -> str:
        """What the regions of the models are, for tables and errors."""
        regions = self.data.regions
        if self.reads_tokens:
            return "image tokens"
        return str(getattr(regions, "detector", regions))

    def picture_path(self, image_id: str) -> Path:
        """The file of an image."""
        if self.own is not None:
            return self.own.files[image_id]
        return path_below(self.data.images or Path(str(self.data.data_dir), PICTURES), f"{image_id}.jpg")

    def picture(self, image_id: str) -> Any:
        """An image."""
        return open_image(self.picture_path(image_id))


def measure_method(
    run: Run,
    name: str,
    examples: Mapping[str, Sequence[AuditExample]],
    relate: Relate | None,
    regions: Any,
    explored: Sequence[AuditExample],
    options: Heads,
    loading: ModelOptions,
) -> Measured:
    """Chooses the heads of one model on one split, reports them on the other, and captures attention in examples."""
    source, (chosen_on, reported) = str(run.folder / name), run.splits
    data = BUILDER if run.own is None else run.place
    model, processor = load(source, options, loading, regions)
    ranking = rank_heads(
        model,
        processor,
        examples[chosen_on],
        run.picture,
        report=examples[reported],
        regions=regions,
        count=options.top_k,
        words=options.words or ("mean" if run.reads_tokens else DEFAULT_WORD),
        instruction=run.instruction,
        ablate=options.ablate or 0,
        seed=run.seed,
        relate=relate,
        progress=True,
        about={"model": name, "data": data, "split": reported, "choose_on": chosen_on, "regions": run.region_name},
    )
    read = (explored, regions, run.picture, run.instruction)
    return Measured(ranking, capture_examples(model, processor, *read))


# Input and measurement


def find_run(options: Heads, cpu: bool = True) -> Run:
    """Finds the run and checks that its models are complete."""
    folder = Path(str(options.run))
    remedy = "make it with `make train`, or with train.py and another recipe"
    recipe = read_run(folder, remedy)
    data = replace(recipe.data, scenes=None)
    if options.data_dir is not None:
        trained = Path(str(data.data_dir))
        images = Path(data.images or "")
        if data.images and images.is_relative_to(trained):
            data.images = str(Path(options.data_dir, images.relative_to(trained)))
        data.data_dir = options.data_dir
        data.source = None
        data.regions = str(Path(options.data_dir, "regions"))
    task_options = check_options(TASKS[recipe.task], recipe.options, f"{folder / RECIPE}: options")
    methods = sorted(recipe.methods, key=lambda name: name != UNSUPERVISED)
    for name in methods:
        if not (folder / name / "results.json").is_file():
            raise ValueError(f"{folder / name}: results.json is missing, so this model is not finished; {remedy}")
        read_config(str(folder / name), TASKS[recipe.task])
    instruction = task_options.caption_prompt if TASKS[recipe.task].image_tokens else None
    own = None if data.source is None else _own_rows(recipe, folder, cpu)
    return Run(folder, recipe.task, methods, data, recipe.seed, instruction, own)


def _own_rows(recipe: Recipe, folder: Path, cpu: bool) -> OwnRows:
    """The rows of `data.source`, if they are still those of the run."""
    recipe = replace(recipe, training={"use_cpu": cpu, "disable_tqdm": True})
    with redirect_stdout(sys.stderr):  # how rows were read
        data = prepare_data(recipe)
    check_rows(folder, data.split or {})
    return OwnRows(data.regions, built_rows(recipe, data), picture_files(data.splits, os.sep))


def load_examples(run: Run, limit: int) -> dict[str, list[AuditExample]]:
    """Split -> the captions with phrases of its first images; of a vision-language model one for each image."""
    splits = run.splits
    if run.own is None:
        known = options_of(BUILDERS[BUILDER])
        builder_options = {key: value for key, value in run.data.options.items() if key in known}
        parts = rows_of_builder(BUILDER, str(run.data.data_dir), splits, limit, builder_options)
        examples = [grounded_examples(rows) for rows in parts]
    else:
        every = (run.own.rows[split] for split in splits)
        parts = [rows_of_images(rows, rows.unique("image_id")[:limit]) for rows in every]
        examples = [grounded_examples(rows) for rows in parts]
    chosen = one_of_each_image if run.reads_tokens else list
    return {split: chosen(found) for split, found in zip(splits, examples, strict=True)}


def relations_of(run: Run) -> tuple[Relate | None, str]:
    """What finds words related to entities, and a note for the page; nothing if the data have no parses."""
    if run.own is not None:
        return None, f"left out: {run.place} has no parses"
    folder = Path(run.place, PARSES)
    if not folder.is_dir():
        remedy = ""
        if run.scenes:
            remedy = f"; {scenes_command(run.scenes, run.place)} --force writes them with parses"
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


def measure(options: Heads, loading: ModelOptions, run: Run) -> tuple[dict[str, Measured], str]:
    """Everything on the page: method -> results of its model; and a note about the relations."""
    if run.own is None:
        table = open_regions(run.data.regions)
    else:
        table = run.own.regions
    regions = None if run.reads_tokens else table
    reported = run.splits[1]
    examples = load_examples(run, IMAGES if options.limit is None else options.limit)
    relate, note = relations_of(run)
    if relate is None:
        print(f"relations {note}", file=sys.stderr)
    explored = to_explore(run, examples[reported], SHOWN if options.explore is None else options.explore)
    methods: dict[str, Measured] = {}
    for name in run.methods:
        print(f"heads: {name}", file=sys.stderr)
        methods[name] = measure_method(run, name, examples, relate, regions, explored, options, loading)
        if not run.reads_tokens and len(methods[name].table.entities) < 2:
            raise ValueError(
                f"{run.place}, split {reported}: no phrase has a region of {run.region_name} on a box; no "
                "head can be measured: give more images with --limit, or a region table of these images"
            )
        if name != UNSUPERVISED and UNSUPERVISED in methods:
            methods[name].changes = compare(methods[UNSUPERVISED].table, methods[name].table, (UNSUPERVISED, name))
    return methods, note


# Output


def write(run: Run, methods: Mapping[str, Measured], folder: Path, relations: str) -> list[str]:
    """Writes the output folder and the sections of the model cards; returns warnings about the cards."""
    for name, measured in with_progress(methods.items(), "numbers of models", len(methods)):
        write_files(measured.ranking, measured.changes, folder / name)
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
    extra = {"What this does not show": note(limits)}
    page = heads_page(tables, "What the methods do to the heads", about=about, examples=shown, extra=extra)
    write_text(folder / PAGE, page)
    warnings = (_put_card(methods[name], run, name, folder / name) for name in methods)
    return [warning for warning in warnings if warning is not None]


def _put_card(measured: Measured, run: Run, name: str, pictures: Path) -> str | None:
    """Writes what was measured into the model card; returns a warning if there is no card or no place for it."""
    model = run.folder / name
    if run.reads_tokens:
        write_text(model / FILE, to_json(measured.ranking.to_dict(), indent=1) + "\n")
    if not HEADS.is_in(model):
        return f"{model / CARD}: no card with a place for the heads; nothing was written to it"
    put_in_card(measured.ranking, None, str(model), pictures)
    return None


# What is printed


def _table(methods: Mapping[str, Measured], splits: tuple[str, str]) -> str:
    rows = []
    for name, measured in methods.items():
        for best in measured.table.best_heads():
            if best["group"] == ALL:
                changes = measured.changes
                kind = best["kind"]
                changed = "–"
                if changes is not None:
                    changed = "{} better, {} worse".format(*changes.better_and_worse(kind))
                rows.append((name, *best_row(best), changed))
    boxes = [{**asdict(measured.ranking.boxes[0]), "name": name} for name, measured in methods.items()]
    ranking = next(iter(methods.values())).ranking
    boxes += [asdict(score) for score in ranking.boxes if score.name in (CENTRE, RANDOM)]
    return (
        f"heads chosen on {splits[0]}, reported on {splits[1]}; changed: against {UNSUPERVISED}, p ≤ 0.05 (Holm)\n"
        f"{markdown_table(('model', *BEST_COLUMNS, 'changed heads'), rows, 2, aligned=True)}\n\n"
        f"the {len(ranking.heads)} best heads of each model together:\n{boxes_table(boxes)}"
    )


def _json(run: Run, methods: Mapping[str, Measured], page: Path) -> Fields:
    of_methods = {}
    for name, measured in methods.items():
        of_methods[name] = {
            "best": measured.table.best_heads(),
            "boxes": [asdict(score) for score in measured.ranking.boxes],
            "changes": None if measured.changes is None else measured.changes.to_dict(),
        }
    chosen_on, reported = run.splits
    return {"page": str(page), "heads_chosen_on": chosen_on, "split": reported, "methods": of_methods}


def work(options: Heads, loading: ModelOptions) -> tuple[Any, str]:
    """Measures the models of a run, and writes the page and its folder."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    PartialState(cpu=loading.device == "cpu" or not torch.cuda.is_available())
    run = find_run(options, loading.device == "cpu")
    folder = Path(options.output or run.folder / "heads")
    methods, relations = measure(options, loading, run)
    print("pictures and page", file=sys.stderr)
    for warning in write(run, methods, folder, relations):
        print(warning, file=sys.stderr)
    content = _json(run, methods, folder / PAGE)
    write_text(folder / "heads_run.json", to_json(content, indent=1) + "\n")
    return content, (
        f"{_table(methods, run.splits)}\nwritten: {folder / PAGE}\n"
        f"next: open {folder / PAGE} in a browser (its explorer shows every head); then\n"
        "  grounded-attention ground --help    # what a model looks at in your image\n"
        f"  grounded-attention push {run.folder} ORG/NAME --private    # its best method"
    )
