# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures how faithful maps of relevance are: takes regions away by each map and sees what is left of the accuracy.

Compared are raw attention (raw_last, raw_mean), rollout, gradient-weighted relevancy, and a random order; what they
are: docs/audit.md. The folder --output gets perturbation.json, perturbation.csv and perturbation.png.

Tasks: vgp (which caption describes the image), vqa (the official accuracy), referring_expressions.

examples:
  grounded-attention perturb runs/scenes_vgp/direct --task vgp --data-dir data/scenes \\
      --regions data/scenes/regions --split test --limit 500

  grounded-attention perturb runs/vqa/none --task vqa --data-dir data/vqa --regions data/regions \\
      --maps rollout relevancy --steps 5
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from grounded_attention.analysis.perturbation_curves import STEPS, area_text
from grounded_attention.analysis.relevancy import MAPS
from grounded_attention.metrics.intervals import to_json
from grounded_attention.reports.perturbation_figure import perturbation_figure
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.perturbing import explainable, measure_perturbation
from grounded_attention.training.experiments.scoring import read_config
from grounded_attention.training.experiments.setup import prepare_data
from grounded_attention.training.recipes.recipe import Data, Recipe

from .command_line import make_parser, run
from .command_settings import below, settings
from .user_errors import explain

# The work


def check_asked(asked: argparse.Namespace) -> None:
    """Refuses what cannot be measured as asked.

    Raises:
        ValueError: names the argument.
    """
    if asked.task not in explainable():
        raise ValueError(f"--task {asked.task}: no decision to explain is known; known: {', '.join(explainable())}")
    for name in ("limit", "batch_size", "steps"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected 1 or more")


def to_recipe(asked: argparse.Namespace, config: Any) -> Recipe:
    """The recipe of the data and options."""
    given = settings(asked.set)
    options = TASKS[asked.task].trained_options(config, True)
    data = Data(
        data_dir=asked.data_dir,
        builder=given.get("data.builder"),
        regions=asked.regions,
        options={**below("data.options.", given), "splits": [asked.split]},
        train_splits=[asked.split],
        limit={} if asked.limit is None else {asked.split: asked.limit},
    )
    training = {"per_device_eval_batch_size": asked.batch_size, "use_cpu": asked.cpu}
    return Recipe(asked.task, options | below("options.", given), seed=asked.seed, data=data, training=training)


def evaluate(asked: argparse.Namespace) -> str:
    """Does what the command is asked and returns what it prints.

    Raises:
        ValueError: any mistake of the user, in one sentence.
    """
    check_asked(asked)
    recipe = to_recipe(asked, read_config(asked.checkpoint, TASKS[asked.task]))
    keys = ("checkpoint", "task", "data_dir", "regions", "split", "limit", "seed", "set")
    curves = measure_perturbation(
        recipe,
        asked.checkpoint,
        prepare_data(recipe),
        asked.split,
        maps=tuple(dict.fromkeys(asked.maps)),
        steps=asked.steps,
        about={key: getattr(asked, key) for key in keys},
    )
    folder = Path(asked.output or Path("runs", "perturbation", "_".join(Path(asked.checkpoint).parts[-2:])))
    curves.save(folder)
    perturbation_figure(curves, folder / "perturbation.png", f"{asked.task}, {asked.split}")
    rows = curves.summary()
    if asked.json:
        return to_json({"accuracy": float(curves.accuracy[0, 0]), "areas": rows})
    return f"accuracy with all regions {curves.accuracy[0, 0]:.4f}\n{_table(rows)}\nwritten: {folder}"


COLUMNS = ("most", "least", "gap")


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{'area of':12}{'most first':>24}{'least first':>24}{'gap':>24}"]
    for row in rows:
        cells = [area_text(row, name) for name in COLUMNS]
        lines.append(f"{row['map']:12}" + "".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 0, or 2 after an error in one line on standard error."""
    return run(build_parser(), _work, arguments, explain=explain)


def _work(asked: argparse.Namespace) -> str:
    asked.split = "validation" if asked.split == "val" else asked.split
    logging.set_verbosity_error()
    return evaluate(asked)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention perturb", __doc__)
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="folder of a trained model, or a name on the Hub")
    add("--task", required=True, metavar="NAME", help=f"one of {', '.join(explainable())}")
    add("--data-dir", required=True, metavar="DIR", help="folder of the data set, see docs/data.md")
    add("--regions", required=True, metavar="TABLE", help="region table")
    add("--split", default="validation", metavar="NAME", help="split (default: validation)")
    add("--maps", nargs="+", default=list(MAPS), choices=MAPS, metavar="MAP", help=f"of {', '.join(MAPS)} (all)")
    add("--steps", type=int, default=STEPS, metavar="N", help=f"in how many steps the regions go (default: {STEPS})")
    add("--output", metavar="DIR", help="folder of what is written (default: below runs/perturbation)")
    add("--limit", type=int, metavar="N", help="at most so many rows, after a seeded shuffle")
    add("--batch-size", type=int, default=32, metavar="N", help="rows at a time (default: 32)")
    add("--seed", type=int, default=0, metavar="N", help="of --limit and of the random order")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="data.builder, data.options.*, options.*")
    add("--cpu", action="store_true", help="leave a GPU unused")
    add("--json", action="store_true", help="print the figures as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
