# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How Sphinx makes the site (`make docs`): from the Markdown pages where they lie, with no network.

The sources are those of the whole repository, so that a link between two files is the same there and on the site.
`navigation.yml` lists the pages; `api_text.py` writes what an `{api}` block of `docs/api/` names; `search_sections.py`
makes what `_static/search.js` searches, since the search of Sphinx shows excerpts only from a server.
"""

import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from api_text import SUFFIX, expand, write_pages  # noqa: E402
from llms_text import llms_text  # noqa: E402
from search_sections import script  # noqa: E402

NAVIGATION: dict[str, list[str]] = yaml.safe_load((ROOT / "docs" / "navigation.yml").read_text(encoding="utf-8"))
HOME = "README"

project, author = "grounded-attention", "The grounded-attention authors"
project_copyright, release = (
    f"2026, {author}. Apache-2.0",
    re.search(r"version: (.+)", (ROOT / "CITATION.cff").read_text())[1],
)
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = HOME
LISTED = [f"{HOME}.md", *(page for group in NAVIGATION.values() for page in group)]
include_patterns = [*LISTED, *write_pages()]
exclude_patterns = [
    ".*",
    "data",
    "dist",
    "runs",
    "site",
    "tests",
    "grounded_attention",
]  # large, or links to other folders
source_suffix = {".md": "markdown", SUFFIX: "markdown"}
highlight_language = "none"
myst_heading_anchors = 4  # the anchors of GitHub
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"  # its fonts are those of the reader's system, its scripts lie beside the pages
html_title = "grounded-attention"
html_theme_options = {"light_logo": "logo.svg", "dark_logo": "logo-dark.svg"}
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_show_sphinx = html_show_sourcelink = html_copy_source = False
pygments_style, pygments_dark_style = "friendly", "monokai"


def write_navigation() -> str:
    """Returns the navigation as hidden lists of contents for the end of the first page."""
    blocks = []
    for title, group in NAVIGATION.items():
        lines = "\n".join(page.removesuffix(".md") for page in group)
        blocks.append(f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n:caption: {title}\n\n{lines}\n```\n")
    return "\n" + "\n".join(blocks)


def read_page(app, name: str, source: list[str]) -> None:
    """Adds to a page what is not in its file: the navigation, the text of the API. The logo is beside every page."""
    if name == HOME:
        source[0] = re.sub(r"<picture>.*?</picture>\s*", "", source[0], flags=re.DOTALL) + write_navigation()
    if Path(name).parent == Path("docs/api"):
        source[0] = expand(source[0])


def write_first_page(app, problem: Exception | None) -> None:
    """Lets the address of the site lead to the first page; writes what its search and what programs read."""
    if problem is None:
        text = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={HOME}.html">'
        (Path(app.outdir) / "index.html").write_text(
            f'{text}<title>{project}</title><a href="{HOME}.html">{project}</a>\n', encoding="utf-8"
        )
        (Path(app.outdir) / "_static" / "sections.js").write_text(script(LISTED), encoding="utf-8")
        (Path(app.outdir) / "llms.txt").write_text(llms_text(NAVIGATION), encoding="utf-8")
        (Path(app.outdir) / ".nojekyll").touch()  # GitHub Pages would leave out _static


def setup(app) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", read_page)
    app.connect("build-finished", write_first_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
