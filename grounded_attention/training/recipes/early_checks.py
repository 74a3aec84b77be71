# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks of names in a recipe that import neither torch nor transformers, so that a typing error is found at once.

The names of training arguments and of supervision methods are read from the source files that define them, once in a
process. The checks before a training (`training/experiments/checks.py`) are complete; these are their fast part.
"""

import ast
import difflib
import importlib.util
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.tasks import TASKS
from grounded_attention.utils.project import PACKAGE

from .recipe import Recipe, RecipeError, check_names

# Name in `report_to` -> the module that it needs.
TRACKERS = {
    "azure_ml": "azureml",
    "clearml": "clearml",
    "codecarbon": "codecarbon",
    "comet_ml": "comet_ml",
    "dagshub": "dagshub",
    "dvclive": "dvclive",
    "flyte": "flytekit",
    "kubeflow": "kubeflow",
    "mlflow": "mlflow",
    "neptune": "neptune",
    "swanlab": "swanlab",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "wandb": "wandb",
}
OWN_ARGUMENTS = ("learning_rate_mapping", "skip_nonfinite_batches", "cpu_matmul_precision")


def check_early(recipe: Recipe, prefix: str = "") -> None:
    """
    Checks the names of the task, the builder, the methods and the training arguments.
    """
    check_known(f"{prefix}task", recipe.task, TASKS)
    check_known(f"{prefix}data.builder", recipe.data.builder, BUILDERS)
    known = training_argument_names()
    if known:
        check_names(recipe.training, known, f"{prefix}training.")
    check_trackers(recipe.training.get("report_to"), f"{prefix}training.report_to")
    for name in recipe.methods:
        for part in str(name).split("+"):
            _check_method(part, f"{prefix}methods")
    if recipe.start is not None:
        check_early(recipe.start, "start.")


def _check_method(name: str, key: str) -> None:
    known = method_names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise RecipeError(f"{key}: {name!r} is unknown; {hint}expected one of {', '.join(known)}")


def check_known(key: str, name: str | None, known: Collection[str]) -> None:
    """Raises a RecipeError if a name is given that is not known."""
    if name is not None and name not in known:
        raise RecipeError(f"unknown {key} {name!r}; expected one of {', '.join(sorted(known))}")


def check_trackers(report_to: Any, key: str) -> None:
    """
    Checks that the programs of `report_to` are known and installed.
    """
    names = [report_to] if isinstance(report_to, str) else report_to or []
    if not isinstance(names, list):
        raise RecipeError(f"{key} must be a name or a list of names, found {report_to!r:.200}")
    for name in names:
        if name in ("none", "all"):
            continue
        check_names([name], TRACKERS, f"{key}=")
        if importlib.util.find_spec(TRACKERS[name]) is None:
            raise RecipeError(f"{key}={name}: {name} is not installed; pip install {name}, or give {key}=none")


@cache
def training_argument_names() -> frozenset[str]:
    """The fields of transformers' `TrainingArguments`, read from its source; empty if that looks different."""
    spec = importlib.util.find_spec("transformers")
    path = Path(spec.origin or "").with_name("training_args.py") if spec else Path()
    if not path.is_file():
        return frozenset()
    found = {
        line.target.id
        for body in _classes(path, "TrainingArguments")
        for line in body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    return frozenset(found.union(OWN_ARGUMENTS)) if found else frozenset()


@cache
def method_names() -> tuple[str, ...]:
    """The names of the supervision methods, read from the sources of `supervision`."""
    names = (
        str(line.value.value)
        for path in (PACKAGE / "supervision").glob("*.py")
        for body in _classes(path)
        for line in body
        if isinstance(line, ast.Assign)
        and ast.unparse(line.targets[0]) == "name"
        and isinstance(line.value, ast.Constant)
    )
    return tuple(sorted(names))


def _classes(path: Path, name: str | None = None) -> Iterator[list[ast.stmt]]:
    """The bodies of the classes of a file, or of the class of a name."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and name in (None, node.name):
            yield node.body
