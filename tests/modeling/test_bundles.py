# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The code that is saved with a checkpoint: that of the sources, nothing more, and little of it."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import FastRCNNConfig, VLBertConfig
from grounded_attention.modeling.registration import model_code
from grounded_attention.processing import VLBertProcessor
from grounded_attention.processing.processor_registration import processor_code
from grounded_attention.utils import bundle as bundling
from grounded_attention.utils.bundle import Part, bundle
from tests.helpers.processing_helpers import make_processor
from tests.helpers.project_files import PACKAGE, ROOT

SHIPPED = [ROOT / PACKAGE / name for name in ("modeling", "processing", "utils")]
# What transformers needs or uses itself; torchvision and spaCy are used where they are installed.
ALLOWED = {"torch", "numpy", "PIL", "transformers", "huggingface_hub", "packaging", "regex", "torchvision", "spacy"}
MOST_FILES = 6
MOST_NODES = 47_000  # of syntax trees: lines change with a formatter, and opened lines are read faster


def code_of(name, pixels=False):
    """The files of a checkpoint of a family, or of a region-feature model."""
    if name not in FAMILIES:
        return model_code(name, False)
    processor = FAMILIES[name].processor_class
    place = f"{processor.__module__.rpartition('.')[2]}.{processor.__name__}"
    return {**model_code(name, pixels), **processor_code(place, pixels)}


REGION_MODELS = ("vl_bert", "visualbert", "vilbert", "lxmert")
BUNDLES = {
    **{name: code_of(name) for name in (*REGION_MODELS, "fast_rcnn", "backbone_regions")},
    "vl_bert with pixels": code_of("vl_bert", pixels=True),
}
every_bundle = pytest.mark.parametrize("name", BUNDLES)


class WithoutDocumentation(ast.NodeTransformer):
    """Removes docstrings and `auto_docstring`, which have no effect on what is computed."""

    def visit(self, node):
        self.generic_visit(node)
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.decorator_list = [each for each in node.decorator_list if "auto_docstring" not in ast.unparse(each)]
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return node


def statements(text):
    """The statements of a file, without its docstring and imports, as texts."""
    found = []
    for node in WithoutDocumentation().visit(ast.parse(text)).body:
        documentation = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (documentation or for_types or isinstance(node, ast.Import | ast.ImportFrom)):
            found.append(ast.unparse(node))
    return found


@pytest.fixture(scope="module")
def shipped():
    """The statements of all sources."""
    found = set()
    for folder in SHIPPED:
        for path in folder.glob("*.py"):
            found.update(statements(path.read_text()))
    return found


@every_bundle
def test_a_bundle_has_the_statements_of_the_sources_once(shipped, name):
    model = []
    processor = []
    for file, text in BUNDLES[name].items():
        part = processor if "processing" in file else model
        part += statements(text)
    assert {line for line in model + processor if "._auto_class = " not in line} <= shipped
    # A processor's files do not need those of the model; each file has its own logger.
    for part in (model, processor):
        twice = [line for line, count in Counter(part).items() if count > 1]
        assert all(line.startswith("logger = ") for line in twice)


@every_bundle
def test_a_bundle_needs_its_own_files_and_what_transformers_needs(name):
    files = BUNDLES[name]
    direct = {}
    for file, text in files.items():
        outer = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                outer.add(node.names[0].name.partition(".")[0])
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                outer.add(node.module.partition(".")[0])
        assert outer <= ALLOWED | sys.stdlib_module_names
        # As transformers looks for them, also in comments and docstrings; 5.4 copies the direct ones only.
        direct[file] = {f"{each}.py" for each in re.findall(r"^\s*(?:from|import)\s+\.(\S+)", text, re.MULTILINE)}
        assert "auto_docstring" not in text  # it prints a line for each argument without documentation
    for file, named in direct.items():
        for other in named:
            assert direct[other] - {file} <= named


@every_bundle
def test_a_bundle_has_nothing_unused_or_undefined(name, tmp_path):
    files = BUNDLES[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F,E501", "--line-length=119", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
    used = {"VisualGroundingPipeline"}
    defined = set()
    for text in files.values():
        tree = ast.parse(text)
        defined |= {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value.rpartition(".")[2])  # a class by its file and name, or by its name
    assert defined <= used


@pytest.mark.parametrize("name", REGION_MODELS)
def test_a_region_model_has_few_short_files_and_no_pixel_network(name):
    files = BUNDLES[name]
    assert len(files) <= MOST_FILES
    assert sum(len(list(ast.walk(ast.parse(text)))) for text in files.values()) <= MOST_NODES
    assert not re.search(r"class FastRCNNFeatures|class BackboneRegion|roi_align", "".join(files.values()))
    assert "class FastRCNNFeatures" in "".join(BUNDLES["vl_bert with pixels"].values())
    assert len(BUNDLES["vl_bert with pixels"]) <= MOST_FILES


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Writes source files; removes what was read of others."""

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(f'"""{name}"""\n{text}')
        bundling._read_source.cache_clear()

    monkeypatch.setattr(bundling, "SHIPPED", (tmp_path,))
    yield write
    bundling._read_source.cache_clear()


@pytest.mark.parametrize(
    "texts, problem",
    [
        (
            {"a": "from .b import g\ndef _h(): g()\ndef f(): _h()\n", "b": "def _h(): 1\ndef g(): _h()\n"},
            "_h is defined",
        ),
        (
            {
                "a": "from os import sep as x\nfrom .b import g\ndef f(): x, g()\n",
                "b": "from re import sub as x\ng = x\n",
            },
            "x is",
        ),
        ({"a": "def f():\n    from .b import g\n", "b": "g = 1\n"}, "a.py:2"),
    ],
)
def test_what_cannot_be_bundled_is_an_error(sources, texts, problem):
    sources(**texts)
    with pytest.raises(ValueError, match=problem):
        bundle([Part("a", {"f": ""})])


def test_a_bundle_keeps_comments_and_docstrings(sources):
    text = '''import os, re
# Why one.
ONE = 1
TWO = 2
@auto_docstring(
    custom_intro="""
    Says "f".
    """
)
class F:
    open = staticmethod(open)
    @auto_docstring
    def f(
        self,
        a=os,  # kept
    ):
        r"""Of \\ "g"."""
        return (a,)
register = F()
print(F, ONE)
print(re)
'''
    sources(a=text)
    made = bundle([Part("a", {"F": "AutoModel"})])["a.py"]
    assert made.count("import os") == 1
    assert "re" not in made.split()
    assert "TWO" not in made
    assert "register" not in made
    assert "auto_docstring" not in made
    assert '# Says "f".\nclass F' in made
    assert "# Why one.\nONE = 1" in made
    assert "print(F, ONE)" in made
    assert "a=os,  # kept" in made
    assert 'Of \\ "g"."""' in made
    assert made.endswith('F._auto_class = "AutoModel"\n')
    found = {}
    exec(made, found)
    assert found["F"]().f(3) == (3,)


def test_a_class_that_extends_one_of_ours_is_saved_with_that_ones_code(tmp_path):
    class Mine(VLBertProcessor):
        pass

    Mine(make_processor().tokenizer).save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.glob("*.py")} == {"processing_vl_bert.py"}
    place = json.loads((tmp_path / "processor_config.json").read_text())["auto_map"]
    assert place == {"AutoProcessor": "processing_vl_bert.VLBertProcessor"}


def test_code_is_pushed_with_a_configuration(tmp_path, monkeypatch):
    pushed = {}
    monkeypatch.setattr(VLBertConfig, "push_to_hub", lambda self, **arguments: pushed.update(arguments))
    VLBertConfig(vision_config=FastRCNNConfig()).save_pretrained(tmp_path / "name", push_to_hub=True, private=True)
    assert pushed == {"repo_id": "name", "private": True}
    assert json.loads((tmp_path / "name" / "config.json").read_text())["auto_map"]["AutoConfig"]
    assert "class FastRCNNFeatures" in (tmp_path / "name" / "modeling_vl_bert.py").read_text()
