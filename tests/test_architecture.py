# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Imports run one way, and what travels to the Hub is flat."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = (
    "training",
    "tasks",
    "families",
    "modeling",
    "processing",
    "dataset_scripts",
    "attention_supervision",
    "evaluation",
)
ALLOWED = {
    "training": {
        "tasks",
        "families",
        "modeling",
        "processing",
        "dataset_scripts",
        "attention_supervision",
        "evaluation",
    },
    "families": {"modeling", "processing"},
    "tasks": {"modeling", "processing", "dataset_scripts", "attention_supervision", "evaluation"},
    "evaluation": {"attention_supervision", "modeling"},
    "modeling": set(),
    "processing": set(),
    "dataset_scripts": set(),
    "attention_supervision": {"modeling"},
}
SHIPPED = ("modeling", "processing")


def files(room):
    return sorted((ROOT / room).rglob("*.py"))


def imports(path):
    """(module, is it relative, names) of every import statement, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level, [alias.name for alias in node.names]


def is_command(path):
    return "__main__" in path.read_text()


def package(path):
    """The dotted name of the package a file lies in."""
    return ".".join(path.parent.relative_to(ROOT).parts)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_lies_below(room):
    for path in files(room):
        if is_command(path):
            continue
        for module, level, _ in imports(path):
            other = module.partition(".")[0]
            if level == 0 and other in {*ROOMS, "train", "command_line", "tests", "benchmarks"}:
                assert other == room or other in ALLOWED[room], f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("name", ["boxes.py", "command_line.py", "whole_files.py"])
def test_what_all_share_imports_no_room(name):
    shared = {*ROOMS, "train", "boxes", "command_line", "whole_files"}
    assert not {module.partition(".")[0] for module, _, _ in imports(ROOT / name)} & shared


# The scenes' files stand under a marker that says that they are unfinished; a converted model is moved as a folder.
WRITES_ITSELF = {"dataset_scripts/scenes/dataset.py", "grounded_attention/conversion/output.py"}


def test_files_are_written_whole():
    found = set()
    for path in (path for room in ROOMS for path in files(room)):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {function.attr for function in calls if isinstance(function, ast.Attribute)}
        if names & {"write_text", "write_bytes"} or '.partial"' in path.read_text():
            found.add(str(path.relative_to(ROOT)))
    assert found == WRITES_ITSELF, "use whole_files.py"


def test_nothing_imports_a_command():
    commands = {f"{package(path)}.{path.stem}": path for room in ROOMS for path in files(room) if is_command(path)}
    assert commands, "the scan finds no command at all"
    for room in ROOMS:
        for path in files(room):
            for module, level, names in imports(path):
                around = package(path).split(".")
                source = ".".join([*around[: len(around) - level + 1], module]).rstrip(".") if level else module
                for target in (source, *(f"{source}.{name}" for name in names)):
                    assert target not in commands or commands[target] == path, f"{path} imports the command {target}"


def test_shipped_files_are_flat_and_import_only_beside_themselves():
    names = Counter(path.name for room in SHIPPED for path in files(room) if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []
    for room in SHIPPED:
        for path in files(room):
            assert path.parent == ROOT / room, f"{path} lies in a subfolder"
            if is_command(path):
                continue
            for module, level, _ in imports(path):
                assert level == 0 or (level == 1 and module and "." not in module), (
                    f"{path}: from {'.' * level}{module}"
                )


def inner_imports(room, name):
    """The files that a shipped file imports, and all that those import."""
    direct = {module for module, level, _ in imports(ROOT / room / f"{name}.py") if level == 1}
    return direct, direct.union(*(inner_imports(room, module)[1] for module in direct))


@pytest.mark.parametrize(
    ("room", "name", "beside"),
    [
        ("modeling", "modeling_vl_bert", "configuration_vl_bert"),
        ("modeling", "modeling_visualbert", "configuration_visualbert"),
        ("modeling", "modeling_fast_rcnn", "configuration_fast_rcnn"),
        ("modeling", "modeling_backbone_regions", "configuration_backbone_regions"),
        ("modeling", "pipeline_visual_grounding", None),
        ("processing", "processing_vl_bert", None),
        ("processing", "processing_visualbert", None),
        ("processing", "image_processing_fast_rcnn", None),
    ],
)
def test_what_an_auto_class_loads_names_every_file_it_needs(room, name, beside):
    """transformers 5.4 copies the files that are imported directly, and those of the configuration beside it."""
    direct, every = inner_imports(room, name)
    configured = inner_imports(room, beside)[1] if beside else set()
    assert every - direct - configured == set()


def test_test_modules_import_no_test_module():
    """What two of them need is a helper's: a file whose name does not begin with test_."""
    tests = {path.stem for path in (ROOT / "tests").glob("test_*.py")}
    assert Path(__file__).stem in tests
    for path in (ROOT / "tests").rglob("*.py"):
        for module, _, names in imports(path):
            found = tests & {module.rpartition(".")[2], *(names if module == "tests" else ())}
            assert not found, f"{path.relative_to(ROOT)} imports {', '.join(found)}"
