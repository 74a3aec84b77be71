# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Imports run one way, no file reaches itself, and what is bundled for the Hub is flat."""

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from grounded_attention.commands.main import COMMANDS, module_name
from tests.helpers.project_files import FILES, LAYERS, LINKS, PACKAGE, ROOT, import_statements, imports, package_of

LAYER = {name: number for number, layer in enumerate(LAYERS) for name in layer}
MAIN = f"{PACKAGE}.__main__"
# What is bundled into checkpoints.
SHIPPED = ("modeling", "processing")
# Packages that know less than their layer allows: a data set knows no model.
NARROW = {
    "dataset_scripts": {"processing", "utils"},  # of processing a row needs the phrase
    "supervision": {"modeling", "utils"},
    "metrics": {"supervision", "modeling", "utils"},
}


def test_every_package_has_a_layer():
    assert {package_of(module) for module in FILES} - {""} == set(LAYER)


@pytest.mark.parametrize("module", FILES)
def test_imports_run_downwards(module):
    here = package_of(module)
    for found in imports(module):
        there = package_of(found.module)
        if not there or there == here or not here:
            continue
        message = f"{FILES[module].relative_to(ROOT)}:{found.line} imports {found.module}"
        assert LAYER[there] <= LAYER[here], message
        assert there in NARROW.get(here, LAYER), message


def test_no_file_imports_itself_around_a_corner():
    """Late imports count: they may save time, not untie a knot. Imports for types alone do not."""
    graph = {
        module: {found.module for found in imports(module) if not found.types_only} - {module, PACKAGE}
        for module in FILES
    }
    assert sum(map(len, graph.values())) > 500, "the scan finds hardly any import"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_module_is_imported_by_the_name_of_its_folder():
    """It would exist twice: `modeling.x` and `grounded_attention.modeling.x` are two modules with two registries."""
    folders = {path.name for path in (ROOT / PACKAGE).iterdir() if path.is_dir()}
    python = [path for top in (PACKAGE, "tests", "benchmarks") for path in (ROOT / top).rglob("*.py")]
    for path in [*python, ROOT / "train.py"]:
        for node, *_ in import_statements(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                # `commands`, `utils` and `training` of the standard library or of others do not exist.
                assert name.partition(".")[0] not in folders, f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"


def test_the_links_at_the_top_lead_into_the_package():
    for name in LINKS:
        assert (ROOT / name).is_symlink()
        assert (ROOT / name).resolve() == ROOT / PACKAGE / name


def test_commands_are_imported_by_the_program_alone():
    commands = {module for module in FILES if package_of(module) == "commands"}
    programs = set(map(module_name, COMMANDS)) | {f"{PACKAGE}.commands.main"}
    for module in FILES:
        for found in imports(module):
            message = f"{FILES[module].relative_to(ROOT)}:{found.line} imports {found.module}"
            allowed = package_of(module) in ("commands", "space") or module == MAIN
            assert found.module not in commands or allowed, message
            assert found.module not in programs or module == MAIN, message


# The scenes' files stand under a marker that says that they are unfinished; a converted model is moved as a folder.
WRITES_ITSELF = {"grounded_attention/dataset_scripts/scenes/dataset.py", "grounded_attention/conversion/output.py"}


def test_files_are_written_whole():
    found = set()
    for path in FILES.values():
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {function.attr for function in calls if isinstance(function, ast.Attribute)}
        if names & {"write_text", "write_bytes"} or '.partial"' in path.read_text():
            found.add(str(path.relative_to(ROOT)))
    found.discard("grounded_attention/utils/whole_files.py")
    assert found == WRITES_ITSELF, "use utils/whole_files.py"


def test_shipped_files_are_flat_and_import_beside_or_below_themselves():
    shipped = [path for name in SHIPPED for path in (ROOT / PACKAGE / name).rglob("*.py")]
    names = Counter(path.name for path in shipped if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []
    for path in shipped:
        assert path.parent.name in SHIPPED, f"{path} lies in a subfolder"
        for node, *_ in import_statements(path):
            if isinstance(node, ast.ImportFrom) and node.level:
                below = node.level == 2 and node.module.startswith(("processing.", "utils."))
                assert below or (node.level == 1 and "." not in (node.module or "")), f"{path}:{node.lineno}"


def test_test_modules_import_no_test_module():
    """What two of them need lies beside them, or in tests/helpers if they are of several folders."""
    tests = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert Path(__file__).stem in tests
    for path in (ROOT / "tests").rglob("*.py"):
        for node, *_ in import_statements(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                found = tests & {node.module.rpartition(".")[2], *(alias.name for alias in node.names)}
                assert not found, f"{path.relative_to(ROOT)} imports {', '.join(found)}"


def test_tests_mirror_the_packages():
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")} - {"tests"}
    assert folders - {"attacks", "benchmarks", "campaign", "conformance", "trainers"} <= set(LAYER)
    assert set(LAYER) <= folders
