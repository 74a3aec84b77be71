# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures how faithful relevancy maps are, for `grounded-attention evaluate --perturb`."""

from pathlib import Path
from typing import Any

from transformers.utils import logging

from grounded_attention.analysis import MAPS
from grounded_attention.analysis.perturbation_curves import area_text
from grounded_attention.pages.figures import perturbation_figure
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.prepared_data import prepare_data
from grounded_attention.training.experiments.scoring import explainable, measure_perturbation, read_config
from grounded_attention.utils.plain_text import markdown_table

from .evaluate_options import Evaluation
from .evaluate_work import to_recipe

ABOUT = ("task", "data_dir", "regions", "split", "limit", "seed", "set")


def work(checkpoint: str | None, options: Evaluation) -> tuple[Any, str]:
    """Removes regions in the order of each map, and writes the curves."""
    logging.set_verbosity_error()
    if options.task not in explainable():
        raise ValueError(f"--task {options.task}: expected one of {', '.join(explainable())}")
    if checkpoint is None or options.regions is None:
        raise ValueError("--perturb needs a CHECKPOINT and --regions")
    options.split = ["validation" if split == "val" else split for split in options.split or ["validation"]]
    (split,), asked = options.split, options.perturb or ()
    recipe = to_recipe(options, read_config(checkpoint, TASKS[options.task]))
    curves = measure_perturbation(
        recipe,
        checkpoint,
        prepare_data(recipe),
        split,
        maps=MAPS if "all" in asked else tuple(dict.fromkeys(asked)),
        about={"checkpoint": checkpoint, **{key: getattr(options, key) for key in ABOUT}, "split": split},
    )
    folder = Path(options.output or Path("runs", "perturbation", "_".join(Path(checkpoint).parts[-2:])))
    curves.save(folder)
    perturbation_figure(curves, folder / "perturbation.png", f"{options.task}, {split}")
    rows = curves.summary()
    accuracy = float(curves.accuracy[0, 0])
    areas = []
    for row in rows:
        areas.append((row["map"], *(area_text(row, name) for name in ("most", "least", "gap"))))
    table = markdown_table(("area of", "most first", "least first", "gap"), areas, aligned=True)
    return {"accuracy": accuracy, "areas": rows}, (
        f"accuracy with all regions {accuracy:.4f}\n{table}\nwritten: {folder}"
    )
