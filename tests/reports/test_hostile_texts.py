# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Texts from data in pages, cards and figures: shown as they are, never obeyed, never endless."""

import json
import re
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from grounded_attention.dataset_scripts.licences import SCENES
from grounded_attention.dataset_scripts.regions.card import write_region_card
from grounded_attention.reports.figure_style import save
from grounded_attention.reports.html_page import embedded_json, html_page
from grounded_attention.utils.plain_text import HIDDEN, markdown_text, printable
from tests.helpers.hostile_texts import HOSTILE

pytestmark = pytest.mark.drawn_figures


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.text = [], []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("name", HOSTILE)
def test_pages_show_text_and_run_nothing(name):
    text = HOSTILE[name]
    page = html_page(text, embedded_json("data", {"caption": text}), script="let a = 1;", about=[(text, text)])
    parsed = Tags()
    parsed.feed(page)
    scripts = [attributes for tag, attributes in parsed.found if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not {"img", "b", "i", "a", "iframe"} & {tag for tag, _ in parsed.found}
    policy = next(attributes["content"] for tag, attributes in parsed.found if "http-equiv" in attributes)
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2] and "http" not in policy
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data) == {"caption": text} and data.isascii()
    assert "unicode-bidi: isolate" in page and "overflow-wrap: anywhere" in page


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
    shown, marked = printable(HOSTILE[name]), markdown_text(HOSTILE[name])
    assert len(shown) <= 4000 and len(marked) <= 400 and "\n" not in marked
    import unicodedata

    assert not {unicodedata.category(character) for character in shown + marked} & set(HIDDEN)
    assert not re.search(r"(?<!\\)[|<>`\[\]*#$]", marked)


def test_plain_text_stays_as_it_is():
    for text in ("two dogs", "größe ✓ 图像 كلب", "a-b, c. (d) 50 %"):
        assert printable(text) == markdown_text(text) == text


def test_a_write_region_card_cannot_be_broken_by_an_image_id_or_a_detector():
    hostile = 'x"]\n```\n<script>alert(1)</script>\n\n# Heading'
    info = {
        "provenance": {"detector": hostile, "source": hostile},
        "arrays": {"boxes": 4, "features": 8},
        "images": 1,
        "regions": 1,
        "feature_size": 8,
        "checksum": "0" * 32,
        "shards": [{"file": "regions-00000.arrow", "bytes": 3}],
    }
    card = write_region_card("org/name", info, SCENES, None, {"regions-00000.arrow": "0"}, hostile)
    assert "\n# Heading" not in card and "\n<script>" not in card and card.count("\n```") == 6
    outside = "".join(card.split("\n```")[::2])
    assert "<script>" not in outside.replace("\\<script", "")
