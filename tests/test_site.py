# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The site without its generator: navigation, API, commands of tutorials. `make docs` checks links and pictures."""

import ast
import importlib
import inspect
import json
import re
import shlex
import shutil

import pytest
import yaml

import grounded_attention
from grounded_attention.commands.main import command_parser, find_command
from grounded_attention.modeling.task_arguments import FAMILY_INPUTS
from tests.helpers.browser import open_browser
from tests.helpers.commands import ROOT
from tests.helpers.project_files import LAYERS

NAVIGATION = yaml.safe_load((ROOT / "docs" / "navigation.yml").read_text(encoding="utf-8"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
API = sorted((ROOT / "docs" / "api").glob("*.md"))
NAMES = {page.stem: re.search(r"```\{api\}\n(.*?)```", page.read_text(), re.DOTALL)[1].split() for page in API}
STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def test_the_navigation_has_every_page_once():
    listed = [page for pages in NAVIGATION.values() for page in pages]
    assert len(listed) == len(set(listed))
    assert all((ROOT / page).is_file() for page in listed)
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    assert pages == {page for page in listed if page.startswith("docs/")}


def test_the_api_has_every_public_class_and_function_once():
    listed = [name for names in NAMES.values() for name in names]
    public = {
        name for name in grounded_attention.__all__ if name not in ("BUILDERS", "FAMILIES", "TASKS")
    }  # an alias, and lists
    assert len(listed) == len(set(listed))
    assert public <= set(listed)


def load_docs(name):
    """A module of docs/, which is no package."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(ROOT / "docs")
        return importlib.import_module(name)


# What readers look for -> the page that must come first.
SEARCHES = {
    "heatmap": "docs/look",
    "attention map": "docs/look",
    "visualize attention": "docs/look",
    "visualise attention": "docs/look",
    "bbox": "docs/data",
    "install": "docs/first_hour",
    "resume": "docs/training",
    "wandb": "docs/training",
    "Qwen": "docs/vlm",
    "LoRA": "docs/training",
    "hallucination": "docs/evaluation",
    "onnx": "docs/hub",
    "optimizer": "docs/own_loop",
    "TRL": "docs/own_loop",
    "VLBertProcessor": "docs/api/names/VLBertProcessor",
    "rollout attention": "docs/",
}


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """Query -> what the script of the site finds, in a browser."""
    folder = tmp_path_factory.mktemp("search")
    pages = ["README.md", *(page for pages in NAVIGATION.values() for page in pages)]
    (folder / "sections.js").write_text(load_docs("search_sections").script(pages), encoding="utf-8")
    shutil.copy(ROOT / "docs" / "_static" / "search.js", folder)
    (folder / "page.html").write_text(
        '<meta charset="utf-8"><script src="sections.js"></script><script src="search.js"></script>'
    )
    with open_browser(folder / "profile") as browser:
        browser.open(folder / "page.html")
        return {query: browser.evaluate(f"search({json.dumps(query)})") for query in [*SEARCHES, "zxqv"]}


@pytest.mark.parametrize("query", SEARCHES)
def test_the_search_finds_the_right_page_first(searched, query):
    first = searched[query][0]
    assert first["address"].startswith(SEARCHES[query])
    assert len(first["excerpt"]) > 5


def test_the_search_marks_what_it_found_and_says_if_that_is_nothing(searched):
    assert searched["zxqv"] == []
    marked = [word.lower() for hit in searched["resume"] for word, found in hit["excerpt"] if found]
    assert marked
    assert all("resum" in word for word in marked)


DRAWINGS = sorted((ROOT / "docs" / "images").glob("*.svg"))


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_can_be_read_in_the_dark_and_on_a_phone(drawing):
    """A dark form of every colour, a title for who cannot see it, and letters of 11 pixels where it is 370 wide."""
    text = drawing.read_text(encoding="utf-8")
    light, dark = text.partition("</style>")[0].split("@media (prefers-color-scheme: dark)")
    coloured = re.findall(r"^ *(\.?[\w]+) \{[^}]*(?:fill|stroke): #", light, re.MULTILINE)
    assert coloured
    assert set(coloured) <= set(re.findall(r"^ *(\.?[\w]+) \{", dark, re.MULTILINE))
    assert "<title " in text
    width = int(re.search(r'viewBox="0 0 (\d+)', text)[1])
    assert all(int(size) * 370 / width > 10.9 for size in re.findall(r"font-size: (\d+)px", text))


def test_the_drawing_of_the_architecture_has_every_package_in_its_layer():
    text = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    layers: list[set[str]] = []
    for part in re.findall(r'<rect class="(?:box|shipped)".*?(?=<rect|<path)', text, re.DOTALL)[: len(LAYERS)]:
        layers.append(set(re.findall(r"[a-z_]+", " ".join(re.findall(r'class="name"[^>]*>([^<]*)', part)))))
    assert layers == list(reversed(LAYERS))


@pytest.fixture(scope="module")
def api_text():
    return load_docs("api_text")


@pytest.mark.parametrize("name", [name for names in NAMES.values() for name in names])
def test_the_api_shows_what_python_imports(api_text, name):
    """The text is read from files. Here the name is imported as the text says, and has the same arguments."""
    text = api_text.describe(name)
    module, last = re.search(r"^```python\nfrom ([\w.]+) import (\w+)$", text, re.MULTILINE).groups()
    value = getattr(importlib.import_module(module), last)
    assert text.startswith(f"# {last}\n")
    assert name.rpartition(".")[2] == last
    calls = {last: value}
    if inspect.isclass(value):
        calls = {
            f"{last}.{method}": getattr(value, method) for method in re.findall(rf"^## {last}\.(\w+)$", text, re.M)
        }
    for title, call in calls.items():
        shown = re.search(
            rf"^#+ {re.escape(title)}\n\n```python\n(?:from[^\n]*\n\n)?(.*?)\n```", text, re.DOTALL | re.MULTILINE
        )[1]
        if not callable(call):  # a property: an attribute with its type, which no one can call
            [attribute] = ast.parse(shown).body
            assert isinstance(attribute, ast.AnnAssign)
            assert title.endswith(f".{attribute.target.id}")
            continue
        [function] = ast.parse(f"def {shown}: ...").body
        found = [one.arg for one in (*function.args.args, *function.args.kwonlyargs)]
        plain = [one.name for one in inspect.signature(call).parameters.values() if one.kind not in STARRED]
        hidden = {"self", "cls", *(FAMILY_INPUTS if function.args.kwarg else ())} - set(found)  # in files: **kwargs
        assert found == [one for one in plain if one not in hidden]


def test_the_api_shows_docstrings_as_lists(api_text):
    text = api_text.describe("get_method")
    assert "**Args**\n\n- **name** (`str`): name of the method, one of `method_names()`" in text
    assert "**Raises**" in text
    assert "- **ValueError**: if the method" in text
    assert "- **region_features** (" in api_text.describe("VLBertForVGP"), "an argument that auto_docstring is given"
    with pytest.raises(LookupError, match="has no Nothing"):
        api_text.describe("Nothing")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_commands_of_a_tutorial_exist(page):
    """Every command parses, every target of make and every recipe exists; a tutorial is at most a page or two."""
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    recipes = {path.stem for path in (ROOT / "recipes").rglob("*.yaml")}
    blocks = "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).replace("\\\n", "")
    words = [shlex.split(line, comments=True) for line in blocks.splitlines()]
    assert any(words)
    assert len(text) < 6000
    for program, *rest in filter(None, words):
        if program == "make":
            assert set(rest) <= targets
        elif program == "grounded-attention":
            name, arguments = find_command(rest)
            parser = command_parser(name)
            parser.parse_intermixed_args(arguments)
            assert name != "train" or arguments[0] in recipes
        elif program == "accelerate":
            assert (ROOT / rest[rest.index("train.py") + 1]).is_file()
        else:
            assert program in ("hf", "pip"), program
