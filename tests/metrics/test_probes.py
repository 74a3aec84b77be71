# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Probes against golden cases that were counted by hand by the authors' rules."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from grounded_attention.metrics.object_hallucination import Described, description_metrics, load_word_tools
from grounded_attention.metrics.probes import Matched, box_metrics, match_metrics, verdict_metrics
from grounded_attention.metrics.significance import estimate_ratio


def values(found):
    return {name: pytest.approx(estimate.value) for name, estimate in found.items()}


def test_foils_are_a_pairwise_choice_and_ties_are_wrong():
    rows = [
        Matched("a", [0.9, 0.2], group="existence"),
        Matched("b", [0.1, 0.2], group="existence"),
        Matched("b", [0.5, 0.5], group="plurals"),  # a constant model earns nothing
        Matched("c", [0.7, 0.1, 0.6, 0.2], group="plurals"),
        Matched("d", [0.3, 0.4]),  # of no group
    ]
    expected = {"accuracy": 0.4, "accuracy, existence": 0.5, "accuracy, plurals": 0.5}
    assert values(match_metrics(rows)) == expected


def test_statements_are_read_at_one_half():
    rows = [Matched("a", [0.5], 1), Matched("b", [0.6], 0), Matched("c", [0.4], 0), Matched("d", [0.3], 1)]
    assert values(match_metrics(rows)) == {"accuracy": 0.5}


def test_winoground_pairs():
    """Scores s(caption, image) written as the paper's Figure 2 does; each pair has a row for each picture."""

    def pair(name, c0i0, c1i0, c0i1, c1i1):
        return [Matched(f"{name}0", [c0i0, c1i0], pair=name), Matched(f"{name}1", [c1i1, c0i1], pair=name)]

    rows = [
        *pair("both", 0.9, 0.1, 0.2, 0.8),
        *pair("text alone", 0.9, 0.8, 0.95, 0.99),  # caption 0 likes picture 1 more
        *pair("image alone", 0.5, 0.6, 0.3, 0.9),  # picture 0 likes caption 1 more
        *pair("neither", 0.5, 0.5, 0.5, 0.5),
    ]
    assert values(match_metrics(rows)) == {"text": 0.5, "image": 0.5, "group": 0.25}
    with pytest.raises(ValueError, match="both"):
        match_metrics(rows[1:])


def test_opposites_and_sets_of_two_objects():
    """Counted by hand as What'sUp's script does: opposite relations that are both right, four that are."""
    right = [0.9, 0.1, 0.2, 0.3]
    wrong = [0.1, 0.9, 0.2, 0.3]
    answers = {
        "mug knife": {"left": right, "right": right, "in-front": right, "behind": right},
        "mug plate": {"left": right, "right": wrong, "in-front": right, "behind": right},
        "book cup": {"left": right, "right": right, "on": wrong, "under": right},
        "cap tray": {"left": right},  # alone: neither a pair nor a set
    }
    rows = []
    for objects, relations in answers.items():
        for relation, scores in relations.items():
            rows.append(Matched(f"{objects} {relation}", scores, group=relation, pair=objects))
    expected = {"accuracy": 11 / 13, "pair": 4 / 6, "set": 1 / 3}
    by_relation = {"left": 1, "right": 2 / 3, "in-front": 1, "behind": 1, "under": 1, "on": 0}
    expected |= {f"accuracy, {relation}": value for relation, value in by_relation.items()}
    assert values(match_metrics(rows)) == expected


def test_yes_or_no():
    predicted = ["yes", "yes", "no", "no", "no"]
    gold = ["yes", "no", "no", "yes", "no"]
    images = list("aabbc")
    pope = {"accuracy": 0.6, "precision": 0.5, "recall": 0.5, "f1": 0.5, "yes_share": 0.4}
    amber = {"accuracy": 0.6, "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "yes_share": 0.4}
    assert values(verdict_metrics(predicted, gold, images)) == pope
    assert values(verdict_metrics(predicted, gold, images, positive="no")) == amber


RELATED = {"person": ["man", "girl"], "girl": ["child"], "dog": [], "cat": ["kitten"], "car": ["vehicle"], "sky": []}
RELATED |= {"orange": []}


def test_nouns_of_descriptions():
    """Counted by hand as AMBER's script does; a kitten is like a cat and like a dog."""
    alike = {("kitten", "cat"), ("kitten", "dog"), ("cat", "kitten")}
    rows = [
        # "tree" is no word of AMBER; an orange is always right; the sky and the cat are wrong.
        Described("a", ["man", "dog", "sky", "tree", "orange", "cat"], ["person", "dog"], ["cat", "car"]),
        Described("b", ["kitten"], ["dog"], ["cat"]),  # is the invention, and names the dog: so it is not wrong
        Described("c", [], ["car"], []),
        Described("d", ["person", "vehicle", "vehicle"], ["sky", "person"], ["dog"]),
        Described("e", ["girl"], ["person", "girl"], ["sky"]),  # names the first object that has the word: a person
    ]
    found = values(description_metrics(rows, RELATED, ["orange"], lambda *pair: pair in alike))
    assert found == {"chair": 4 / 10, "cover": 5 / 8, "hal": 2 / 5, "cog": 2 / 5}
    with pytest.raises(ValueError, match="zebra"):
        description_metrics([Described("a", [], ["zebra"], [])], RELATED, [], str.__eq__)


def test_word_tools_are_those_of_the_authors(monkeypatch):
    lemmatizer = SimpleNamespace(lemmatize=lambda word: word.removesuffix("s"))
    nltk = SimpleNamespace(word_tokenize=str.split)
    tags = {"The": "DT", "dogs": "NNS", "Ann": "NNP", "ran": "VBD"}
    nltk.pos_tag = lambda words: [(word, tags.get(word, "NN")) for word in words]
    nltk.stem = SimpleNamespace(WordNetLemmatizer=lambda: lemmatizer)

    class Word:
        def __init__(self, text):
            self.place = {"dog": 0.0, "cat": 0.8, "wolf": 0.9}[text]

        def similarity(self, other):
            return other.place - self.place

    monkeypatch.setitem(sys.modules, "nltk", nltk)
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load={"en_core_web_lg": Word}.get))
    nouns, similar = load_word_tools()
    assert nouns("The dogs Ann ran") == ["dog", "Ann"]
    # above 0.8
    assert similar("dog", "wolf")
    assert not similar("dog", "cat")
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ValueError, match="spacy download en_core_web_lg"):
        load_word_tools()


def test_boxes_with_and_without_wrong_references():
    gold = [(0, 0, 10, 20)] * 6
    predicted = [(0, 0, 10, 20), (0, 0, 10, 17), (0, 0, 10, 10), (8, 18, 12, 22), (9, 15, 13, 17), None]
    found = box_metrics(predicted, gold, list("abcdef"), [False] * 5 + [True])
    # The middle of the fourth box lies on the corner of the right one, that of the fifth outside of it.
    expected = {"accuracy": 3, "iou": 1 + 0.85 + 0.5 + 4 / 212 + 2 / 206, "center": 4, "mean_accuracy": 1 + 0.8 + 0.1}
    expected |= {"answered": 5, "accuracy, reviewed": 3, "center, reviewed": 4, "answered, reviewed": 5}
    for name, total in expected.items():
        assert found[name].value * found[name].count == pytest.approx(total)
    assert found["accuracy, reviewed"].count == 5
    assert "accuracy, reviewed" not in box_metrics(predicted, gold, list("abcdef"))


def test_changes_are_paired_by_image():
    """Each image changes by 0.2, however it was before: an interval of the difference of two means would be wide."""
    rng = np.random.default_rng(1)
    before = rng.random(40)
    images = [*map(str, range(40))]
    earlier = estimate_ratio(before, None, images)
    found = estimate_ratio(before + 0.2, None, images).change(earlier)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.2, 0.2))
    assert earlier.high - earlier.low > 0.1
    assert np.isnan(estimate_ratio([1.0], None, ["a"]).change(earlier).low)


def test_intervals_resample_images():
    """Items of one image count as one: an interval over 20 images of 50 equal items is that of 20 items."""
    rng = np.random.default_rng(0)
    right = rng.integers(2, size=20).astype(float)
    images = [*"abcdefghijklmnopqrst"]
    few = estimate_ratio(right, None, images)
    many = estimate_ratio(np.repeat(right, 50), None, np.repeat(images, 50).tolist())
    assert (few.low, few.high) == pytest.approx((many.low, many.high))
    assert few.low < few.value < few.high
    spread = 1.96 * np.sqrt(few.value * (1 - few.value) / 20)
    assert few.high - few.low == pytest.approx(2 * spread, rel=0.15)
    alone = estimate_ratio([1.0, 0.0], None, ["a", "a"])
    assert alone.value == 0.5
    assert np.isnan(alone.low)
    assert estimate_ratio([0.0], [0.0], ["a"]).value == 0.0
    sizes = rng.integers(1, 5, size=20)  # each draw has the ratio of its own sums
    half = estimate_ratio(sizes / 2, sizes, images)
    assert (half.low, half.value, half.high) == pytest.approx((0.5, 0.5, 0.5))
