# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The notebooks run offline, and their stored outputs are what they print and draw."""

import base64
import io
import re
import sys
from itertools import islice, pairwise

import nbformat
import pytest
from PIL import Image

from notebooks.execute import FOLDER, NAMES, execute, read, to_text
from tests.helpers.commands import ROOT

LARGEST = 300_000  # bytes, most of them a picture of the explorer
PATHS = re.compile(r"/(?:home|root|tmp|Users|usr|opt|private|mnt|work|content)/\w|[A-Z]:\\")
# The tag of a cell whose figures are those of a training: another machine rounds differently.
ROUNDING = "rounding"
HUNDRED = {
    '"training.max_steps": "100"': '"training.max_steps": "8"',
    '"training.warmup_steps": "10"': '"training.warmup_steps": "1"',
}
# Figures of a training are not compared, so a tenth of its steps shows the same.
FEWER_STEPS = {
    "heads_of_a_vlm": {
        "max_steps=100": "max_steps=8",
        "warmup_steps=10": "warmup_steps=1",
        "logging_steps=25": "logging_steps=2",
    },
    "hub_data_to_qwen_vl": HUNDRED,
    "your_own_data": {
        "max_steps=120": "max_steps=8",
        "warmup_steps=10": "warmup_steps=1",
        "logging_steps=10": "logging_steps=2",
    },
    "your_own_data_set": HUNDRED,
    "train_and_compare": {
        '"training.max_steps": "80"': '"training.max_steps": "8"',
        '"training.warmup_steps": "10"': '"training.warmup_steps": "1"',
        '"training.logging_steps": "20"': '"training.logging_steps": "2"',
    },
}
# White figures, and no full garbage collection for each training, as `conftest.py` has it.
QUICK = """
import functools, gc
from matplotlib.figure import Figure
from tests.helpers.quick_figures import BLANK
for name, stand_in in BLANK.items():
    setattr(Figure, name, stand_in)
gc.collect = functools.partial(gc.collect, 1)
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Name -> executed cells. All have one folder and one kernel: scenes are drawn once, libraries imported once.

    Figures are white: of a picture the size is compared.
    """
    cells = [nbformat.v4.new_code_cell(QUICK)]
    for name in NAMES:
        cells += [*with_fewer_steps(name).cells, nbformat.v4.new_code_cell("%reset -f")]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    done = iter(execute(nbformat.v4.new_notebook(cells=cells), tmp_path_factory.mktemp("notebooks")).cells[1:])
    return {name: list(islice(done, len(read(name).cells) + 1))[:-1] for name in NAMES}


def with_fewer_steps(name):
    notebook = read(name)
    changes = FEWER_STEPS.get(name, {})
    for before, after in changes.items():
        (cell,) = (cell for cell in notebook.cells if before in cell.source)
        cell.source = cell.source.replace(before, after)
    return notebook


def shape(output, rounding):
    """What of an output must stay the same: its kind, its text, the size of its picture."""
    if output.output_type == "stream":
        return output.name, figures_left_out(output.text, rounding)
    data = output.data
    texts = [figures_left_out(data[kind], rounding) for kind in ("text/plain", "text/markdown") if kind in data]
    size = picture(data).size if "image/png" in data else None
    return output.output_type, sorted(data), texts, size


def figures_left_out(text, rounding):
    """The text; of a cell with trained figures, without them and colours of regions, with the same room for each."""
    if not rounding:
        return text
    text = re.sub(r"(?:red|blue|green|yellow)(?= +\d+%)", "colour", text)
    return re.sub(r" +", " ", re.sub(r"\**[+-]?\d+(?:\.\d+)?(?:e-?\d+)?\**", "0", text))


def picture(data):
    return Image.open(io.BytesIO(base64.b64decode(data["image/png"])))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_gives_its_stored_outputs(name, executed):
    for before, after in zip(read(name).cells, executed[name], strict=True):
        if before.cell_type == "code":
            rounding = ROUNDING in before.metadata.get("tags", ())
            after.outputs = [each for each in after.outputs if "kernels-community" not in str(each)]  # of bitsandbytes
            expected, found = ([shape(output, rounding) for output in cell.outputs] for cell in (before, after))
            assert found == expected, f"{name}, {before.id}: run `make notebooks` and look at it"


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_small_and_tell_nothing_about_a_machine(name):
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    notebook = read(name)
    nbformat.validate(notebook)
    assert text == to_text(notebook)
    assert len(text.encode()) < LARGEST
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "\n".join(str(output.get("text", "")) + "".join(texts(output)) for output in outputs)
    assert not PATHS.search(printed)
    assert str(ROOT) not in printed
    assert sys.prefix not in printed
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
    page = (ROOT / "docs" / "first_hour.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(\.\./notebooks/(\w+)\.ipynb\)", page)) == sorted(NAMES)


def test_no_page_links_to_an_owner_that_does_not_exist():
    """`ORG` stands for the user's own name in commands; as a part of an address it leads nowhere."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/*.ipynb")]
    for page in [*pages, *ROOT.glob("model_cards/*.md"), *ROOT.glob("grounded_attention/space/*.md")]:
        assert not re.search(r"https?://[^\s)]*\bORG\b", page.read_text(encoding="utf-8")), page
