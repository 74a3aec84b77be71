# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Options of commands that read rows as people have them: the words of `grounded_rows`."""

import os
import sys
from dataclasses import dataclass
from typing import Any

from grounded_attention.commands.command_line import Positive, refuse_given
from grounded_attention.utils.named_types import Fields

from .key_values import read_columns


@dataclass(frozen=True)
class RowSource:
    """Where rows come from, and how they are read.

    Args:
        data (SOURCE): rows as for `data show`, in place of images and texts
        split (NAME): split of --data (default: all)
        images (DIR): folder of the pictures that rows of --data name
        columns (WHAT=COLUMN): what columns are: text=answer boxes=bbox
        boxes (HOW): how boxes of --data are written, such as "xywh pixels", if the data do not tell
        max_rows (N): the most rows of --data
    """

    data: str | None = None
    split: str | None = None
    images: str | None = None
    columns: tuple[str, ...] | None = None
    boxes: str | None = None
    max_rows: Positive | None = None

    def open(self, **more: Any) -> Any:
        """The rows, without `--data` an error."""
        return open_rows(str(self.data), self, split=self.split, **{"max_rows": self.max_rows, **more})

    def refuse_without_data(self, *names: str) -> None:
        """Refuses options that say how `--data` is read where it is not given."""
        refuse_row_options(self, *(names or ("split", "images", "columns", "boxes", "max_rows")))

    def pictured(self, decode: bool = True) -> list[Fields]:
        """The first rows that have a picture, of as many as `--max-rows` says, one by default."""
        count = self.max_rows or 1
        rows = self.open(max_rows=count).decode(decode)
        with_pictures = [row for row in rows if row.keys() & {"image", "images"}]
        if not with_pictures:
            raise ValueError(f"--data {self.data}: no picture in the first {count} rows")
        return with_pictures


def refuse_row_options(options: Any, *names: str) -> None:
    """Refuses options that say how `--data` is read where it is not given."""
    if options.data is None:
        refuse_given(options, names, "is for rows: give --data")


def open_rows(source: str, options: Any, **more: Any) -> Any:
    """The rows of a source, with the options of `RowSource`; those of the Hub are streamed."""
    from grounded_attention.dataset_scripts.rows.reader import grounded_rows

    if not os.path.exists(source) and "*" not in source:
        more.setdefault("streaming", True)
    images = getattr(options, "images", None)
    return grounded_rows(source, read_columns(options.columns), options.boxes, **{"images": images, **more})


def rows_builder(options: Any, form: str, state: Any) -> Any:
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
