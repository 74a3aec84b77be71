# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Counts how large the project is: files, syntax nodes, statements, lines, folders, options, raise statements.

examples:
  python -m benchmarks.project_size
  python -m benchmarks.project_size --root ../sentence-transformers --package sentence_transformers
"""

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from grounded_attention.commands.command_line import make_parser, run

ROOT = Path(__file__).resolve().parents[1]
FULL_FOLDER = 15  # files


def python_files(folder: Path) -> list[Path]:
    """The Python files below a folder, each once; `__pycache__` and links are left out."""
    return sorted(path for path in folder.rglob("*.py") if not path.is_symlink() and "__pycache__" not in path.parts)


def count_lines(paths: list[Path]) -> int:
    """The lines of files, with empty lines and comments."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def count_nodes(paths: list[Path]) -> tuple[int, int]:
    """The syntax nodes of files, which no line break changes, and the statements among them."""
    nodes = [node for path in paths for node in ast.walk(_tree(path))]
    return len(nodes), sum(isinstance(node, ast.stmt) for node in nodes)


def count_full_folders(paths: list[Path]) -> tuple[int, int]:
    """The folders with more than `FULL_FOLDER` Python files, and all folders."""
    files = Counter(path.parent for path in paths)
    return sum(count > FULL_FOLDER for count in files.values()), len(files)


def count_raises(paths: list[Path]) -> int:
    """The `raise` statements."""
    return sum(isinstance(node, ast.Raise) for path in paths for node in ast.walk(_tree(path)))


def share_used_once(paths: list[Path]) -> float:
    """The share of the functions and methods whose name is read at one place of the package, in [0, 1]."""
    defined = set()
    read = Counter[str]()
    for path in paths:
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
                defined.add(node.name)
            read.update(_names(node))
    return sum(read[name] == 1 for name in defined) / max(1, len(defined))


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    if isinstance(node, ast.Attribute):
        yield node.attr


def _tree(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def count_options() -> int:
    """The options of all commands of this checkout, without `--help` and `--quiet`, which every command has."""
    from grounded_attention.commands.main import COMMANDS, command_parser

    count = 0
    for name in COMMANDS:
        parser = command_parser(name)
        count += sum(
            bool(action.option_strings) and action.dest not in ("help", "quiet") for action in parser._actions
        )
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.project_size", __doc__)
    parser.add_argument("--root", type=Path, default=ROOT, metavar="DIR", help="checkout (this one)")
    parser.add_argument("--package", default="grounded_attention", metavar="DIR", help="its package (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    package = python_files(options.root / options.package)
    tests = python_files(options.root / "tests")
    if not package:
        raise ValueError(f"{options.root / options.package}: no Python files; give --root and --package")
    full, folders = count_full_folders(package)
    nodes, statements = count_nodes(package)
    rows = {
        "files of the package": len(package),
        "syntax nodes of the package": nodes,
        "syntax nodes a statement": f"{nodes / statements:.2f}",
        "syntax nodes of tests": count_nodes(tests)[0],
        "lines of the package": count_lines(package),
        "lines of tests": count_lines(tests),
        "lines that tests share": count_lines(python_files(options.root / "tests" / "helpers")),
        "lines of benchmarks": count_lines(python_files(options.root / "benchmarks")),
        f"folders with more than {FULL_FOLDER} files": f"{full} of {folders}",
        "functions whose name is read once": f"{share_used_once(package):.0%}",
        "raise statements": count_raises(package),
    }
    if options.root.resolve() == ROOT:
        rows["command-line options"] = count_options()
    if options.json:
        return json.dumps(rows)
    return "\n".join(f"{name:<36} {value:>10}" for name, value in rows.items())


if __name__ == "__main__":
    sys.exit(main())
