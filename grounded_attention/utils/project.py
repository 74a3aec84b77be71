# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The package, in a clone and in an installed wheel: its paths, and the extras of its installation."""

import re
from importlib import import_module
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
RECIPES = PACKAGE / "recipes"
MODEL_CARDS = PACKAGE / "model_cards"

NAME_PARTS = 2  # of ORG/NAME on the Hub
MODEL_FILES = ("config.json", "adapter_config.json")


def refuse_missing(place: str, expected: str) -> None:
    """Raises `ValueError` for what can only be a path, where nothing is."""
    path = Path(place)
    is_path = path.is_absolute() or place.startswith((".", "~")) or len(path.parts) > NAME_PARTS
    if is_path and not any(mark in place for mark in ("://", "*", "@")) and not path.exists():
        raise ValueError(f"{place}: {expected}")


def refuse_run(place: str) -> None:
    """Raises `ValueError` for a folder that does not exist, and for that of a run, whose models it names, supervised
    ones first.
    """
    refuse_missing(place, "no such file or folder, and not a name on the Hub (ORG/NAME)")
    folder = Path(place)
    models = {path.parent for name in MODEL_FILES for path in folder.glob(f"*/{name}")}
    if models and not any((folder / name).is_file() for name in MODEL_FILES):
        names = sorted(map(str, models), key=lambda name: (Path(name).name in ("none", "start", "text_only"), name))
        raise ValueError(f"{place} contains no model, but folders of models: give one of them, {', '.join(names)}")


def recipe_summaries() -> dict[str, str]:
    """Name of each recipe in the package -> the first sentence of its comment."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(RECIPES.glob("*/*.yaml"))}
    comments = {name: " ".join(re.sub(r"(?s)\n(?!#).*|#", "", text).split()) for name, text in texts.items()}
    return {name: re.split(r"(?<=[^.]\.) ", comment)[0] for name, comment in comments.items()}


def find_recipe(name: str) -> Path:
    """Finds the file of a recipe."""
    path = Path(name)
    if path.exists() or path.suffix not in ("", ".yaml"):
        return path
    wanted = path.with_suffix(".yaml").name
    return next((recipe for recipe in sorted(RECIPES.glob("*/*.yaml")) if recipe.name == wanted), path)


EXTRAS = {
    "train": ("datasets", "evaluate", "pyarrow", "defusedxml", "threadpoolctl"),
    "plots": ("matplotlib",),
    "vlm": ("peft", "torchvision", "num2words"),
    "legacy": ("h5py", "lmdb"),
    "spacy": ("spacy",),
    "textblob": ("textblob",),
    "tracking": ("trackio", "tensorboard"),
    "space": ("gradio",),
    "serve": ("fastapi", "uvicorn"),
    "ray": ("ray",),
    "real": ("gguf",),
    "docs": ("sphinx", "furo", "myst_parser", "sphinx_copybutton"),
}
_EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


def explain_missing_extra(error: BaseException) -> str | None:
    """One line about a module of an extra that is not installed; `None` for another error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    module = error.name.partition(".")[0]
    if module not in _EXTRA_OF:
        return None
    return f"this needs {module}: pip install 'grounded-attention[{_EXTRA_OF[module]}]'"


def require(module: str) -> None:
    """Imports a module of an extra; an ImportError in one line says how to install it."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(explain_missing_extra(error) or str(error), name=error.name) from error
