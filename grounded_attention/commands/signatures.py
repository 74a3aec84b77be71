# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes the parser of a command out of the signature and the docstring of its function.

Parameters that may be given by position are arguments, keyword-only ones are options; one without a default is
required. An option that is a list may be repeated, one that is a tuple takes several words. What helps is the part
`Args:` of the docstring, `name (METAVAR): help`. A parameter whose type is a dataclass stands for its fields, whose
help the function may replace. `Annotated[T, words]` names the words that may be chosen, `Annotated[T, read]` a
function that reads the text. The docstring of the module is the help of the command.
"""

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from grounded_attention.utils.named_types import Fields

_DESCRIBED = re.compile(r"^ {4}(\w+)(?: \((.+?)\))?: (.*(?:\n {5,}.*)*)", re.MULTILINE)


SEVERAL: dict[Any, Fields] = {list: {"action": "append"}, tuple: {"action": "extend", "nargs": "+"}}


class Parameter(NamedTuple):
    """A parameter of a command, or a field of one."""

    name: str
    hint: Any
    default: Any
    is_option: bool
    metavar: str | None
    help: str


def parameters(function: Callable[..., Any]) -> Iterator[Parameter]:
    """The parameters of a function, and the fields of those that are dataclasses."""
    hints = get_type_hints(function, include_extras=True)
    _, _, told = (inspect.getdoc(function) or "").partition("Args:\n")
    described = {name: (metavar or None, " ".join(help.split())) for name, metavar, help in _DESCRIBED.findall(told)}
    for name, each in inspect.signature(function).parameters.items():
        is_option = each.kind is each.KEYWORD_ONLY or dataclasses.is_dataclass(function)
        if dataclasses.is_dataclass(hints[name]):
            for field in parameters(hints[name]):
                metavar, help = described.get(field.name, (field.metavar, field.help))
                yield field._replace(metavar=metavar, help=help)
        else:
            yield Parameter(name, hints[name], each.default, is_option, *described[name])


def add_arguments(parser: argparse.ArgumentParser, function: Callable[..., Any]) -> None:
    """Adds the parameters of a function to a parser. What is not given is left to the function's own default."""
    for each in parameters(function):
        settings = _settings(each.hint)
        told = each.help.replace("%", "%%")
        if each.default not in (inspect.Parameter.empty, None, False, ()):
            told += f" (default: {each.default})"
        settings |= {"help": told, "default": argparse.SUPPRESS}
        required = each.default is inspect.Parameter.empty
        if settings.get("action") != "store_true":
            settings["metavar"] = each.metavar or (None if "choices" in settings else each.name.upper())
        if each.is_option:
            parser.add_argument(f"--{each.name.replace('_', '-')}", required=required, **settings)
        elif settings.pop("action", None) is None:
            parser.add_argument(each.name, nargs=None if required else "?", **settings)
        else:
            parser.add_argument(each.name, nargs="+" if required else "*", **settings)


def _settings(hint: Any) -> Fields:
    """How argparse reads a value of a type."""
    if hint is bool:
        return {"action": "store_true"}
    settings: Fields = {}
    rule = None
    while inside := get_args(hint):
        if get_origin(hint) in SEVERAL:
            settings = dict(SEVERAL[get_origin(hint)])
        if get_origin(hint) is Annotated:
            rule = inside[1]
        hint = inside[0]
    if rule is None or callable(rule):
        return settings | {"type": rule or hint}
    return settings | {"choices": list(rule), "type": hint}


def call(function: Callable[..., Any], given: Fields) -> Any:
    """Calls a function with what a parser has read."""
    hints = get_type_hints(function)
    arguments = {}
    for name in inspect.signature(function).parameters:
        if dataclasses.is_dataclass(hints[name]):
            arguments[name] = call(hints[name], given)
        elif name in given:
            arguments[name] = given[name]
    return function(**arguments)


def help_of(function: Callable[..., Any]) -> str:
    """The help of a command: the docstring of its module."""
    return sys.modules[function.__module__].__doc__ or ""
