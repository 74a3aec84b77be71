# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Failures are chosen by their rule; the report is one safe, well-formed page that shows what it is given."""

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from grounded_attention.pages.failures import Alternative, Judged, baselines, choose
from grounded_attention.pages.html_report import Measured, Report, build_report, number_rows, shown_images
from grounded_attention.pages.overlay import GOLD, PREDICTED, TEXT_HEIGHT, Box, draw, embed, empty_frame
from tests.helpers.browser import open_browser

HOSTILE = "\"><script>alert(1)</script><img src=http://x onerror=y>'&"
VOID = {"meta", "br", "img", "rect", "image"}


class Tags(HTMLParser):
    """Every tag with its attributes; refuses tags that are not closed in order."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.tags = []
        self.text = []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def attributes(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def parse(page):
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    return parser


def judged(number, score=0.0, confidence=0.5, image=None, **fields):
    image_id = str(number) if image is None else image
    return Judged(str(number).zfill(3), image_id, "vqa", score, confidence, "gold", "guess", **fields)


# Which are chosen


def test_confident_failures_come_first_one_an_image_then_drawn_ones():
    wrong = [judged(n, confidence=n / 100, image=str(n // 2)) for n in range(40)]
    right = [judged(100 + n, score=1.0) for n in range(20)]
    sure, drawn, fine = choose([*wrong, *right], seed=3)
    chosen = [item.example_id for item in sure.items]
    assert chosen == ["039", "037", "035", "033", "031", "029", "027", "025"]
    assert len(drawn.items) == len(fine.items) == 4
    for item in drawn.items:
        assert item.example_id not in chosen
        assert not item.right
    assert all(item.right for item in fine.items)
    assert "8 of 40" in sure.rule
    assert "seed 3" in drawn.rule


def test_the_choice_depends_on_the_seed_and_not_on_the_order():
    items = [judged(n, score=float(n % 2), confidence=0.5) for n in range(60)]
    mixed = [items[n] for n in np.random.default_rng(0).permutation(60)]
    assert choose(items, 1) == choose(mixed, 1) != choose(items, 2)


def test_baselines_are_those_of_the_best_single_answer_and_of_chance():
    answers = ({"2": 1.0, "3": 0.6}, {"3": 1.0}, {"2": 0.3, "4": 1.0})
    items = [judged(n, chance=0.25, worth=worth) for n, worth in enumerate(answers)]
    assert baselines(items) == {"chance": 0.25, "majority": pytest.approx(1.6 / 3)}
    assert "chance" not in baselines([*items, judged(9)])


# Figures


def test_baselines_and_counts_are_attached_to_their_accuracy():
    figures = {"a_accuracy": 0.5, "a_majority": 0.4, "a_chance": 0.2, "a_count": 7, "b_accuracy": 1.0, "b_bound": 3}
    first, second, third = number_rows(figures, {"b": {"chance": 0.1}, "a": {"chance": 0.9}})
    assert first[4:] == ["0.400", "0.200", "7"]
    assert second[4:] == ["", "0.100", ""]
    assert third == ["b_bound", "", "3", "", "", "", ""]


# Pictures


def test_an_image_is_embedded_small_and_boxes_lie_where_they_should():
    picture = embed(Image.fromarray(np.full((600, 1200, 3), 200, dtype=np.uint8)), longest=300)
    kind, data = picture.source.split(",")
    assert kind == "data:image/webp;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (300, 150)
    parsed = parse(draw(picture, [Box(GOLD, (0.1, 0.2, 0.5, 1.0))], "image 1"))
    rectangles = [rectangle for rectangle in parsed.attributes("rect") if "class" not in rectangle]
    assert rectangles
    for rectangle in rectangles:
        assert rectangle["x"] == rectangle["y"] == "30.0"
        assert rectangle["width"] == rectangle["height"] == "120.0"


def test_gold_and_predicted_differ_by_more_than_colour():
    drawn = draw(empty_frame(100, 50), [Box(GOLD, (0, 0, 1, 1)), Box(PREDICTED, (0, 0, 1, 1))], "t")
    lines = [line for line in parse(drawn).attributes("rect") if line.get("stroke-width") == "2.5"]
    assert len({line["stroke"] for line in lines}) == 2
    assert len({line["stroke-dasharray"] for line in lines}) == 2


# The page


def page(**fields):
    one = judged(1, confidence=0.9, texts=(("question", "how many?"),), kinds={"type": "number"})
    part = Measured("validation", {"vqa_accuracy": 0.25, "vqa_count": 1}, [one])
    return build_report(Report(**{"title": "t", "about": [("scored", "run")], "parts": [part], **fields}))


def test_the_page_loads_nothing_and_runs_nothing():
    picture = embed(Image.new("RGB", (8, 8)))
    parsed = parse(page(pictures={"1": picture}))
    assert not {"script", "link", "iframe", "form", "object"} & {tag for tag, _ in parsed.tags}
    for _, attributes in parsed.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "href") or value.startswith("data:")
    policies = [meta.get("http-equiv") for meta in parsed.attributes("meta")]
    assert "Content-Security-Policy" in policies
    assert not re.search(r"url\(|@import", page())


def test_everything_that_comes_from_data_is_escaped():
    more = {"texts": ((HOSTILE, HOSTILE),), "kinds": {HOSTILE: HOSTILE}, "boxes": (Box(GOLD, (0, 0, 1, 1), HOSTILE),)}
    bad = Judged(HOSTILE, HOSTILE, HOSTILE, 0.0, 0.5, HOSTILE, HOSTILE, **more)
    chosen = replace(bad, group="other", choices=(Alternative(HOSTILE, True, False),))
    part = Measured(HOSTILE, {HOSTILE: 0.5}, [bad, chosen], [HOSTILE])
    parsed = parse(page(title=HOSTILE, about=[(HOSTILE, HOSTILE)], parts=[part]))
    assert not {"script", "img"} & {tag for tag, _ in parsed.tags}
    assert "".join(parsed.text).count(HOSTILE) >= 14


def test_figures_have_meaning_baseline_kind_and_prediction():
    text = " ".join(parse(page()).text)
    for word in ("vqa_accuracy", "0.250", "official accuracy", "number", "how many?", "guess", "gold", "✗ wrong"):
        assert word in text
    assert "probability 0.90" in text
    assert "Confident and wrong" in text


def test_choices_are_marked():
    choices = (Alternative("a", True, False), Alternative("b", False, True), Alternative("c", False, False))
    part = Measured("test", {}, [judged(1, choices=choices)])
    text = "".join(parse(page(parts=[part])).text)
    assert "a — gold" in text
    assert "b — predicted" in text
    assert "No numbers" in text


def test_the_images_of_the_page_are_known_before_it_is_built():
    items = [judged(n, confidence=n / 100) for n in range(50)]
    assert shown_images(items, 0)[:3] == ["49", "48", "47"]
    assert len(shown_images(items, 0)) == 12


def test_labels_stay_inside_the_picture():
    """Read as a browser of wide letters would draw them."""
    label = "the medium green star"
    picture = empty_frame(200, 150)
    drawn = draw(picture, [Box(GOLD, (0.9, 0, 1, 1), label), Box(GOLD, (0.1, 0.5, 0.2, 0.9), label)], "x")
    left, inside = map(float, re.findall(r'<text x="([\d.]+)"', drawn))
    assert left + 0.6 * TEXT_HEIGHT * len(label) <= picture.width
    assert left > 0
    assert inside == pytest.approx(0.1 * picture.width + 2)


@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_the_page_without_sideways_scrolling(tmp_path, width):
    part = Measured("test", {"a_figure_with_a_long_name_accuracy": 0.5}, [judged(1, kinds={"kind": "k" * 80})])
    (tmp_path / "report.html").write_text(page(parts=[part]), encoding="utf-8")
    with open_browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "report.html", width)
        browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.problems == []
        assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
