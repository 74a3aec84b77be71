# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks sections of keys against annotated dataclasses and signatures; here alone pydantic is imported.

A dataclass that inherits from `Section` is strict: it refuses unknown keys and values of another type.
"""

import dataclasses
import difflib
import inspect
import re
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval, Len

from .bounded_files import MAX_COUNT, MAX_PROCESSES, MAX_SEED

NEAREST = 6  # keys in a message about an unknown one
STRICT = {"extra": "forbid", "strict": True, "allow_inf_nan": False}

Share = Annotated[float, Interval(ge=0, le=1)]
Weight = Annotated[float, Ge(0)]
Index = Annotated[int, Ge(0)]
Count = Annotated[int, Interval(ge=1, le=MAX_COUNT)]
Processes = Annotated[int, Interval(ge=1, le=MAX_PROCESSES)]
Seed = Annotated[int, Interval(ge=0, le=MAX_SEED)]
Indices = Annotated[list[Index], Len(1)]
Pair = Annotated[Sequence[Index], Len(2, 2)]

WORDS = {
    "an instance of Sequence": "a list",
    "a valid boolean": "true or false",
    "a valid dictionary": "a section of keys",
    "a valid integer": "a whole number",
    "a valid list": "a list",
    "a valid number": "a number",
    "a valid string": "text",
}
BOUNDS = {
    "greater_than": "above {gt:.15g}",
    "greater_than_equal": "at least {ge:.15g}",
    "less_than": "below {lt:.15g}",
    "less_than_equal": "at most {le:.15g}",
}


class Of:
    """In `Annotated[Any, Of(kind)]`: a type that is computed, or the values that are allowed."""

    def __init__(self, kind: Any):
        self.kind = Literal[kind] if isinstance(kind, tuple) else kind

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return handler(self.kind)


class Section:
    """Base class of dataclasses that are read strictly."""

    __pydantic_config__ = STRICT

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """A mapping makes such a section; everything below it is strict."""
        made = handler(source)
        handler.resolve_ref_schema(made)["strict"] = False
        return made


def validate(kind: Any, content: Any, key: str = "", source: str = "", error: type[ValueError] = ValueError) -> Any:
    """Makes a value of an annotated type; errors name the path of the wrong key, found, expected, nearest name."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(content)
    except ValidationError as wrong:
        raise error((source and f"{source}: ") + _explain(wrong, kind, content, key)) from None


def make(kind: type, options: Mapping[str, Any], key: str, error: type[ValueError] = ValueError) -> Any:
    """Makes an object of a class with keyword arguments that its annotated signature allows."""
    try:
        return kind(**validate(_arguments(kind), dict(options), key, error=error))
    except ValueError as wrong:
        raise wrong if isinstance(wrong, error) else error(f"{key.removesuffix('.')}: {wrong}") from wrong


@cache
def _arguments(made: type) -> Any:
    """The keyword arguments of a function as a type."""
    # A class that inherits its constructor has the annotations of that.
    hints = typing.get_type_hints(made.__init__, include_extras=True)  # type: ignore[misc]
    return section({name: hints.get(name, Any) for name in inspect.signature(made).parameters})


def section(fields: dict[str, Any]) -> Any:
    """The type of a section that stays a mapping: name of each key, which may be left out -> type."""
    from typing_extensions import TypedDict

    made = TypedDict("made", fields, total=False)  # type: ignore[misc]
    made.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
    return made


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    own = hasattr(kind, "__pydantic_config__") or dataclasses.is_dataclass(kind)
    return TypeAdapter(kind, config=None if own else ConfigDict(**STRICT))  # type: ignore[typeddict-item]


def _explain(wrong: Any, kind: Any, content: Any, key: str) -> str:
    """The first error in words; each member of a union has its own, of which the deepest counts."""
    errors = [(each, *_place(each, content)) for each in wrong.errors(include_url=False)]
    start = errors[0][1]
    path = max((path for _, path, _ in errors if path[: len(start)] == start), key=len)
    same = [each for each, place, _ in errors if place == path]
    value = next(value for _, place, value in errors if place == path)
    section = _inner(kind, path[:-1])
    for each in same:
        of_key = each["loc"][-1:] == ("[key]",)
        if of_key and each["type"] == "string_type":
            return f"the keys of {_joined(key, path[:-1])} must be text, found {path[-1]!r:.200}"
        if of_key or each["type"] in ("extra_forbidden", "unexpected_keyword_argument", "invalid_key"):
            names = _names(each) if of_key else list(typing.get_type_hints(section))
            return unknown_key(_joined(key, path[:-1]), path[-1], names)
        if each["type"] == "value_error":
            return _joined(key, path, str(each["ctx"]["error"]))
    place = _joined(key, path) or "the recipe"
    expected = dict.fromkeys(_expected(each, _child(section, path[-1]) if path else kind) for each in same)
    names = [name for each in same if each["type"] == "literal_error" for name in _names(each)]
    return f"{place} must be {' or '.join(expected)}, found {value!r:.200}" + _hint(value, names)


def _expected(error: Mapping[str, Any], kind: Any) -> str:
    if error["type"] == "dataclass_type":
        return "a section of keys"
    if error["type"] in BOUNDS:
        for part in (kind, *typing.get_args(kind)):
            for own in getattr(part, "__metadata__", ()):
                low, high = getattr(own, "ge", None), getattr(own, "le", None)
                if low is not None and high is not None and high < MAX_COUNT:
                    return f"from {low} to {high}"
        return BOUNDS[error["type"]].format_map(error["ctx"])
    words = re.sub(r"^\w+ should have (.*) after validation, not \d+", r"a list with \1", error["msg"])
    words = words.removeprefix("Input should be ")
    return WORDS.get(words, words)


def _names(error: Mapping[str, Any]) -> list[str]:
    return [part.strip("' ") for part in error["ctx"]["expected"].replace(" or ", ", ").split(", ")]


def _place(error: Mapping[str, Any], content: Any) -> tuple[list[Any], Any]:
    """The parts of a path that are keys or places of the content (others are names of types), and the value there."""
    kept = []
    path = (*error["loc"][:-1], error["input"]) if error["type"] == "invalid_key" else error["loc"]
    for part in path:
        places = content if isinstance(content, Mapping) else range(len(content)) if isinstance(content, list) else ()
        if part in places:
            kept.append(part)
            content = content[part]
    return kept, content


def _joined(key: str, path: Sequence[Any], text: str = "") -> str:
    """A dotted key; an explanation of a section begins with the key that it is about."""
    dotted = ".".join([*filter(None, [key.removesuffix(".")]), *map(str, path)])
    return f"{dotted}.{text}" if dotted and text else dotted or text


def _inner(kind: Any, path: Sequence[Any]) -> Any:
    """The type at a path below a type; of a union the section."""
    for part in [None, *path]:
        if part is not None:
            kind = _child(kind, part)
        options = [kind]
        for each in options:
            options += [own.kind for own in getattr(each, "__metadata__", ()) if isinstance(own, Of)]
            options += typing.get_args(each) if typing.get_origin(each) not in (dict, list, Literal) else ()
        kind = next((each for each in options if hasattr(each, "__pydantic_config__")), _plain(kind))
    return kind


def _child(kind: Any, part: Any) -> Any:
    """The type of a key of a section, or of what a list or a mapping has."""
    own = hasattr(kind, "__pydantic_config__")
    hints = typing.get_type_hints(kind, include_extras=True) if own else {}
    return hints.get(part, [Any, *typing.get_args(kind)][-1])


def _plain(kind: Any) -> Any:
    return typing.get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def _hint(name: Any, known: Collection[str]) -> str:
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_key(prefix: str, name: Any, known: Collection[str]) -> str:
    """The words about an unknown key, with the nearest known one; a prefix that ends in = is that of a value."""
    if prefix.endswith("="):
        names = " or ".join(filter(None, [", ".join(map(repr, [*known][:-1])), *map(repr, [*known][-1:])]))
        return f"{prefix[:-1]} must be {names}, found {name!r:.200}" + _hint(name, known)
    dot = f"{prefix}." if prefix and not prefix.endswith((".", " ")) else prefix
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    if close and not close[0].startswith(f"{name}_"):  # for `rank` not `rank_pattern`, but all that is near
        return f"unknown key {dot + str(name)!r}; did you mean {dot + close[0]!r}?"
    near = difflib.get_close_matches(str(name), list(known), n=NEAREST, cutoff=0.0)
    names = (
        ", ".join(sorted(known)) or "none"
        if len(known) <= 2 * NEAREST
        else f"{', '.join(near)}, and {len(known) - NEAREST} more"
    )
    return f"unknown key {dot + str(name)!r}; known keys: {names}"


def check_names(
    names: Iterable[str], known: Collection[str], prefix: str, source: str = "", error: type[ValueError] = ValueError
) -> None:
    """Checks names against known ones that no annotation lists."""
    for name in names:
        if name not in known:
            raise error(source + unknown_key(prefix, name, known))
