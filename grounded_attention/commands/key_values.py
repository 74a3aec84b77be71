# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Arguments that are written as `key=value`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.bounded_files import parse_yaml
from grounded_attention.utils.named_types import Fields

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
