# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tells user errors from program errors, and formats a user error as one line."""

import re
import traceback
from pathlib import Path

from grounded_attention.commands.command_line import one_line
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.project import PACKAGE

# In a clone some folders are links; a traceback may contain either path.
PLACES = {PACKAGE, *(path.resolve() for path in PACKAGE.iterdir() if path.is_dir())}
# PyTorch passes on an error of a DataLoader worker with the whole traceback as the message.
FROM_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\n")


def explain_error(error: BaseException) -> str | None:
    """Formats a user error as one line: an error of the file system, or a ValueError raised in this package."""
    known = isinstance(error, DataError | RecipeError | FileNotFoundError)
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError):
        return one_line(error)
    if known or (isinstance(error, ValueError) and _is_ours(error)):
        text = str(error.args[0] if isinstance(error, KeyError) else error)
        if FROM_WORKER.match(text):
            text = re.split(r"^(?:\w+\.)*\w+: ", text, flags=re.MULTILINE)[-1]
        return " ".join(text.split())
    return None


def _is_ours(error: BaseException) -> bool:
    """Whether a line of this package raised the error."""
    texts = [str(error)] if FROM_WORKER.match(str(error)) else []
    if type(error.__cause__).__name__ == "_RemoteTraceback":  # of a process of a ProcessPoolExecutor
        texts.append(str(error.__cause__))
    files = re.findall(r'^ *File "([^"]+)", line', "".join(texts), flags=re.MULTILINE)
    if not files:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return bool(files) and any(Path(files[-1]).is_relative_to(place) for place in PLACES)
