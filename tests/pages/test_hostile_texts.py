# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Texts from data in pages, cards and figures: shown as they are, never obeyed, never endless."""

import itertools
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from markdown_it import MarkdownIt
from matplotlib.figure import Figure

from grounded_attention.commands.push_tables import region_card
from grounded_attention.dataset_scripts.hub.dataset_card import table
from grounded_attention.dataset_scripts.licences import SCENES
from grounded_attention.dataset_scripts.regions.table import RegionTable, RegionTableWriter
from grounded_attention.heads.changes import compare
from grounded_attention.heads.table import HeadCounts, HeadTable
from grounded_attention.pages.figure_style import save
from grounded_attention.pages.page import EXPLORER, embedded_json, html_page
from grounded_attention.training.publish.card_snippets import seen_lines
from grounded_attention.utils.plain_text import HIDDEN, markdown_code, markdown_text, printable
from tests.helpers.hostile_texts import HOSTILE
from tests.helpers.region_samples import sample

pytestmark = pytest.mark.drawn_figures


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []
        self.text = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("name", HOSTILE)
def test_pages_show_text_and_run_nothing(name):
    text = HOSTILE[name]
    page = html_page(text, EXPLORER + embedded_json("data", {"caption": text}), [(text, text)], lead=text)
    parsed = Tags()
    parsed.feed(page)
    scripts = [attributes for tag, attributes in parsed.found if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not {"img", "b", "i", "a", "iframe"} & {tag for tag, _ in parsed.found}
    policy = next(attributes["content"] for tag, attributes in parsed.found if "http-equiv" in attributes)
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert "http" not in policy
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data) == {"caption": text}
    assert data.isascii()
    assert "unicode-bidi: isolate" in page
    assert "overflow-wrap: anywhere" in page


@pytest.mark.parametrize("name", HOSTILE)
def test_figures_draw_names_as_they_are(tmp_path, name):
    figure = Figure(figsize=(2, 2))
    axes = figure.subplots()
    axes.plot([1, 10], [1, 100], label=HOSTILE[name][:200])
    axes.set_yscale("log")
    axes.set_title(HOSTILE[name][:200])
    axes.legend()
    save(figure, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 1000
    assert axes.title.get_parse_math() is ("$" not in HOSTILE[name])
    assert "\x1b" not in (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert all(label.get_parse_math() for label in axes.get_yticklabels() if "mathdefault" in label.get_text())


@pytest.mark.parametrize("name", HOSTILE)
def test_text_for_terminals_and_markdown(name):
    shown = printable(HOSTILE[name])
    marked = markdown_text(HOSTILE[name])
    assert len(shown) <= 4000
    assert len(marked) <= 400
    assert "\n" not in marked
    import unicodedata

    assert not {unicodedata.category(character) for character in shown + marked} & set(HIDDEN)
    assert not re.search(r"(?<!\\)[|<>`\[\]*#$]", marked)


def test_plain_text_stays_as_it_is():
    for text in ("two dogs", "größe ✓ 图像 كلب", "a-b, c. (d) 50 %", "-0.5", "18.5 %", "a: b", "2-2"):
        assert printable(text) == markdown_text(text) == text


def rows_of(text):
    """The cells of the tables as a parser of Markdown reads them; anything but text and code in a row is an error."""
    tokens = MarkdownIt().enable(["table", "strikethrough"]).parse(text)
    rows = []
    for token, kind in itertools.pairwise(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("td_open", "th_open"):
            assert {child.type for child in kind.children} <= {"text", "text_special", "code_inline"}, kind.content
            rows[-1].append("".join(child.content for child in kind.children))
    return rows


@pytest.mark.parametrize("name", HOSTILE)
def test_cells_of_cards_and_audits_have_names_of_strangers_as_they_are(name):
    text = HOSTILE[name]
    shown = printable(" ".join(HOSTILE[name].split()), 200)
    counts = HeadCounts(("a",), np.ones(1), *np.ones((2, 1, 1, 2)), *np.ones((3, 1)))
    audited = HeadTable((text,), 2, {"text_to_region": {"all": counts, text: counts}}, {text: counts}, {"data": text})
    head, *rows = rows_of(audited.to_card_section())
    groups = [what for what, *_ in rows]
    assert groups == ["text → region", f"text → region, {shown}", f"relation, {shown}"]
    assert all(len(row) == len(head) for row in rows)
    changes = compare(audited, audited, (text, text)).to_markdown()
    assert [len(row) for row in rows_of(changes)] == [5, 5, 5]
    assert changes.count("\n#") == 0
    cells = rows_of(table(("column", "type"), [(markdown_code(text), markdown_text(text))]))
    assert cells[1] == [shown, shown]


@pytest.mark.parametrize(
    "text", ["- a", "+ a", "# a", "1. a", "12) a", "---", "===", "> a", "~~~", "    a", "a\n\n- b"]
)
def test_a_text_begins_no_block(text):
    [opened, inline, _] = MarkdownIt().parse(markdown_text(text))
    assert opened.type == "paragraph_open"
    assert len({child.type for child in inline.children} - {"text_special"}) == 1
    assert "".join(child.content for child in inline.children) == " ".join(text.split())


def test_the_name_of_a_feature_model_stays_in_its_comment():
    lines = seen_lines(False, 4, {"name": "a\nimport os  # ```\n```\n# Title"}).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(("boxes =", "features =", "seen =")) for line in lines)


def test_a_card_of_regions_cannot_be_broken_by_an_image_id_or_a_detector(tmp_path):
    hostile = 'x"]\n```\n<script>alert(1)</script>\n\n# Heading'
    with RegionTableWriter(tmp_path, {"detector": hostile, "source": hostile}) as writer:
        writer.write(sample(hostile))
    card = region_card("org/name", RegionTable.open(tmp_path), SCENES, None)
    assert "\n# Heading" not in card
    assert "\n<script>" not in card
    assert card.count("\n```") == 6
    outside = "".join(card.split("\n```")[::2])
    assert "<script>" not in outside.replace("\\<script", "")
