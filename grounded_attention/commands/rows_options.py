# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Options of commands that read rows as people have them: the words of `grounded_rows`."""

import argparse
import os
from collections.abc import Sequence
from typing import Any


def add_rows_options(add: Any) -> None:
    """Adds the options that say how rows are read."""
    add("--columns", nargs="+", default=[], metavar="WHAT=COLUMN", help="what columns are: text=answer boxes=bbox")
    add("--boxes", metavar="HOW", help='how boxes are written, such as "xywh pixels", if the data do not tell')


def read_columns(words: Sequence[str]) -> dict[str, Any]:
    """
    Reads `--columns`; several columns, or names of classes, are separated by commas.

    Raises:
        ValueError: for a word without `=`.
    """
    columns: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise ValueError(f"--columns {word}: expected WHAT=COLUMN, such as text=answer")
        columns[name] = value.split(",") if "," in value or name == "names" else value
    return columns


def open_rows(source: str, options: argparse.Namespace, **more: Any) -> Any:
    """The rows of a source, with the options of `add_rows_options` and the command; those of the Hub are streamed."""
    from grounded_attention.dataset_scripts.rows import grounded_rows

    if not os.path.exists(source) and "*" not in source:
        more.setdefault("streaming", True)
    config, revision = getattr(options, "config", None), getattr(options, "data_revision", None)
    images = getattr(options, "images", None)
    return grounded_rows(
        source,
        read_columns(options.columns),
        options.boxes,
        **{"images": images, "config": config, "revision": revision, **more},
    )
