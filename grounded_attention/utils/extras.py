# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The extras of the installation and their modules; alone the package has models, processors, `look` and the one
loss."""

from importlib import import_module

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
