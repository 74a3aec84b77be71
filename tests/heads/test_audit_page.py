# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit's page: what it says is what the audits counted, it is whole, safe, and shows in a browser."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from grounded_attention.heads.changes import permutation_test
from grounded_attention.heads.example_attention import ExampleAttention
from grounded_attention.heads.page import heads_page
from grounded_attention.heads.statistics import holm
from grounded_attention.heads.table import HeadCounts, HeadTable
from grounded_attention.pages.page import html_table
from tests.helpers.browser import open_browser
from tests.helpers.quick_figures import BLANK

pytestmark = pytest.mark.drawn_figures

HOSTILE = "</script><script>x</script>\"'&<b>"
LAYERS = 2
HEADS = 3
IMAGES = 40


def counts(seed, lift=0.0, layers=LAYERS):
    items = np.random.default_rng(7).integers(1, 5, IMAGES)
    rng = np.random.default_rng(seed)
    chances = np.clip(0.3 * rng.random((layers, HEADS)) + lift, 0, 1)
    by_head = items[:, None, None]
    correct = rng.binomial(by_head, chances, (IMAGES, layers, HEADS))
    share = np.full((layers, HEADS), 0.3) * by_head
    return HeadCounts(tuple(map(str, range(IMAGES))), items, correct, share, items // 2, items * 0.1, items)


def result(seed, lift=0.0):
    entities = {"text_to_region": {"all": counts(seed, lift), HOSTILE: counts(seed + 1)}}
    relations = {"amod": counts(seed)}
    for n in range(1, 12):
        relations[f"rel{n}"] = counts(seed + n).take(range(IMAGES - n))
    return HeadTable(("0", "1"), HEADS, entities, relations, {"data": "x"})


RESULTS = {"start": result(1), HOSTILE: result(1, 0.4)}
START, BEST = (table.counts for table in RESULTS.values())


def example():
    rng = np.random.default_rng(0)
    boxes = np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 1]])
    there = rng.dirichlet(np.ones(3), (LAYERS, HEADS, 2))[..., :2]
    return ExampleAttention(Image.new("RGB", (40, 30)), f"ab cd {HOSTILE}", ((0, 2), (3, 5)), boxes, there, ("0", "1"))


EXAMPLES = {name: [example()] for name in RESULTS}


class Reader(HTMLParser):
    """Text of cells and paragraphs, and which tags there are."""

    def __init__(self, page):
        super().__init__()
        self.rows = []
        self.tags = []
        self.text = ""
        self._inside = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & {*self._inside}:
            self.text += data
        if {"td", "th"} & {*self._inside[-1:]}:
            self.rows[-1][-1] += data

    def attributes(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def written():
    extra = {HOSTILE: html_table(("map", "area"), [("rollout", "0.5")])}
    return heads_page(RESULTS, f"Audit {HOSTILE}", about=[("data", HOSTILE)], examples=EXAMPLES, extra=extra)


@pytest.fixture(scope="module")
def reader(written):
    return Reader(written)


def best_head(table):
    return np.unravel_index(table.accuracy.argmax(), (LAYERS, HEADS))


@pytest.mark.parametrize("name, table", [("start", START), (HOSTILE, BEST)], ids=["start", "hostile"])
def test_the_tables_hold_every_models_best_head(reader, name, table):
    (row,) = [row for row in reader.rows if row[:2] == ["text → region", name]]
    layer, head = best_head(table)
    accuracy, low, high = re.fullmatch(r"(.+) \((.+)% to (.+)%\)", row[3]).groups()
    assert row[2] == f"{layer}-{head}"
    assert accuracy == f"{table.accuracy.max():.1%}"
    assert float(low) < 100 * table.accuracy.max() < float(high)
    baseline = f"{table.baseline_accuracy:.1%}"
    assert row[4:] == ["30%", baseline, "10.0%", "100.0%", f"{table.total} in {IMAGES} images"]


def test_the_ten_most_common_relations_are_shown(reader):
    shown = [row[0] for row in reader.rows if row[0].startswith("relation, ") and row[1] == "start"]
    expected = ["relation, amod (adjective of a noun)", *(f"relation, rel{n}" for n in range(1, 10))]
    assert shown == expected, "the two rarest are left out"


def test_changes_are_those_of_the_corrected_test(reader):
    comparison = permutation_test(START, BEST)
    better = (holm(comparison.p) < 0.05) & (comparison.difference > 0)
    assert better.any()
    words = f"{better.sum()} of {LAYERS * HEADS} heads are significantly more accurate than in start, 0 less"
    assert words in reader.text
    assert "(Holm)" in reader.text


@pytest.fixture
def white(monkeypatch):
    """Drawing takes seconds, and the page was drawn once."""
    for name, stand_in in BLANK.items():
        monkeypatch.setattr(Figure, name, stand_in)


def test_text_of_the_data_stays_text(reader):
    assert not reader.attributes("b")
    data, script = reader.attributes("script")
    assert data["type"] == "application/json"
    assert "src" not in script
    assert reader.text.count(HOSTILE) >= 6
    images = reader.attributes("img")
    assert images
    for image in images:
        assert image["src"].startswith("data:image/")
        assert image["alt"]


def test_the_first_sentence_and_the_explorer_name_the_best_head_of_all(written):
    layer, head = best_head(BEST)
    best, start = BEST.accuracy.max(), START.accuracy.max()
    assert best > start
    (lead,) = re.findall(r'<p class="lead">(.*?)</p>', written)
    for words in (f"head {layer}-{head} ", f"{best:.1%}", "chance 10.0%", f"{start:.1%}"):
        assert words in lead
    headings = re.findall(r"<h2 [^>]*>(.*?)</h2>", written)
    assert headings[0] == "Explorer"
    assert headings[-1] == "All numbers"
    data = json.loads(re.search(r'id="explorer-data">(.*?)</script>', written)[1])
    assert data["explorers"][0]["best"] == [1, layer, head]


def test_no_two_elements_have_one_id(written):
    """A heading had that of the place where the script builds the explorer, which then stood in the heading."""
    ids = re.findall(r' id="([^"]+)"', written)
    assert "explorer" in ids
    assert len(ids) == len(set(ids))


def test_one_model_has_no_changes_and_no_script_without_examples(white):
    page = heads_page({"start": RESULTS["start"]})
    for words in ("What changed", "<script", "script-src"):
        assert words not in page
    with pytest.raises(ValueError, match="results is empty"):
        heads_page({})


def test_models_of_other_sizes_are_shown_but_not_compared(white):
    wide = HeadTable(("0", "1", "2"), HEADS, {"text_to_region": {"all": counts(3, layers=3)}})
    text = Reader(heads_page({"start": RESULTS["start"], "wide": wide})).text
    assert "wide is not compared, because it has other layers or heads than start" in text


# Words of one text in a cell that are on two lines.
SPLIT_WORDS = """[...document.querySelectorAll('td, th')].filter((cell) => cell.firstChild?.nodeType === 3).flatMap(
  (cell) => [...cell.firstChild.data.matchAll(/[\\w-]+/g)].filter((word) => {
    const range = document.createRange();
    range.setStart(cell.firstChild, word.index);
    range.setEnd(cell.firstChild, word.index + word[0].length);
    return new Set([...range.getClientRects()].map((box) => box.top)).size > 1;
  }).map((word) => word[0]))"""


def test_a_browser_shows_every_figure_and_the_explorer(written, tmp_path):
    file = tmp_path / "audit.html"
    file.write_text(written, encoding="utf-8")
    with open_browser(tmp_path / "profile") as page:
        page.open(file, 360, 740)
        assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 100)")
        assert page.evaluate("document.querySelector('.explorers').dataset.ready") == "true"
        assert page.evaluate("document.querySelectorAll('.pane').length") == 2
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate(SPLIT_WORDS) == []
        assert page.evaluate("[...document.querySelectorAll('nav a')].every((a) => document.querySelector(a.hash))")
        page.click('[data-pane="0"] [data-region="1"]')
        heading = page.evaluate("document.querySelector('.said').textContent")
        assert heading.startswith("“"), "no region → word attention was captured: a click on a region changes nothing"
        assert page.problems == []
        assert all(url.startswith(("file:", "data:")) for url in page.requests)
