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
from tests.helpers.quick_figures import blank_figure, no_objects

pytestmark = pytest.mark.drawn_figures

HOSTILE = "</script><script>x</script>\"'&<b>"
LAYERS = 2
HEADS = 3
IMAGES = 40


def counts(seed, lift=0.0):
    items = np.random.default_rng(7).integers(1, 5, IMAGES)
    rng = np.random.default_rng(seed)
    chances = np.clip(0.3 * rng.random((LAYERS, HEADS)) + lift, 0, 1)
    correct = rng.binomial(items[:, None, None], chances, (IMAGES, LAYERS, HEADS))
    share = np.full((LAYERS, HEADS), 0.3) * items[:, None, None]
    ids = tuple(map(str, range(IMAGES)))
    return HeadCounts(ids, items, correct, share, items // 2, items * 0.1, items)


def result(seed, lift=0.0):
    entities = {"text_to_region": {"all": counts(seed, lift), HOSTILE: counts(seed + 1)}}
    relations = {f"rel{n}" if n else "amod": counts(seed + n).take(range(IMAGES - n)) for n in range(12)}
    return HeadTable(("0", "1"), HEADS, entities, relations, {"data": "x"})


RESULTS = {"start": result(1), HOSTILE: result(1, 0.4)}


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
        self.text = []
        self._in = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        while self._in and self._in.pop() != tag:
            pass

    def handle_data(self, data):
        if {"script", "style"}.isdisjoint(self._in):
            self.text.append(data)
        if self._in and self._in[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def written():
    extra = {HOSTILE: html_table(("map", "area"), [("rollout", "0.5")])}
    return heads_page(RESULTS, f"Audit {HOSTILE}", about=[("data", HOSTILE)], examples=EXAMPLES, extra=extra)


def test_the_tables_hold_every_models_best_head(written):
    rows = Reader(written).rows
    for name, found in RESULTS.items():
        total = found.entities["text_to_region"]["all"]
        layer, head = np.unravel_index(total.accuracy.argmax(), (LAYERS, HEADS))
        (row,) = [row for row in rows if row[:2] == ["text → region", name]]
        accuracy, _, interval = row[3].rstrip(")").partition(" (")
        assert (row[2], accuracy) == (f"{layer}-{head}", f"{total.accuracy.max():.1%}")
        low, high = (float(part.rstrip("%")) / 100 for part in interval.split(" to "))
        assert low < total.accuracy.max() < high
        counted = f"{total.total} in {IMAGES} images"
        assert row[4:] == ["30%", f"{total.baseline_accuracy:.1%}", "10.0%", "100.0%", counted]


def test_the_ten_most_common_relations_are_shown(written):
    shown = [row[0] for row in Reader(written).rows if row[0].startswith("relation, ") and row[1] == "start"]
    expected = ["relation, amod (adjective of a noun)", *(f"relation, rel{n}" for n in range(1, 10))]
    assert shown == expected, "the two rarest are left out"


def test_changes_are_those_of_the_corrected_test(written):
    before, after = (found.entities["text_to_region"]["all"] for found in RESULTS.values())
    comparison = permutation_test(before, after)
    up = int(((holm(comparison.p) < 0.05) & (comparison.difference > 0)).sum())
    assert up > 0
    text = "".join(Reader(written).text)
    assert f"{up} of {LAYERS * HEADS} heads are significantly more accurate than in start, 0 less" in text
    assert "(Holm)" in text


@pytest.fixture
def white(monkeypatch):
    """Drawing takes seconds, and the page was drawn once."""
    monkeypatch.setattr(Figure, "savefig", blank_figure)
    monkeypatch.setattr(Figure, "findobj", no_objects)


def test_text_of_the_data_stays_text(written):
    reader = Reader(written)
    assert not {"b"} & {tag for tag, _ in reader.tags}
    scripts = [attrs for tag, attrs in reader.tags if tag == "script"]
    assert len(scripts) == 2
    assert scripts[0]["type"] == "application/json"
    assert "src" not in scripts[1]
    assert "".join(reader.text).count(HOSTILE) >= 6
    images = [attrs for tag, attrs in reader.tags if tag == "img"]
    assert images
    assert all(attrs["src"].startswith("data:image/") and attrs["alt"] for attrs in images)


def test_the_first_sentence_and_the_explorer_name_the_best_head_of_all(written):
    tables = {name: found.entities["text_to_region"]["all"] for name, found in RESULTS.items()}
    best = {name: np.unravel_index(table.accuracy.argmax(), (LAYERS, HEADS)) for name, table in tables.items()}
    assert tables[HOSTILE].accuracy.max() > tables["start"].accuracy.max()
    reader, (layer, head) = Reader(written), best[HOSTILE]
    (lead,) = re.findall(r'<p class="lead">(.*?)</p>', written)
    for said in (f"head {layer}-{head} ", f"{tables[HOSTILE].accuracy.max():.1%}", "chance 10.0%"):
        assert said in lead
    assert f"{tables['start'].accuracy.max():.1%}" in lead
    headings = re.findall(r"<h2 [^>]*>(.*?)</h2>", written)
    assert headings[0] == "Explorer"
    assert headings[-1] == "All numbers"
    assert len({attrs["id"] for tag, attrs in reader.tags if tag == "h2"}) == len(headings)
    data = json.loads(re.search(r'id="explorer-data">(.*?)</script>', written)[1])
    assert data["explorers"][0]["best"] == [1, layer, head]


def test_no_two_elements_have_one_id(written):
    """A heading had that of the place where the script builds the explorer, which then stood in the heading."""
    ids = re.findall(r' id="([^"]+)"', written)
    assert "explorer" in ids
    assert len(ids) == len(set(ids))


def test_one_model_has_no_changes_and_no_script_without_examples(white):
    page = heads_page({"start": RESULTS["start"]})
    assert "What changed" not in page
    assert "<script" not in page
    assert "script-src" not in page
    with pytest.raises(ValueError, match="results is empty"):
        heads_page({})


def test_models_of_other_sizes_are_shown_but_not_compared(white):
    wide = HeadTable(("0", "1", "2"), HEADS, {"text_to_region": {"all": _wider()}})
    text = "".join(Reader(heads_page({"start": RESULTS["start"], "wide": wide})).text)
    assert "wide is not compared, because it has other layers or heads than start" in text


def _wider():
    one = counts(3)
    tall = [np.concatenate([values, values[:, :1]], 1) for values in (one.correct, one.share)]
    return HeadCounts(one.image_ids, one.items, *tall, one.baseline, one.chance)


# Words of one text in a cell that are on two lines.
SPLIT_WORDS = """[...document.querySelectorAll('td, th')].filter((cell) => cell.firstChild?.nodeType === 3).flatMap(
  (cell) => [...cell.firstChild.data.matchAll(/[\\w-]+/g)].filter((word) => {
    const range = document.createRange();
    range.setStart(cell.firstChild, word.index);
    range.setEnd(cell.firstChild, word.index + word[0].length);
    return new Set([...range.getClientRects()].map((box) => box.top)).size > 1;
  }).map((word) => word[0]))"""


def test_a_browser_shows_every_figure_and_the_explorer(written, tmp_path):
    (tmp_path / "audit.html").write_text(written, encoding="utf-8")
    with open_browser(tmp_path / "profile") as page:
        page.open(tmp_path / "audit.html", 360, 740)
        assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 100)")
        assert page.evaluate("document.querySelector('.explorers').dataset.ready") == "true"
        assert page.evaluate("document.querySelectorAll('.pane').length") == 2
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate(SPLIT_WORDS) == []
        assert page.evaluate("[...document.querySelectorAll('nav a')].every((a) => document.querySelector(a.hash))")
        page.click('[data-pane="0"] [data-region="1"]')
        said = page.evaluate("document.querySelector('.said').textContent")
        assert said.startswith("“"), "no region → word attention was captured: a click on a region changes nothing"
        assert page.problems == []
        assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
