# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time of a training step of a recipe, relative to that of another version of this project.

Both versions run their `train.py` in turns, each time in a new process, without the recipe's start: they train the
same new model on the same batches if the recipe has not changed. The printed mean losses show that. Times are CPU
seconds of forward, backward and optimizer; as in `benchmarks.recipe_step` the fastest time of each batch counts, and
the range is that of the medians of single rounds. Data of the recipe that do not exist yet are drawn first, once for
both. A recipe with a relative path is that of each version.

examples:
  git worktree add ../before ed69b74
  OMP_NUM_THREADS=1 python -m benchmarks.step_before ../before --methods none direct
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import make_parser, run

import numpy as np

from benchmarks import step_clock
from benchmarks.recipe_step import add_options, ratios
from grounded_attention.training.experiments.prepared_data import prepare_data
from grounded_attention.training.recipes.recipe import load_recipe

HERE = Path(__file__).resolve().parent.parent

# The clock is that of this version; all else is imported from the other.
_CLOCKED = f"import runpy, sys; runpy.run_path({step_clock.__file__!r})['main'](sys.argv[1], sys.argv[2:])"


def train_in(checkout: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Trains with `train.py` of a checkout in a new process.

    Args:
        checkout (`Path`): its folder.
        arguments (`Sequence[str]`): arguments of `train.py`.

    Returns:
        `dict[str, Any]`: `seconds` of each step, and the logged `losses`.

    Raises:
        ValueError: if the training ends in an error, with the last line that it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.json"
        command = [sys.executable, "-P", "-c", _CLOCKED, str(path), *arguments, f"output_dir={folder}/run"]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        if not path.is_file():
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise ValueError(f"{checkout}: train.py ended with status {done.returncode}: {last}")
        return json.loads(path.read_text())


def measure(options: argparse.Namespace, method: str) -> dict[str, Any]:
    """Trains in both checkouts in turns.

    Args:
        options (`argparse.Namespace`): the options of the command.
        method (`str`): the supervision method.

    Returns:
        `dict[str, Any]`: `ratio` and `rounds` as of `benchmarks.recipe_step`, and the mean losses `before` and `now`.
    """
    checkouts = {"before": options.checkout.resolve(), "now": HERE}
    arguments = make_arguments(options, method)
    found: dict[str, list[list[float]]] = {name: [] for name in checkouts}
    losses: dict[str, float] = {}
    for turn in range(options.rounds):
        for name in list(checkouts)[:: -1 if turn % 2 else 1]:
            run_of = train_in(checkouts[name], arguments)
            found[name].append(run_of["seconds"])
            losses[name] = run_of["losses"][-1]
    return {**ratios({name: np.array(seconds) for name, seconds in found.items()})["now"], **losses}


def make_arguments(options: argparse.Namespace, method: str) -> list[str]:
    """Makes the arguments of `train.py` for both checkouts.

    Args:
        options (`argparse.Namespace`): the options of the command.
        method (`str`): the supervision method.

    Returns:
        `list[str]`: one method without a start, nothing saved, the data of this checkout.
    """
    recipe = load_recipe(options.recipe, options.override)
    prepare_data(recipe)
    places = {
        "data.data_dir": recipe.data.data_dir,
        "data.regions": recipe.data.regions,
        "model.tokenizer": recipe.model.tokenizer,
    }
    # Names on the Hub stay as they are.
    local = {key: Path(place) for key, place in places.items() if isinstance(place, str) and Path(place).exists()}
    given = [f"{key}={place.resolve()}" for key, place in local.items()]
    given += [f"methods=[{method}]", "start=null", "text_only_baseline=false", "workers=1"]
    given += [f"training.{key}={options.steps}" for key in ("max_steps", "logging_steps")]
    given += ["training.save_strategy=no", "training.eval_strategy=no", "training.use_cpu=true"]
    return [options.recipe, *options.override, *given]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(_parser(), _work, arguments)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the options."""
    return _parser().parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m benchmarks.step_before", __doc__)
    parser.add_argument("checkout", type=Path, help="folder of the other version, with its train.py")
    add_options(parser)
    return parser


def _work(options: argparse.Namespace) -> str:
    """One line per method: its time over that of the other version, the range of the rounds, and both mean losses."""
    if not (options.checkout / "train.py").is_file():
        raise ValueError(f"{options.checkout}: no train.py; give the folder of a checkout of this project")
    found = {method: measure(options, method) for method in options.methods}
    if options.json:
        return json.dumps(found)
    return "\n".join(
        f"{name:<14} {own['ratio']:.2f} of before ({min(own['rounds']):.2f} to {max(own['rounds']):.2f}); "
        f"mean loss {own['before']:.4f} before, {own['now']:.4f} now"
        for name, own in found.items()
    )


if __name__ == "__main__":
    sys.exit(main())
