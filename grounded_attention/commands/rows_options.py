# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Options of commands that read rows, in the words of `grounded_rows`, and arguments that are written `key=value`."""

from __future__ import annotations

import dataclasses
import os
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.bounded_files import parse_yaml
from grounded_attention.utils.named_types import Fields

from .command_line import Positive, refuse_given

if TYPE_CHECKING:
    from grounded_attention.dataset_scripts.builders.local_builder import LocalBuilder

SECTIONS = ("data.options.", "options.")
RECIPE = "data.builder=NAME, data.options.NAME=VALUE or options.NAME=VALUE"


def pairs(texts: Sequence[str] | None, what: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """What the texts say, in the order of the keys."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, _, value = text.partition("=")
        if not (key and value) or key in found:
            raise ValueError(f"{what} {text}: expected {form}, each once")
        found[key] = value
    return found


def yaml_pairs(texts: Sequence[str] | None, what: str, form: str = "KEY=VALUE") -> Fields:
    """The same with values in YAML."""
    return {key: parse_yaml(value, f"{what} {key}") for key, value in pairs(texts, what, form).items()}


def settings(texts: Sequence[str]) -> Fields:
    """The keys of recipes that commands take which evaluate a checkpoint (`--set`)."""
    values = yaml_pairs(texts, "--set", RECIPE)
    for key in values:
        if key != "data.builder" and not key.startswith(SECTIONS):
            raise ValueError(f"--set {key}={values[key]}: expected {RECIPE}")
    return values


def below(section: str, values: Fields) -> Fields:
    """The settings of one section, such as `options.`, with the section removed from the keys."""
    return {key.removeprefix(section): value for key, value in values.items() if key.startswith(section)}


def read_columns(texts: Sequence[str] | None) -> Fields:
    """What `--columns` says; several columns, or names of classes, are separated by commas."""
    columns: Fields = {}
    for name, value in pairs(texts, "--columns", "WHAT=COLUMN, such as text=answer").items():
        columns[name] = value.split(",") if "," in value or name == "names" else value
    return columns


def options_of(builder: type[LocalBuilder]) -> dict[str, dataclasses.Field]:
    """The options that only this builder has, without those of every `datasets` builder."""
    general = {"name", "version", "data_dir", "data_files", "description", "splits"}
    fields = dataclasses.fields(builder.BUILDER_CONFIG_CLASS)
    return {field.name: field for field in fields if field.name not in general}


def parse_options(builder: type[LocalBuilder], texts: Sequence[str]) -> Fields:
    """The options of a builder, which checks them. A value is YAML unless the option is a text."""
    known = options_of(builder)
    kinds = typing.get_type_hints(builder.BUILDER_CONFIG_CLASS)
    options: Fields = {}
    for key, text in pairs(texts, "option").items():
        if key not in known:
            expected = f"one of {', '.join(known)}" if known else "none for this data set"
            raise DataError("unknown option", found=f"{key}={text}", expected=expected)
        options[key] = parse_yaml(text, f"option {key}") if kinds[key] in (bool, int) else text
    return options


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
