# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the notebooks and their page say; `make docs` runs them and compares what they print and draw."""

import re
import sys
from itertools import pairwise

import nbformat
import pytest

from notebooks.execute import FOLDER, NAMES, read, to_text
from tests.helpers.commands import ROOT

LARGEST = 300_000  # bytes, most of them a picture of the explorer
PATHS = re.compile(r"/(?:home|root|tmp|Users|usr|opt|private|mnt|work|content)/\w|[A-Z]:\\")


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_small_and_tell_nothing_about_a_machine(name):
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    notebook = read(name)
    nbformat.validate(notebook)
    assert text == to_text(notebook) and len(text.encode()) < LARGEST
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "\n".join(str(output.get("text", "")) + "".join(texts(output)) for output in outputs)
    assert not PATHS.search(printed) and str(ROOT) not in printed and sys.prefix not in printed
    assert all(output.output_type != "error" and output.get("name") != "stderr" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))


def texts(output):
    return (str(value) for kind, value in output.get("data", {}).items() if kind.startswith("text/"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_says_what_it_shows(name):
    """A title, an installation from the clone where the package is missing, words after each picture."""
    first, second, *cells = read(name).cells
    assert first.source.startswith("# ")
    needed = r'if find_spec\("grounded_attention"\) is None:.*\n    %pip install --quiet "\.\.\[train\]"$'
    assert re.search(needed, second.source, re.MULTILINE)
    for cell, following in pairwise(cells):
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", ())):
            assert following.cell_type == "markdown" and following.source.startswith("**What to see.**"), cell.id


def test_links_of_notebooks_lead_somewhere():
    for name in NAMES:
        sources = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", sources):
            assert (FOLDER / target).exists(), f"{name} links to {target}"


def test_the_page_lists_every_notebook():
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(\.\./notebooks/(\w+)\.ipynb\)", page)) == sorted(NAMES)


def test_no_page_links_to_an_owner_that_does_not_exist():
    """`ORG` stands for the user's own name in commands; as a part of an address it leads nowhere."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/*.ipynb"), ROOT / "llms.txt"]
    for page in [*pages, *ROOT.glob("model_cards/*.md"), *ROOT.glob("space/*.md")]:
        assert not re.search(r"https?://[^\s)]*\bORG\b", page.read_text(encoding="utf-8")), page
