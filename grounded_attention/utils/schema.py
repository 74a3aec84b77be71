# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks sections of keys against annotated dataclasses and signatures; here alone pydantic is imported.

A dataclass that inherits from `Section` is strict: it refuses unknown keys and values of another type.
"""

import dataclasses
import difflib
import inspect
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval, Len

from grounded_attention.utils.named_types import Columns, Fields

from .bounded_files import MAX_COUNT, MAX_PROCESSES, MAX_SEED

NEAREST = 12  # keys in a message about an unknown one
STRICT = {"extra": "forbid", "strict": True, "allow_inf_nan": False}

Share = Annotated[float, Interval(ge=0, le=1)]
Weight = Annotated[float, Ge(0)]
Index = Annotated[int, Ge(0)]
Count = Annotated[int, Interval(ge=1, le=MAX_COUNT)]
Processes = Annotated[int, Interval(ge=1, le=MAX_PROCESSES)]
Seed = Annotated[int, Interval(ge=0, le=MAX_SEED)]
Indices = Annotated[list[Index], Len(1)]
Pair = Annotated[Sequence[Index], Len(2, 2)]


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
    """Makes a value of an annotated type; errors are pydantic's, with the path of each wrong key."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(content)
    except ValidationError as wrong:
        raise error((source and f"{source}: ") + _explain(wrong, kind, content, key)) from None


def plain_content(section: Any) -> Fields:
    """The keys of a section that differ from the defaults, as plain values."""
    kind: Any = type(section)
    content: Fields = _adapter(kind).dump_python(section, exclude_defaults=True, warnings=False)
    return content


def make(kind: type, options: Columns, key: str, error: type[ValueError] = ValueError) -> Any:
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


def section(fields: Fields) -> Any:
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
    """What pydantic says of every wrong key, with its path; of an unknown key the nearest known one."""
    explained = []
    for error in wrong.errors(include_url=False):
        *above, last = _path(error, content) or [""]
        section = ".".join([*filter(None, [key.removesuffix(".")]), *map(str, above)])
        path = f"{section}.{last}".strip(".")
        if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            explained.append(unknown_key(section and f"{section}.", last, list(_known(kind, above))))
        elif error["type"] == "value_error":
            explained.append(f"{path}: {error['ctx']['error']}".removeprefix(": "))
        else:
            explained.append(f"{path or 'the recipe'}: {error['msg']}, found {error['input']!r:.200}")
    return "; ".join(explained)


def _path(error: Columns, content: Any) -> list[Any]:
    """The parts of a path that are keys or places of the content, or a missing key; others are names of types."""
    kept = []
    for part in error["loc"]:
        places: Any = ()
        if isinstance(content, Mapping):
            places = content
        elif isinstance(content, list):
            places = range(len(content))
        if part in places:
            kept.append(part)
            content = content[part]
    if error["type"] == "missing":
        kept.append(error["loc"][-1])
    return kept


def _known(kind: Any, path: Sequence[Any]) -> Fields:
    """The fields of the section at a path below a type."""
    fields = _fields(kind)
    for part in path:
        if part in fields:
            fields = _fields(fields[part])
    return fields


def _fields(kind: Any) -> Fields:
    """The fields of the sections in a type: its own, or those of the members of a union, a list or a mapping."""
    if hasattr(kind, "__pydantic_config__"):
        return typing.get_type_hints(kind, include_extras=True)
    fields: Fields = {}
    for part in (*typing.get_args(kind), *getattr(kind, "__metadata__", ())):
        fields |= _fields(part.kind if isinstance(part, Of) else part)
    return fields


def unknown_key(prefix: str, name: Any, known: Collection[str]) -> str:
    """The words about an unknown key, or about an unknown value where the prefix ends in `=`, with the nearest one."""
    what = "value" if prefix.endswith("=") else "key"
    near = difflib.get_close_matches(str(name), list(known), n=NEAREST, cutoff=0.0)
    if difflib.get_close_matches(str(name), near, n=1, cutoff=0.5):
        return f"unknown {what} {prefix + str(name)!r}; did you mean {prefix + near[0]!r}?"
    if len(known) > NEAREST:
        more = f", and {len(known) - NEAREST} more"
    else:
        more = ""
    return f"unknown {what} {prefix + str(name)!r}; known {what}s: {', '.join(sorted(near)) or 'none'}{more}"


def check_names(
    names: Iterable[str], known: Collection[str], prefix: str, source: str = "", error: type[ValueError] = ValueError
) -> None:
    """Checks names against known ones that no annotation lists."""
    for name in names:
        if name not in known:
            raise error(source + unknown_key(prefix, name, known))
