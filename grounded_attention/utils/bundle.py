# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Bundles source files into the few files that are saved with a checkpoint.

A bundle has every definition that its classes need, once and as in the sources; of `auto_docstring`
there is the text, as a comment.
`tests/modeling/test_bundles.py` compares.
"""

import ast
import re
import symtable
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

from .project import PACKAGE
from .whole_files import write_text

SHIPPED = (PACKAGE / "modeling", PACKAGE / "processing")
# The source file of what a bundle has in the place of parts that are left to the installed package.
_STAND_IN = "installed_package"
# The first line of each of our files
_AUTHORS = "# Copyright 2026 The grounded-attention authors"


@dataclass(frozen=True)
class Part:
    """A file of a bundle."""

    name: str
    classes: Mapping[str, str]


@dataclass
class _Statement:
    """A statement at the top of a source file: its text in a bundle, and the names that it defines and reads."""

    module: str
    lines: tuple[int, int]
    text: str
    is_block: bool
    defines: set[str]
    reads: set[str]


@dataclass
class _Source:
    """A source file; `inner` and `outer` say where imported names come from."""

    summary: str
    statements: list[_Statement] = field(default_factory=list)
    inner: dict[str, str] = field(default_factory=dict)  # name -> file
    outer: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> module or "", what is imported

    @property
    def defines(self) -> set[str]:
        """The names that the file defines itself."""
        return set().union(*(each.defines for each in self.statements))


def bundle(parts: Sequence[Part], absent: Collection[str] = (), *, together: bool = False) -> dict[str, str]:
    """Bundles what the classes of some files need."""
    placed: dict[tuple[str, int], str] = {}  # statement -> part
    files = {}
    for part in parts:
        own: list[_Statement] = []
        known: dict[str, str] = {}  # name -> the earlier part that has it
        taken: dict[str, str] = {}
        for statement in _reach(part, absent):
            for name in statement.defines:
                if name in taken:
                    raise ValueError(f"{name} is defined in {taken[name]}.py and in {statement.module}.py: rename one")
                taken[name] = statement.module
            home = placed.setdefault((statement.module, statement.lines[0]), part.name)
            if home == part.name:
                own.append(statement)
            else:
                known |= dict.fromkeys(statement.defines, home)
        others = []
        for other in parts:
            if together and other is not part and other.name not in known.values():
                others.append(other)
        files[f"{part.name}.py"] = _write(part, own, known, others)
    return files


def save_code(cls: Any, make_code: Callable[[Any], tuple[Mapping[str, str], Mapping[str, str]]]) -> None:
    """Makes `cls.save_pretrained` write a bundle beside its own file."""
    save = cls.save_pretrained

    @wraps(save)
    def save_pretrained(self: Any, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> Any:
        code, places = make_code(self)
        own = vars(self).get("auto_map")
        self.auto_map = own or dict(places)
        saved = save(self, save_directory, **({} if push_to_hub else kwargs))
        if own is None:
            del self.auto_map
        for name, text in code.items():
            write_text(Path(save_directory, name), text)
        if push_to_hub:
            self.push_to_hub(**{"repo_id": Path(save_directory).name, **kwargs})
        return saved

    cls.save_pretrained = save_pretrained


# Reading


@cache
def _read_source(name: str) -> _Source:
    path = next(path for folder in (*SHIPPED, PACKAGE / "utils") if (path := folder / f"{name}.py").exists())
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines()
    source = _Source((ast.get_docstring(tree) or "").partition("\n\n")[0])
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            home = (node.module or "").rpartition(".")[2]
            source.inner |= {alias.asname or alias.name: home for alias in node.names}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.asname:
                    what = f"{alias.name} as {alias.asname}"
                else:
                    what = alias.name
                source.outer[alias.asname or alias.name] = (getattr(node, "module", "") or "", what)
        elif any(isinstance(each, ast.ImportFrom) and each.level for each in ast.walk(node)):
            raise ValueError(f"{path}:{node.lineno}: imports a source file inside of a statement")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # the docstring
        elif not lines[node.lineno - 1].startswith("__all__"):
            source.statements.append(_read_statement(name, node, lines))
    return source


def _read_statement(module: str, node: ast.stmt, lines: Sequence[str]) -> _Statement:
    decorators = getattr(node, "decorator_list", ())
    start = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    end = node.end_lineno or 0
    while start > 1 and lines[start - 2].startswith("#"):
        start -= 1
    kept = list(lines[:end])
    for decorator in reversed(_list_decorators(node)):
        margin = " " * (decorator.col_offset - 1)
        written = {word.arg: word.value for word in getattr(decorator, "keywords", ())}
        intro = ast.literal_eval(written["custom_intro"]) if "custom_intro" in written else ""
        comment = [f"{margin}# {line.strip()}".rstrip() for line in intro.strip().splitlines()]
        kept[decorator.lineno - 1 : decorator.end_lineno] = comment
    text = re.sub(r"  # (type: ignore|noqa).*", "", "\n".join(kept[start - 1 :]))
    table = symtable.symtable(text, module, "exec")
    defines = set()
    for each in table.get_symbols():
        if each.is_assigned() or each.is_imported():
            defines.add(each.get_name())
    is_block = isinstance(node, ast.ClassDef | ast.FunctionDef)
    return _Statement(module, (start, end), text, is_block, defines, _list_reads(table))


def _list_decorators(node: ast.AST) -> list[Any]:
    """The decorators `auto_docstring`, which print a line for each argument without documentation."""
    found = []
    for each in ast.walk(node):
        for decorator in getattr(each, "decorator_list", ()):
            if getattr(getattr(decorator, "func", decorator), "id", "") == "auto_docstring":
                found.append(decorator)
    return sorted(found, key=lambda decorator: decorator.lineno)


def _list_reads(table: symtable.SymbolTable) -> set[str]:
    """The names at the top of the file that a piece of code reads, at any depth."""
    own = table.get_type() in ("module", "class")  # a class body may read a name of the file before it defines it
    names = set()
    for each in table.get_symbols():
        if each.is_referenced() and (own or each.is_global()):
            names.add(each.get_name())
    return names.union(*map(_list_reads, table.get_children()))


# Writing


def _reach(part: Part, absent: Collection[str]) -> list[_Statement]:
    """The statements that the classes of a part need, in an order in which they can run."""
    chosen: dict[str, dict[int, _Statement]] = defaultdict(dict)
    needs: dict[str, set[str]] = defaultdict(set)  # file -> files whose statements come before its own
    waiting = [(part.name, name) for name in part.classes]
    seen = set()
    if "OLDEST_TRANSFORMERS" in _read_source(part.name).inner:
        waiting.append((part.name, "OLDEST_TRANSFORMERS"))
    while waiting:
        module, name = waiting.pop()
        if (module, name) in seen:
            continue
        seen.add((module, name))
        source = _read_source(module)
        if name in source.inner:
            if source.inner[name] in absent:
                home = _STAND_IN
            else:
                home = source.inner[name]
            needs[module].add(home)
            waiting.append((home, name))
        for each in source.statements:
            # What defines nothing, such as a registration, runs if a name that it reads is needed.
            if name in (each.defines or each.reads & source.defines):
                chosen[module][each.lines[0]] = each
                waiting += [(module, read) for read in each.reads]
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for module in sorted({*chosen, *needs}):
        sorter.add(module, *sorted(needs[module]))
    ordered: list[_Statement] = []
    for module in sorter.static_order():
        ordered += [statement for _, statement in sorted(chosen[module].items())]
    return ordered


def _write(part: Part, own: Sequence[_Statement], known: Mapping[str, str], others: Sequence[Part]) -> str:
    from grounded_attention import __version__

    source = _read_source(part.name)
    siblings: dict[str, set[str]] = defaultdict(set)
    for name in set().union(*(each.reads for each in own)) & known.keys():
        siblings[f".{known[name]}"].add(name)
    first = [each for each in own if each.module.startswith("check_")]
    rest = [each for each in own if each not in first]
    copied = [(each.name, next(iter(each.classes))) for each in others]
    later = _list_imports(rest) | ({"TYPE_CHECKING": ("typing", "TYPE_CHECKING")} if copied else {})
    for name in (before := _list_imports(first)):
        later.pop(name, None)
    blocks = [
        f"{_AUTHORS}. Licensed under the Apache License, Version 2.0.\n# Made from the sources of grounded-attention "
        f'{__version__}, which have the full documentation.\n"""{source.summary}"""\n',
        _format_imports({name: (file, name) for file, names in siblings.items() for name in names}),
        *((_format_imports(before), _join(first)) if first else ()),
        _format_imports(later),
        *(["if TYPE_CHECKING:  # transformers copies the files that are imported"] if copied else []),
        "".join(f"    from .{file} import {name} as {name}\n" for file, name in copied),
        _join(rest),
        "".join(f'{name}._auto_class = "{auto}"\n' for name, auto in part.classes.items() if auto),
    ]
    return "\n".join(block for block in blocks if block)


def _list_imports(statements: Iterable[_Statement]) -> dict[str, tuple[str, str]]:
    """Where the names come from that statements read of other packages."""
    imported: dict[str, tuple[str, str]] = {}
    for each in statements:
        outer = _read_source(each.module).outer
        for name in (name for name in outer if name.partition(".")[0] in each.reads):
            if imported.setdefault(name, outer[name]) != outer[name]:
                raise ValueError(f"{name} is imported from {imported[name][0]} and from {outer[name][0]}")
    return imported


def _format_imports(imports: Mapping[str, tuple[str, str]]) -> str:
    """A line for each name, so that none is too long."""
    lines = set()
    for module, what in imports.values():
        lines.add(f"from {module} import {what}\n" if module else f"import {what}\n")
    return "".join(sorted(lines, reverse=True))


def _join(statements: Sequence[_Statement]) -> str:
    """The text of statements, with the blank lines of a formatter."""
    texts = [each.text for each in statements[:1]]
    for before, each in pairwise(statements):
        adjacent = before.module == each.module and before.lines[1] + 1 == each.lines[0]
        texts += ["\n\n" if before.is_block or each.is_block else "\n" if adjacent else "\n\n", each.text]
    return "".join(texts) + "\n"
