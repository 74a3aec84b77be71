# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Markdown of the API from docstrings. Files are read, not imported: the site needs neither torch nor transformers."""

import ast
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "grounded_attention"
SUFFIX = ".api"  # of written pages: they are no Markdown of the project
BLOCK = re.compile(r"^```\{api\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Examples?):\s*$")
ITEM = re.compile(r"^(\*{0,2}[\w.]+(?:, \*{0,2}\w+)*)( \(.*\))?:(?:\s+(.*))?$")
Definition = ast.ClassDef | ast.FunctionDef


class Found(NamedTuple):
    """A definition, and the name of the module in which it is."""

    module: str
    node: ast.AST


def expand(text: str) -> str:
    """Replaces each `{api}` block by a list of its names, each with its first sentence and a link to its page."""
    return BLOCK.sub(lambda block: listing(block[1].split()), text)


def listing(names: list[str]) -> str:
    pages = {name: name.rpartition(".")[2] for name in names}
    lines = [f"- [`{page}`](names/{page}{SUFFIX}): {first_sentence(describe(name))}" for name, page in pages.items()]
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *(f"names/{page}" for page in pages.values()), "```"])
    return "\n".join(lines) + f"\n\n{toctree}\n"


def first_sentence(page: str) -> str:
    """The first sentence below the code block of a page; empty if transformers writes it."""
    said = page.split("```")[2].strip().split("\n\n")[0]
    said = "" if said.startswith(("#", "**")) else " ".join(said.split())
    return re.split(r"(?<=\.) ", said)[0].rstrip(":")


def pages() -> dict[str, str]:
    """Name -> the Markdown of its page, of all names of `docs/api/`."""
    blocks = (BLOCK.search(page.read_text(encoding="utf-8")) for page in sorted((ROOT / "docs" / "api").glob("*.md")))
    return {name.rpartition(".")[2]: describe(name) for block in blocks if block for name in block[1].split()}


def write_pages() -> list[str]:
    """Writes the page of each name into `docs/api/names`, which no one edits; returns their files."""
    folder = ROOT / "docs" / "api" / "names"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in pages().items():
        (folder / f"{name}{SUFFIX}").write_text(text, encoding="utf-8")
    return [f"docs/api/names/{name}{SUFFIX}" for name in pages()]


def describe(name: str) -> str:
    """The Markdown of a public name of the package, or of a path below it such as `metrics.vqa_accuracy.vqa_accuracy`.

    Raises:
        LookupError: if there is no such class or function, or it has no documentation.
    """
    path, _, last = f"{PACKAGE}.{name}".rpartition(".")
    found = find(path, last)
    if not isinstance(found.node, Definition):
        raise LookupError(f"{name}: expected a class or a function")
    text = documentation(found.module, found.node)
    if not text and not found.node.decorator_list:  # transformers writes that of a class which is only decorated
        raise LookupError(f"{name} has no docstring")
    parts = [f"# {last}", signature(path, found.node), to_markdown(text)]
    if isinstance(found.node, ast.ClassDef):
        for module, method in methods(found):
            if method.name == "__call__" or method.name[0] != "_":
                said = documentation(module, method)
                if said and not is_setter(method):
                    parts += [f"## {last}.{method.name}", signature("", method), to_markdown(said)]
    return "\n\n".join(parts) + "\n"


def methods(found: Found) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The methods of a class, each with its module; and the `forward` of a base class, if the class has none."""
    own = [part for part in found.node.body if isinstance(part, ast.FunctionDef)]
    yield from ((found.module, method) for method in own)
    if all(method.name != "forward" for method in own):
        for base in (base for base in found.node.bases if isinstance(base, ast.Name)):
            try:
                inherited = list(methods(find(found.module, base.id)))
            except (LookupError, AttributeError):  # a class of another package
                continue
            if forward := [each for each in inherited if each[1].name == "forward"]:
                yield forward[0]
                return


@cache
def parse(module: str) -> ast.Module | None:
    place = ROOT / module.replace(".", "/")
    files = [place / "__init__.pyi", place / "__init__.py", place.with_suffix(".py")]
    file = next((file for file in files if file.is_file()), None)
    return file and ast.parse(file.read_text(encoding="utf-8"))


@cache
def find(module: str, name: str) -> Found:
    """Follows imports from a module to the definition of a name.

    Raises:
        LookupError: if the module, or the name in it, does not exist.
    """
    for node in statements(parse(module)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return Found(module, node)
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            return Found(module, node.value)
        if isinstance(node, ast.ImportFrom) and node.level < 2:
            source = source_of(module, node)
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return find(source, alias.name)
                if alias.name == "*" and any(getattr(each, "name", "") == name for each in statements(parse(source))):
                    return find(source, name)
    raise LookupError(f"{module} has no {name}")


def statements(tree: ast.Module | None) -> Iterator[ast.AST]:
    """Those of a module, and those that only type checkers read."""
    for node in tree.body if tree else ():
        yield from node.body if isinstance(node, ast.If) else (node,)


def source_of(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module if (ROOT / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


def documentation(module: str, node: Definition) -> str:
    """The docstring, with what transformers' `auto_docstring` is given: an introduction, and arguments."""
    said = clean(ast.get_docstring(node, clean=False) or "")
    arguments = ""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "auto_docstring":
            given = {one.arg: clean(constant(module, one.value)) for one in decorator.keywords}
            said = "\n\n".join(part for part in (given.get("custom_intro", ""), said) if part)
            arguments = given.get("custom_args", "")
    if ITEM.match(said.splitlines()[0] if said else ""):
        said = "Args:\n" + indent(said)
    elif "\n\n" in said and isinstance(node, ast.ClassDef):
        first, rest = said.split("\n\n", 1)
        if ITEM.match(rest.splitlines()[0]) and "(`" in rest.splitlines()[0]:
            said = f"{first}\n\nArgs:\n{indent(rest)}"
    return "\n\n".join(part for part in (said, arguments and "Args:\n" + indent(arguments)) if part)


def constant(module: str, node: ast.AST) -> str:
    """The value of a string that is written in the code: literals, names of literals, sums of them."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.BinOp):
        return constant(module, node.left) + constant(module, node.right)
    if isinstance(node, ast.Name):
        return constant(*find(module, node.id))
    raise LookupError(f"{module}: {ast.unparse(node)} is not a plain string")


def clean(text: str) -> str:
    """Removes the indentation of a docstring whose parts may have been joined."""
    lines = text.expandtabs().splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()), default=0)
    return "\n".join([*(line.strip() for line in lines[:1]), *(line[margin:].rstrip() for line in lines[1:])]).strip(
        "\n"
    )


def indent(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


def signature(path: str, node: Definition) -> str:
    """A code block with the call, and with the import for a name of a module."""
    if isinstance(node, ast.ClassDef):
        made = next(
            (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None
        )
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        shown = f"class {node.name}({bases})" if bases else f"class {node.name}"
        call = f"{node.name}{call_of(made)}" if made else ""
    else:
        read = is_property(node)  # read without a call, so shown as an attribute with its type
        shown, call = node.name if read else f"{node.name}{call_of(node)}", ""
        if node.returns:
            shown += (": " if read else " -> ") + ast.unparse(node.returns).strip("'")
    lines = [f"from {path} import {node.name}\n" if path else "", shown, call]
    return "```python\n" + "\n".join(line for line in lines if line) + "\n```"


def decorators(node: Definition) -> list[str]:
    """The last parts of the names of its decorators."""
    return [ast.unparse(one.func if isinstance(one, ast.Call) else one).split(".")[-1] for one in node.decorator_list]


def is_property(node: Definition) -> bool:
    """Whether it is a property of any kind: `property`, `cached_property`, `abstractproperty` ..."""
    return any(name.endswith("property") for name in decorators(node))


def is_setter(node: Definition) -> bool:
    """Whether it is a second definition of a property, which is documented once."""
    return bool({"setter", "deleter"} & set(decorators(node)))


def call_of(node: ast.FunctionDef) -> str:
    shown = ast.unparse(node.args).removeprefix("self, ").removeprefix("cls, ")
    shown = "" if shown in ("self", "cls") else shown
    if len(shown) < 80:
        return f"({shown})"
    return "(\n" + "".join(f"    {part},\n" for part in split_arguments(shown)) + ")"


def split_arguments(text: str) -> list[str]:
    """Splits at the commas that are outside of brackets and strings."""
    parts, depth, start, quoted = [], 0, 0, ""
    for place, letter in enumerate(text):
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "'\"":
            quoted = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def to_markdown(text: str) -> str:
    """Turns the sections of a docstring into lists; all else is Markdown already."""
    lines, section, item = [], "", 4
    for line in text.splitlines():
        if match := SECTION.match(line):
            section = match[1]
            lines += ["", f"**{section}**", ""]
        elif section and line and line[0] != " ":
            section = ""
            lines += ["", line]
        elif section in ("", "Example", "Examples"):
            lines.append(line.removeprefix("    ") if section else line)
        elif (match := ITEM.match(line[item:])) and len(line) - len(line.lstrip()) == item:
            lines.append(f"- **{match[1]}**{match[2] or ''}: {match[3] or ''}".rstrip())
        elif section in ("Returns", "Yields", "Raises") and len(line) - len(line.lstrip()) == item and line:
            lines.append(line[item:])
        else:
            lines.append(f"  {line.strip()}" if line else "")
    return re.sub(r"\[`~?([\w.]+)`\]", r"`\1`", "\n".join(lines)).strip()
