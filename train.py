# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trains what a recipe describes: `accelerate launch train.py recipes/scenes_vgp.yaml [key=value ...]`."""

import argparse
import os
import sys
from pathlib import Path

import torch

from training.errors import explain
from training.recipe import load_recipe, read_recipe

EXAMPLES = """examples:
  accelerate launch train.py recipes/scenes_vgp.yaml
  accelerate launch train.py recipes/vgp_direct.yaml data.data_dir=/data/vgp training.learning_rate=1e-5
  python train.py recipes/pretrain_scenes.yaml options.relationship=true output_dir=runs/related
  python train.py recipes/table1_scenes.yaml rows=all seeds=5 plan=true
  torchrun --nproc_per_node 2 train.py recipes/scenes_vgp.yaml methods=[direct] training.use_cpu=true
"""


def main() -> int:
    """Runs the recipe; 0 when done, 2 when something the user gave is wrong (one line says what)."""
    parser = argparse.ArgumentParser(
        description="Train the model a recipe describes, with its attention supervision methods, and evaluate it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", help="a YAML file, see recipes/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a value of the recipe")
    parser.add_argument("--traceback", action="store_true", help="show where in the program an error was raised")
    arguments = parser.parse_intermixed_args()
    try:
        if "study" in read_recipe(Path(arguments.recipe)):
            _run_study(arguments.recipe, arguments.overrides)
        else:
            _run_recipe(arguments.recipe, arguments.overrides)
    except (ValueError, FileNotFoundError) as error:
        line = explain(error)
        if line is None or arguments.traceback:
            raise
        if os.environ.get("RANK", "0") == "0":  # one line, however many processes met it
            print(f"error: {line}", file=sys.stderr)
        return 2
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()  # a process that ends without it may abort
    return 0


def _run_recipe(path: str, overrides: list[str]) -> None:
    recipe = load_recipe(path, overrides)
    from training.experiment import run  # after the recipe is known to be sound: it imports for seconds
    from training.report import report

    report(run(recipe), recipe)


def _run_study(path: str, overrides: list[str]) -> None:
    from training.study import run_study
    from training.study_recipe import load_study

    run_study(load_study(path, overrides))


if __name__ == "__main__":
    sys.exit(main())
