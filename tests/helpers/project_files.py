# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The files of the package and their imports, read from syntax trees."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "grounded_attention"
# At the top, to folders of the package.
LINKS = ("modeling", "processing", "dataset_scripts", "recipes", "model_cards")


# A package imports from itself and from packages of lower layers; packages of one layer may import each other.
LAYERS = (
    {"utils"},
    {"processing"},
    {"modeling"},
    {"supervision", "conversion"},
    {"families"},
    {"heads", "analysis", "pages", "metrics", "dataset_scripts"},
    {"tasks", "lens"},
    {"training", "labelling"},
    {"commands", "space"},
)


class Import(NamedTuple):
    """One imported module of the package; `late`: inside a function; `types_only`: below `TYPE_CHECKING`."""

    module: str
    line: int
    late: bool
    types_only: bool


def module_name(path):
    """Returns the dotted name for imports of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))}


def package_of(module):
    """Returns the top folder of a module in the package; empty for the package itself and its `__main__`."""
    return module.partition(".")[2].partition(".")[0].replace("__main__", "")


@cache
def imports(module):
    """Returns all imports of modules of the package, also those inside functions."""
    return tuple(_find_imports(module))


def _find_imports(module):
    path = FILES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node, late, types_only in import_statements(path):
        for name in _names(node, package):
            if name in FILES:
                yield Import(name, node.lineno, late, types_only)


@cache
def import_statements(path):
    """Each import of a file, whether it is inside a function, and whether below `TYPE_CHECKING`."""
    found = []
    left = [(ast.parse(path.read_text(encoding="utf-8")), False, False)]
    while left:
        node, late, types_only = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, late, types_only))
        late |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        types_only |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):  # statements stand nowhere else
            left += [(child, late, types_only) for child in getattr(node, part, ())]
    return found


def _names(node, package):
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *filter(None, [node.module])])
        inside = [f"{base}.{alias.name}" for alias in node.names]
        yield from (name if name in FILES else base for name in inside)
