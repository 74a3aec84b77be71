# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Options of commands that read rows as people have them: the words of `grounded_rows`."""

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

from .number_options import not_negative, positive


def add_rows_options(add: Any) -> None:
    """Adds the options that say how rows are read."""
    add("--columns", nargs="+", default=[], metavar="WHAT=COLUMN", help="what columns are: text=answer boxes=bbox")
    add("--boxes", metavar="HOW", help='how boxes are written, such as "xywh pixels", if the data do not tell')


def add_source_options(parser: argparse.ArgumentParser, takes: str, some: bool = False) -> None:
    """Adds `--data` and its options, without those that the parser has already."""
    known = {action.dest for action in parser._actions}

    def add(*names: str, **settings: Any) -> None:
        if names[0].lstrip("-").replace("-", "_") not in known:
            parser.add_argument(*names, **settings)

    add("--data", metavar="SOURCE", help=f"rows as for `data show`: {takes}")
    add("--split", metavar="NAME", help="split of --data (default: all)")
    add("--images", metavar="DIR", help="folder of the pictures that rows of --data name")
    add_rows_options(add)
    if some:
        add("--row", type=not_negative, default=0, metavar="N", help="the first row of --data, from 0 (default: 0)")
    default = "1" if some else "all"
    add("--max-rows", type=positive, metavar="N", help=f"the most rows of --data (default: {default})")


def read_columns(words: Sequence[str]) -> dict[str, Any]:
    """Reads `--columns`; several columns, or names of classes, are separated by commas."""
    columns: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise ValueError(f"--columns {word}: expected WHAT=COLUMN, such as text=answer")
        columns[name] = value.split(",") if "," in value or name == "names" else value
    return columns


def refuse_row_options(options: argparse.Namespace, *names: str) -> None:
    """Refuses options that say how `--data` is read where it is not given."""
    for name in names if options.data is None else ():
        if getattr(options, name):
            raise ValueError(f"--{name.replace('_', '-')} is for rows: give --data")


def open_rows(source: str, options: argparse.Namespace, **more: Any) -> Any:
    """The rows of a source, with the options of `add_rows_options` and the command; those of the Hub are streamed."""
    from grounded_attention.dataset_scripts.rows.reader import grounded_rows

    if not os.path.exists(source) and "*" not in source:
        more.setdefault("streaming", True)
    images = getattr(options, "images", None)
    return grounded_rows(source, read_columns(options.columns), options.boxes, **{"images": images, **more})


def rows_from(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of `--data` from `--row` on, as many as `--max-rows` says, one by default, each with a picture."""
    end = options.row + (options.max_rows or 1)
    rows = open_rows(options.data, options, split=options.split, max_rows=end)
    with_pictures = [row for row in islice(rows, options.row, None) if row.keys() & {"image", "images"}]
    if not with_pictures:
        raise ValueError(f"--data {options.data}: no picture in the rows from {options.row} to {end - 1}")
    return with_pictures


def rows_builder(options: argparse.Namespace, form: str, state: Any) -> Any:
    """The rows of `--data`, built in a form by the first process; pictures that are inside of them become files."""
    from grounded_attention.dataset_scripts.builders.rows import Rows

    rows_options = {name: getattr(options, name) for name in ("boxes", "max_rows")}
    rows_options |= {"images": options.images and str(options.images), "columns": read_columns(options.columns)}
    builder = Rows(data_dir=options.data, form=form, splits=options.split, **rows_options)
    with state.main_process_first():
        builder.download_and_prepare()
    if state.is_main_process:
        print(*builder.told(), sep="\n", file=sys.stderr)
    return builder
