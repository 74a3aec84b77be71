# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures how faithful relevancy maps are: removes regions in the order of each map and measures the accuracy.

The maps are raw attention (raw_last, raw_mean), rollout, gradient-weighted relevancy and a random order; docs/audit.md
explains them. The command writes perturbation.json, perturbation.csv and perturbation.png to the folder --output.

Tasks: vgp (which caption describes the image), vqa and gqa (the official accuracy), referring_expressions.

examples:
  grounded-attention perturb runs/scenes_vgp/direct --task vgp --data-dir data/scenes \\
      --regions data/scenes/regions --split test --limit 500

  grounded-attention perturb runs/vqa/none --task vqa --data-dir data/vqa --regions data/regions \\
      --maps rollout relevancy --steps 5
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.analysis import MAPS, STEPS
from grounded_attention.metrics.intervals import to_json
from grounded_attention.tasks import TASKS
from grounded_attention.training.recipes.recipe import Data, Recipe

from .command_line import make_main, make_parser
from .command_settings import below, settings
from .number_options import positive, seed_number
from .user_errors import explain_error

# Measurement


def check_options(options: argparse.Namespace) -> None:
    """Checks the options before anything is loaded."""
    from grounded_attention.training.experiments.scoring import explainable

    if options.task not in explainable():
        raise ValueError(f"--task {options.task}: expected one of {', '.join(explainable())}")


def to_recipe(options: argparse.Namespace, config: Any) -> Recipe:
    """The recipe of the data and options."""
    values = settings(options.set)
    for_task = TASKS[options.task].trained_options(config, True) | below("options.", values)
    data = Data(
        data_dir=options.data_dir,
        builder=values.get("data.builder"),
        regions=options.regions,
        options={**below("data.options.", values), "splits": [options.split]},
        train_splits=[options.split],
        limit={} if options.limit is None else {options.split: options.limit},
    )
    training = {"per_device_eval_batch_size": options.batch_size, "use_cpu": options.cpu}
    return Recipe(options.task, for_task, seed=options.seed, data=data, training=training)


def evaluate(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    from grounded_attention.pages.perturbation_figure import perturbation_figure
    from grounded_attention.training.experiments.prepared_data import prepare_data
    from grounded_attention.training.experiments.scoring import measure_perturbation, read_config

    check_options(options)
    recipe = to_recipe(options, read_config(options.checkpoint, TASKS[options.task]))
    keys = ("checkpoint", "task", "data_dir", "regions", "split", "limit", "seed", "set")
    curves = measure_perturbation(
        recipe,
        options.checkpoint,
        prepare_data(recipe),
        options.split,
        maps=tuple(dict.fromkeys(options.maps)),
        steps=options.steps,
        about={key: getattr(options, key) for key in keys},
    )
    folder = Path(options.output or Path("runs", "perturbation", "_".join(Path(options.checkpoint).parts[-2:])))
    curves.save(folder)
    perturbation_figure(curves, folder / "perturbation.png", f"{options.task}, {options.split}")
    rows = curves.summary()
    if options.json:
        return to_json({"accuracy": float(curves.accuracy[0, 0]), "areas": rows})
    return f"accuracy with all regions {curves.accuracy[0, 0]:.4f}\n{_table(rows)}\nwritten: {folder}"


COLUMNS = ("most", "least", "gap")


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    from grounded_attention.analysis.perturbation_curves import area_text

    lines = [f"{'area of':12}{'most first':>24}{'least first':>24}{'gap':>24}"]
    for row in rows:
        cells = [area_text(row, name) for name in COLUMNS]
        lines.append(f"{row['map']:12}" + "".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)


def _work(options: argparse.Namespace) -> str:
    from transformers.utils import logging

    options.split = "validation" if options.split == "val" else options.split
    logging.set_verbosity_error()
    return evaluate(options)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention perturb", __doc__)
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="folder of a trained model, or a name on the Hub")
    add("--task", required=True, metavar="NAME", help="a task such as vgp or vqa; an error lists all")
    add("--data-dir", required=True, metavar="DIR", help="folder of the data set, see docs/data.md")
    add("--regions", required=True, metavar="TABLE", help="folder of the region table")
    add("--split", default="validation", metavar="NAME", help="split (default: validation)")
    add(
        "--maps",
        nargs="+",
        default=list(MAPS),
        choices=MAPS,
        metavar="MAP",
        help=f"maps to compare, of {', '.join(MAPS)} (default: all)",
    )
    add(
        "--steps",
        type=positive,
        default=STEPS,
        metavar="N",
        help=f"number of steps in which regions are removed (default: {STEPS})",
    )
    add("--output", metavar="DIR", help="output folder (default: a folder in runs/perturbation)")
    add("--limit", type=positive, metavar="N", help="at most N rows, after a seeded shuffle")
    add("--batch-size", type=positive, default=32, metavar="N", help="rows per batch (default: 32)")
    add("--seed", type=seed_number, default=0, metavar="N", help="seed of --limit and of the random order")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of a recipe: data.builder, data.options.*, options.*",
    )
    add("--cpu", action="store_true", help="run on the CPU even if there is a GPU")
    add("--json", action="store_true", help="print the numbers as JSON")
    return parser


main = make_main(build_parser, _work, explain_error=explain_error)
