# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reading of files that may be damaged or hostile: every reader of JSON, YAML or text uses this module.

Bounds are checked before work is done: the kind of file, its bytes, depth, number of values, digits of a number.
Every error is a `FileError` that names the file and, where it is known, the line.
"""

import io
import json
import os
import stat
from collections.abc import Callable
from typing import Any

import yaml

from grounded_attention.utils.named_types import AnyPath, Fields

from .plain_text import first_sentences

MEGABYTE = 2**20
MAX_CONFIG_BYTES = MEGABYTE // 4  # of a recipe or another file that people write
MAX_DATA_BYTES = 2048 * MEGABYTE  # of a file that is read as a whole
GZIP = b"\x1f\x8b"
NEWLINE = b"\n"
BOM = b"\xef\xbb\xbf"
OTHER_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class FileError(ValueError):
    """A file cannot be read; the message names it, the place and the problem."""


def open_data(path: AnyPath) -> io.BufferedReader:
    """Opens a data file for reading, as bytes."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise FileError(f"{path}: not a regular file, expected a file with data")
    file = open(path, "rb", opener=_open_at_once)
    start = file.peek(2)[:2]
    if start == GZIP or start in OTHER_BOMS:
        file.close()
        problem = "compressed with gzip: unpack it" if start == GZIP else "UTF-16 text: save it as UTF-8"
        raise FileError(f"{path}: the file is {problem} first")
    return file


def _open_at_once(path: str, flags: int) -> int:
    """Opens without waiting: a pipe without a writer would block for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_data(path: AnyPath, limit: int = MAX_DATA_BYTES) -> bytes:
    """Reads a file of at most `limit` bytes."""
    with open_data(path) as file:
        # Not read(limit + 1), which reserves that many bytes.
        content = None
        if os.fstat(file.fileno()).st_size <= limit:
            content = file.read()
    if content is None or len(content) > limit:
        raise FileError(f"{path}: the file is too large, found more than {limit:,} bytes")
    return content


def read_text(path: AnyPath, limit: int = MAX_DATA_BYTES) -> str:
    """Reads a UTF-8 text; a byte order mark at its start is skipped."""
    return decode_text(read_data(path, limit), path)


def decode_text(content: bytes, source: object, first_line: int = 1) -> str:
    """Decodes UTF-8."""
    content = content.removeprefix(BOM)
    try:
        text = content.decode("utf-8")
        place = content.find(b"\0")
        problem = "a NUL byte, so the file is damaged or no text"
    except UnicodeDecodeError as error:
        text = ""
        place = error.start
        problem = f"not valid UTF-8, found {content[place : place + 4]!r} (a damaged file, or another encoding)"
    if place >= 0:
        raise FileError(f"{source}, line {first_line + content.count(NEWLINE, 0, place)}: {problem}")
    return text


def parse_json(text: str | bytes, source: object, **options: Any) -> Any:
    """Parses JSON."""
    try:
        return json.loads(decode_text(text, source) if isinstance(text, bytes) else text, **options)
    except FileError:
        raise
    except json.JSONDecodeError as error:
        shown = ""
        if isinstance(text, str):
            shown = " ".join(text[error.pos : error.pos + 40].split())
        if "\n" in error.doc:
            where = f"line {error.lineno}, column {error.colno}"
        else:
            where = f"column {error.colno}"
        raise FileError(f"{source}: not JSON: {error.msg} at {where}, found {shown!r}") from error
    except RecursionError as error:
        raise FileError(f"{source}: not JSON: nested too deeply") from error
    except ValueError as error:  # too many digits, or a constant that `options` refuse
        raise FileError(f"{source}: not JSON: {str(error).split(';')[0]}") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> Fields:
    """For `object_pairs_hook`: refuses a key that is there twice, of which two readers may take different ones."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r:.200} is there twice")
    return content


def read_json(path: AnyPath, limit: int = MAX_DATA_BYTES, **options: Any) -> Any:
    """Reads a JSON file."""
    return parse_json(read_text(path, limit), path, **options)


class PlainLoader(yaml.SafeLoader):
    """A YAML loader that reads a date as text, and nothing that JSON has no type for."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or not tag.endswith((":binary", ":set", ":omap", ":pairs", ":timestamp"))
    }

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Refuses a key that is given twice, of which PyYAML keeps the last."""
        node: Any = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                line = key.start_mark.line + 1
                name = (key.tag, key.value)
                if name in lines:
                    raise yaml.YAMLError(f"lines {lines[name]} and {line} have the same key {key.value!r}; remove one")
                lines[name] = line
        return node


def _whole_number(loader: Any, node: yaml.Node) -> int:
    """With no more digits than Python prints: a hexadecimal one may have more."""
    number: int = loader.construct_yaml_int(node)
    repr(number)
    return number


PlainLoader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def parse_yaml(text: str, source: object, loader: Callable[[str], Any] = PlainLoader) -> Any:
    """Parses YAML."""
    if len(text) > MAX_CONFIG_BYTES:
        raise FileError(f"{source}: too long, found {len(text):,} characters, expected at most {MAX_CONFIG_BYTES:,}")
    try:
        reader: Any = loader(text)
        try:
            return reader.get_single_data()
        finally:
            reader.dispose()
    except yaml.YAMLError as error:
        raise FileError(f"{source}: invalid YAML: {first_sentences(error)}") from error
    except RecursionError as error:
        raise FileError(f"{source}: invalid YAML: nested too deeply") from error
    # Constructors of PyYAML raise any of these for a tag with a wrong value, such as `!!timestamp soon`.
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise FileError(f"{source}: invalid YAML: a value cannot be read ({first_sentences(error)})") from error


MAX_SEED = 2**32 - 1  # NumPy's
MAX_COUNT = 2**31 - 1  # of rows, images, steps
MAX_PROCESSES = 256  # each begins at once, and has its own memory
