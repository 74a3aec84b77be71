# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which errors are user errors, and how they read in one line."""

import re
import traceback
from pathlib import Path

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.project import PACKAGE

# Rooms are links in a clone, and tracebacks may name either place.
PLACES = {PACKAGE, *(path.resolve() for path in PACKAGE.iterdir() if path.is_dir())}
# How PyTorch hands on an error of a DataLoader's process: the whole traceback as the message.
FROM_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\n")


def explain(error: BaseException) -> str | None:
    """One line about a user error: a missing file, or a ValueError raised in this package.

    None for any other: it is a fault of the program, and its traceback is worth more than its message.
    """
    known = isinstance(error, DataError | RecipeError | FileNotFoundError)
    if known or (isinstance(error, ValueError) and _is_ours(error)):
        text = str(error.args[0] if isinstance(error, KeyError) else error)
        if FROM_WORKER.match(text):
            text = re.split(r"^(?:\w+\.)*\w+: ", text, flags=re.MULTILINE)[-1]
        return " ".join(text.split())
    return None


def _is_ours(error: BaseException) -> bool:
    """Whether the line that raised it stands in one of the rooms."""
    texts = [str(error)] if FROM_WORKER.match(str(error)) else []
    if type(error.__cause__).__name__ == "_RemoteTraceback":  # of a process of a ProcessPoolExecutor
        texts.append(str(error.__cause__))
    files = re.findall(r'^ *File "([^"]+)", line', "".join(texts), flags=re.MULTILINE)
    if not files:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return bool(files) and any(Path(files[-1]).is_relative_to(place) for place in PLACES)
