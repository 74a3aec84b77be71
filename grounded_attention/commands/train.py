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
import json
import os
import shlex
from pathlib import Path

from grounded_attention.commands.command_line import Program, explain_error
from grounded_attention.utils.project import find_recipe, recipe_summaries

from .command_line import Result


def train(
    recipe: str | None = None,
    overrides: list[str] = [],  # noqa: B006
    *,
    list: bool = False,
) -> Result | None:
    """Runs a recipe or a study.

    Args:
        recipe: a YAML file, or the name of a recipe in the package
        overrides (key=value): replaces a value of the recipe
        list: list the recipes in the package
    """
    if list:
        summaries = recipe_summaries()
        width = max(map(len, summaries))
        return summaries, "\n".join(f"{name:{width}}  {summary}" for name, summary in summaries.items())
    if recipe is None:
        raise ValueError("no recipe is given, such as scenes_vgp; --list lists them")
    from grounded_attention.training.recipes.recipe import read_recipe

    path = find_recipe(recipe)
    output = (_run_study if "study" in read_recipe(path) else _run_recipe)(path, overrides)
    if output is None or os.environ.get("RANK", "0") != "0":
        return None
    return json.loads((output / "results.json").read_text(encoding="utf-8")), ""


def _run_recipe(path: Path, overrides: list[str]) -> Path:
    from grounded_attention.training.recipes.recipe import load_recipe

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
    if study.sections.plan:
        return None
    return study.output


def _again(options: argparse.Namespace) -> str:
    """The command that continues; a study always does."""
    if not hasattr(options, "recipe"):
        return ""
    from grounded_attention.training.recipes.recipe import read_recipe

    given = getattr(options, "overrides", ())
    words = [word for word in given if word.partition("=")[0] not in ("resume", "overwrite")]
    words += [] if "study" in read_recipe(find_recipe(options.recipe)) else ["resume=true"]
    return f"to continue: {shlex.join(['grounded-attention', 'train', options.recipe, *words])}"


main = Program("train", train, explain_error, _again)
