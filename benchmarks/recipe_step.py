# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time of a training step of a recipe with each method, relative to the first of `--methods`, or to another version.

All methods train the same new model on the same batches with `train.py`, on a CPU. In a round each trains for some
steps, in alternating order and in a new process: one process is some percent faster than another. A step is forward,
backward and optimizer; making batches is not part of it. Times are CPU seconds of the process. All rounds have the
same batches, so the fastest time of each batch counts: other work on the machine disturbs some rounds, not all. The
range is that of the medians of single rounds. Data of the recipe that do not exist yet are drawn first.

With `--before` each method is compared with itself in another version of this project: `train.py` of both checkouts
trains in turns on the same data. A recipe with a relative path is that of each version. The printed mean losses show
whether both train the same.

examples:
  OMP_NUM_THREADS=1 python -m benchmarks.recipe_step
  OMP_NUM_THREADS=1 python -m benchmarks.recipe_step --override model.family=vilbert --methods none direct
  OMP_NUM_THREADS=1 python -m benchmarks.recipe_step --before ../before --methods none direct
"""

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from benchmarks.measuring import benchmark_parser
from grounded_attention.commands.command_line import positive, run
from grounded_attention.training.experiments.prepared_data import prepare_data
from grounded_attention.training.recipes.recipe import load_recipe

RECIPE = "recipes/scenes/scenes_vgp.yaml"
METHODS = ["none", "direct", "semi_direct"]
HERE = Path(__file__).resolve().parent.parent
Runs = list[dict[str, Any]]
"""Of each round the `seconds` of the steps and the logged `losses`."""


class StepClock(transformers.TrainerCallback):
    """Measures the CPU seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.begin = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.begin = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.process_time() - self.begin)


def train_clocked(folder: str, arguments: list[str]) -> None:
    """Runs the `train.py` of a checkout up to the end of its first training; prints seconds of steps and losses."""
    train = transformers.Trainer.train

    def timed(trainer: transformers.Trainer, *args: Any, **kwargs: Any) -> None:
        clock = StepClock()
        trainer.add_callback(clock)
        train(trainer, *args, **kwargs)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print(json.dumps({"seconds": clock.seconds, "losses": losses}), flush=True)
        sys.exit(0)  # what follows measures the model

    transformers.Trainer.train = timed  # type: ignore[method-assign]
    sys.argv = ["train.py", *arguments]
    runpy.run_path(str(Path(folder, "train.py")), run_name="__main__")


def train_in(checkout: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Trains in a new process; returns `seconds` of each step and the logged `losses`."""
    # The clock is that of this version; all else is imported from the other.
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['train_clocked'](sys.argv[2], sys.argv[3:])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(HERE)])}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-c", code, __file__, str(checkout), *arguments, f"output_dir={folder}/run"]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise ValueError(f"{checkout}: train.py ended with status {done.returncode}: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def make_arguments(options: argparse.Namespace, method: str) -> list[str]:
    """Arguments of `train.py` for all checkouts: one method, no start, nothing saved, the data of this checkout."""
    recipe = load_recipe(options.recipe, options.override)
    prepare_data(recipe)
    places = {"data.data_dir": recipe.data.data_dir, "data.regions": recipe.data.regions}
    places["model.tokenizer"] = recipe.model.tokenizer
    # Names on the Hub stay as they are.
    local = {key: Path(place) for key, place in places.items() if isinstance(place, str) and Path(place).exists()}
    overrides = [f"{key}={place.resolve()}" for key, place in local.items()]
    overrides += [f"methods=[{method}]", "start=null", "text_only_baseline=false", "workers=1"]
    overrides += [f"training.{key}={options.steps}" for key in ("max_steps", "logging_steps")]
    overrides += ["training.save_strategy=no", "training.eval_strategy=no", "training.use_cpu=true"]
    return [options.recipe, *options.override, *overrides]


def measure(options: argparse.Namespace) -> dict[tuple[str, str], Runs]:
    """(Version, method) -> its runs; in a round all take turns."""
    checkouts = {"before": options.before.resolve(), "now": HERE} if options.before else {"now": HERE}
    arguments = {method: make_arguments(options, method) for method in options.methods}
    runs: dict[tuple[str, str], Runs] = {(name, method): [] for method in options.methods for name in checkouts}
    for turn in range(options.rounds):
        for name, method in list(runs)[:: -1 if turn % 2 else 1]:
            runs[name, method].append(train_in(checkouts[name], arguments[method]))
    return runs


def compare(runs: Mapping[tuple[str, str], Runs]) -> dict[str, dict[str, Any]]:
    """Method -> `ratio` of its fastest steps to those of `other`, that of each of the `rounds`, last mean losses."""
    first = next(iter(runs))
    found = {}
    for (version, method), own in runs.items():
        other = ("before", method) if first[0] == "before" else first
        if (version, method) != other and version == "now":
            seconds, others = (np.array([one["seconds"] for one in each]) for each in (own, runs[other]))
            found[method] = {
                "ratio": float(seconds.min(0).sum() / others.min(0).sum()),
                "rounds": (np.median(seconds, axis=1) / np.median(others, axis=1)).tolist(),
                "other": other[other[0] != "before"],
                "losses": [runs[other][-1]["losses"][-1], own[-1]["losses"][-1]],
            }
    return found


def _work(options: argparse.Namespace) -> str:
    if options.before and not (options.before / "train.py").is_file():
        raise ValueError(f"{options.before}: no train.py; give the folder of a checkout of this project")
    if len(options.methods) != len(set(options.methods)) or len(options.methods) < 2 - bool(options.before):
        raise ValueError(f"--methods {' '.join(options.methods)}: give at least two methods, each once")
    found = compare(measure(options))
    lines = []
    for name, own in found.items():
        line = (
            f"{name:<14} {own['ratio']:.2f} of {own['other']} ({min(own['rounds']):.2f} to {max(own['rounds']):.2f})"
        )
        losses = "; mean loss {:.4f} before, {:.4f} now".format(*own["losses"]) if options.before else ""
        lines.append(line + losses)
    if options.json:
        return json.dumps(found)
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    parser = benchmark_parser("recipe_step", __doc__, rounds=5, quick=False)
    add = parser.add_argument
    add("recipe", nargs="?", default=RECIPE, help="recipe file (default: %(default)s)")
    add("--override", action="append", default=[], metavar="KEY=VALUE", help="changes a key; repeatable")
    add("--methods", nargs="+", default=METHODS, metavar="NAME", help="default: %(default)s")
    add("--steps", type=positive, default=40, metavar="N", help="steps of a round (default: 40)")
    add("--before", type=Path, metavar="CHECKOUT", help="folder of another version, with its train.py")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(build_parser(), _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
