# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Options of a data builder, given as `key=value`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.bounded_files import FileError, parse_yaml

if TYPE_CHECKING:
    from grounded_attention.dataset_scripts.builders.local_builder import LocalBuilder


def options_of(builder: type[LocalBuilder]) -> dict[str, dataclasses.Field]:
    """The options that only this builder has, without those of every `datasets` builder."""
    general = {"name", "version", "data_dir", "data_files", "description", "splits"}
    fields = dataclasses.fields(builder.BUILDER_CONFIG_CLASS)
    return {field.name: field for field in fields if field.name not in general}


def builder_options_help(arguments: Sequence[str]) -> str:
    """What the help says about the options of builders."""
    named = [word for word in arguments if word in BUILDERS]
    if not named or not {"-h", "--help"} & set(arguments):
        return "options (key=value) differ by builder; give its name and --help to list them"
    return f"options (key=value) of {named[0]}: {', '.join(options_of(BUILDERS[named[0]])) or 'none'}"


def parse_options(builder: type[LocalBuilder], pairs: Sequence[str]) -> dict[str, Any]:
    """Parses `key=value` texts into options of a builder. A value is read as YAML unless the option is a text."""
    known = options_of(builder)
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in known:
            raise DataError("unknown option", found=pair, expected=f"key=value with key of {', '.join(known)}")
        if key in options:
            raise DataError("an option is given twice", found=pair, hint=f"give {key} once")
        options[key] = _value(key, value, known[key].type)
    return options


def _value(key: str, text: str, kind: Any) -> Any:
    if "str" in str(kind):
        return text
    try:
        value = parse_yaml(text, key)
    except FileError:
        value = None
    # Not isinstance: in Python a bool is an int.
    if type(value) is not kind:
        expected = {bool: "true or false", int: "a whole number"}.get(kind, str(kind))
        raise DataError(f"bad option {key}", found=text, expected=expected)
    return value
