# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trains the model of a recipe with each attention supervision method of the recipe, and evaluates it.

`grounded-attention train` and `train.py` of the project are the same command. A recipe is a YAML file, or the name of
a recipe in the package, such as `scenes_vgp`.

examples:
  grounded-attention train --list
  grounded-attention train scenes_vgp
  accelerate launch --quiet train.py recipes/scenes/scenes_vgp.yaml
  accelerate launch --quiet train.py recipes/vl_bert/vgp_direct.yaml \\
      data.data_dir=/data/flickr30k data.regions=/data/flickr30k/regions
  python train.py recipes/scenes/pretrain_scenes.yaml options.relationship=true output_dir=runs/related
  python train.py recipes/scenes/table1_scenes.yaml rows=all seeds=5 plan=true
  torchrun --standalone --nproc_per_node 2 train.py recipes/scenes/scenes_vgp.yaml methods=[direct] workers=1
"""

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from grounded_attention.commands.command_line import make_parser, run
from grounded_attention.commands.user_errors import explain_error
from grounded_attention.training.recipes.recipe import RecipeError, load_recipe, read_recipe
from grounded_attention.utils.project import find_recipe, recipe_summaries


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the recipe; returns 0, or 2 after a user error, which is one line on standard error."""
    words = sys.argv[1:] if arguments is None else arguments
    # With --traceback, user errors show their traceback too.
    explain = (lambda error: None) if "--traceback" in words else explain_error
    return run(build_parser(), _work, words, explain_error=explain, intermixed=True, resumable=_again)


def _again(options: argparse.Namespace) -> str:
    """The command that continues; a study always does."""
    if options.recipe is None:
        return ""
    words = [word for word in options.overrides if word.partition("=")[0] not in ("resume", "overwrite")]
    words += [] if "study" in read_recipe(find_recipe(options.recipe)) else ["resume=true"]
    return f"to continue: {shlex.join(['grounded-attention', 'train', options.recipe, *words])}"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention train", __doc__)
    parser.add_argument("recipe", nargs="?", help="a YAML file, or the name of a recipe in the package")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a value of the recipe")
    parser.add_argument("--list", action="store_true", help="list the recipes in the package")
    parser.add_argument("--json", action="store_true", help="print the content of results.json and nothing else")
    parser.add_argument("--traceback", action="store_true", help="show the full traceback of an error")
    return parser


def _work(options: argparse.Namespace) -> str | None:
    if options.list:
        summaries = recipe_summaries()
        width = max(map(len, summaries))
        return json.dumps(summaries) if options.json else "\n".join(f"{k:{width}}  {v}" for k, v in summaries.items())
    if options.recipe is None:
        raise RecipeError("no recipe is given, such as scenes_vgp; --list lists them")
    path = find_recipe(options.recipe)
    with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
        begin = _run_study if "study" in read_recipe(path) else _run_recipe
        output = begin(path, options.overrides)
    if not options.json or output is None or os.environ.get("RANK", "0") != "0":
        return None
    return json.dumps(json.loads((output / "results.json").read_text(encoding="utf-8")))


def _run_recipe(path: Path, overrides: list[str]) -> Path:
    recipe = load_recipe(path, overrides)
    from grounded_attention.training.experiments.experiment import run as run_experiment
    from grounded_attention.training.experiments.report import report

    report(run_experiment(recipe), recipe)
    return Path(recipe.output_dir)


def _run_study(path: Path, overrides: list[str]) -> Path | None:
    from grounded_attention.training.studies.study_recipe import load_study

    study = load_study(path, overrides)
    from grounded_attention.training.studies.study import run_study

    run_study(study)
    return None if study.sections.plan else study.output
