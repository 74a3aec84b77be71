# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trains what a recipe describes: `accelerate launch train.py recipes/scenes_vgp.yaml [key=value ...]`."""

import argparse
import os
import sys

import torch

from training.errors import explain
from training.recipe import load_recipe

EXAMPLES = """examples:
  accelerate launch train.py recipes/scenes_vgp.yaml
  accelerate launch train.py recipes/vgp_direct.yaml data.data_dir=/data/vgp training.learning_rate=1e-5
  python train.py recipes/pretrain_scenes.yaml options.relationship=true output_dir=runs/related
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
        recipe = load_recipe(arguments.recipe, arguments.overrides)
        from training.experiment import run  # after the recipe is known to be sound: it imports for seconds
        from training.report import report

        report(run(recipe), recipe)
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


if __name__ == "__main__":
    sys.exit(main())
