# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time of a training step of a recipe with each method, relative to the first of `--methods`.

All methods train the same new model on the same batches, with the Trainer of the recipe, on a CPU. In a round each
trains for some steps, in alternating order and in a new process, as in a run: one process is some percent faster than
another. A step is forward, backward and optimizer; making batches is not part of it. Times are CPU
seconds of the process. All rounds have the same batches, so the fastest time of each batch counts: other work on the
machine disturbs some rounds, not all. The range is that of the medians of single rounds. Data of the recipe that do
not exist yet are drawn first.

examples:
  OMP_NUM_THREADS=1 python -m benchmarks.recipe_step
  OMP_NUM_THREADS=1 python -m benchmarks.recipe_step --override model.family=vilbert --methods none direct
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import make_parser, run

import numpy as np
import transformers

from benchmarks.apart import run_apart
from benchmarks.step_clock import StepClock
from grounded_attention.commands.number_options import count
from grounded_attention.training.experiments.models import make_processor
from grounded_attention.training.experiments.prepared_data import prepare_data
from grounded_attention.training.experiments.trainers import make_trainer
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.recipes.recipe import load_recipe

RECIPE = "recipes/scenes/scenes_vgp.yaml"
METHODS = ["none", "direct", "semi_direct"]


def make_trainer_of(method: str, options: argparse.Namespace, folder: Path) -> GroundingTrainer:
    """Makes the Trainer of a method; its recipe saves and measures nothing."""
    kept = [f"training.max_steps={options.steps}", "training.save_strategy=no", "training.eval_strategy=no"]
    kept += ["training.disable_tqdm=true", "training.use_cpu=true"]
    recipe = load_recipe(options.recipe, [*options.override, *kept])
    return make_trainer(recipe, method, prepare_data(recipe), make_processor(recipe.model), folder / method)


def time_method(method: str, options: argparse.Namespace, folder: Path) -> list[float]:
    """Trains with a method; returns the CPU seconds of each step."""
    transformers.logging.set_verbosity_error()
    trainer, clock = make_trainer_of(method, options, folder), StepClock()
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds


def measure(options: argparse.Namespace, folder: Path) -> dict[str, np.ndarray]:
    """Returns method -> CPU seconds (rounds, steps)."""
    if len(options.methods) != len(set(options.methods)) or len(options.methods) < 2:
        raise ValueError(f"--methods {' '.join(options.methods)}: give at least two methods, each once")
    found: dict[str, list[list[float]]] = {name: [] for name in options.methods}
    for turn in range(options.rounds):
        for name in options.methods[:: -1 if turn % 2 else 1]:
            found[name].append(run_apart(time_method, name, options, folder))
    return {name: np.array(seconds) for name, seconds in found.items()}


def ratios(times: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Returns method -> its time over that of the first method: of the fastest steps, and of each round."""
    first, *others = times
    return {
        name: {
            "ratio": float(times[name].min(0).sum() / times[first].min(0).sum()),
            "rounds": (np.median(times[name], axis=1) / np.median(times[first], axis=1)).tolist(),
        }
        for name in others
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(_parser(), _work, arguments)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the options."""
    return _parser().parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m benchmarks.recipe_step", __doc__)
    add_options(parser)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the options of a comparison of its steps to a parser."""
    parser.add_argument("recipe", nargs="?", default=RECIPE, help="recipe file (default: %(default)s)")
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="changes a key; repeatable"
    )
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="NAME", help="default: %(default)s")
    parser.add_argument("--steps", type=count, default=40, metavar="N", help="steps of a round (default: 40)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="rounds (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the ratios of every round as JSON instead")


def _work(options: argparse.Namespace) -> str:
    """One line per method but the first: its time over that of the first, and the range of the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        found = ratios(measure(options, Path(folder)))
    if options.json:
        return json.dumps(found)
    return "\n".join(
        f"{name:<14} {own['ratio']:.2f} of {options.methods[0]} ({min(own['rounds']):.2f} to {max(own['rounds']):.2f})"
        for name, own in found.items()
    )


if __name__ == "__main__":
    sys.exit(main())
