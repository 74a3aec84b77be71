# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The result of an audit: choice of heads, files, tables, card section, and comparison of two results."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal, assert_equal

from grounded_attention.heads import SAME_SPLIT, figures
from grounded_attention.heads.changes import compare
from grounded_attention.heads.choosing import localization_frequency
from grounded_attention.heads.table import HeadCounts, HeadTable

pytestmark = pytest.mark.drawn_figures


def counts(accuracies, share=0.5, items=5, seed=0):
    """Random counts of 40 images whose heads are right with these probabilities (L, H)."""
    rng = np.random.default_rng(seed)
    shape = (40, *np.shape(accuracies))
    return HeadCounts(
        tuple(f"i{n}" for n in range(40)),
        np.full(40, items),
        rng.binomial(items, accuracies, shape),
        np.full(shape, share) * items,
        rng.binomial(items, 0.2, 40),
        np.full(40, 0.1 * items),
        np.full(40, items - 1),
    )


def result(accuracies, split="test", share=0.5, relations=(), seed=0):
    found = counts(accuracies, share, seed=seed)
    return HeadTable(
        layers=tuple(f"cross {n}" for n in range(len(accuracies))),
        heads=len(accuracies[0]),
        entities={"text_to_region": {"all": found, "people": found.take(range(10))}},
        relations={name: counts(accuracies, share, items=2 + n, seed=n) for n, name in enumerate(relations)},
        about={"data": "scenes", "split": split, "word": "last", "phrases": {"judged": found.total}},
    )


FIRST = [[0.9, 0.1], [0.5, 0.6]]
OTHER = [[0.2, 0.1], [0.4, 0.8]]


def test_heads_are_chosen_on_one_split_and_reported_on_another():
    here = result(FIRST)
    chosen = here.choose_on(result(OTHER, "validation"))
    best = chosen.best_heads()[0]
    assert best["group"] == "all"
    assert (best["layer"], best["head"]) == ("cross 1", 1)
    assert best["accuracy"] == here.counts.accuracy[1, 1]
    assert best["interval"][0] < best["accuracy"] < best["interval"][1]
    assert best["upper_bound"] == 0.8
    assert chosen.choice.split == "validation"
    assert chosen.name(1, 0) == "cross 1-0"


def test_heads_chosen_on_the_same_split_are_flattered():
    here = result(FIRST)
    same = here.choose_on(SAME_SPLIT)
    best = same.best_heads()[0]
    assert (best["layer"], best["head"]) == ("cross 0", 0)
    assert best["accuracy"] == here.counts.accuracy.max()
    assert here.choice.split == same.choice.split == SAME_SPLIT


@pytest.mark.parametrize(
    "share, expected",
    [
        ([[0.1, 0.3], [0.25, 0.2]], ("cross 1", 0, True)),  # 0.2 itself is not more than 20 %
        (0.1, ("cross 0", 0, False)),
    ],
)
def test_active_heads_come_first_and_none_need_be_active(share, expected):
    best = result(FIRST, share=share).best_heads()[0]
    assert (best["layer"], best["head"], best["active"]) == expected


@pytest.mark.parametrize(
    "split, words",
    [("val", "audit of another split, or 'same_split'"), (result([[0.9, 0.1]]), "1 layers of 2 heads")],
)
def test_what_cannot_be_chosen_on(split, words):
    with pytest.raises(ValueError, match=words):
        result(FIRST).choose_on(split)


def test_a_group_that_the_other_split_lacks_is_left_out():
    lacking = result(FIRST, relations=["det"]).choose_on(result(OTHER))
    assert "det" not in {best["group"] for best in lacking.best_heads()}


def assert_same(one, other):
    assert (one.layers, one.heads, one.about) == (other.layers, other.heads, other.about)
    assert one.choice == other.choice
    for kind, groups in one.counted.items():
        assert list(groups) == list(other.counted[kind])
        for group, counts in groups.items():
            assert_equal(vars(counts), vars(other.counted[kind][group]))


def test_saved_results_load_as_they_were_and_a_second_one_replaces_the_first(tmp_path):
    relations = ["det", "nsubj"]
    there = result(OTHER, "validation", relations=relations)
    chosen = result(FIRST, relations=relations).choose_on(there)
    for table in (chosen, result(OTHER, seed=7)):
        table.save(tmp_path)
        assert_same(HeadTable.load(tmp_path), table)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_interrupted_save_leaves_the_old_result(tmp_path, monkeypatch):
    first = result(FIRST)
    first.save(tmp_path)
    monkeypatch.setattr("grounded_attention.heads.table.to_json", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        result(OTHER, seed=7).save(tmp_path)
    assert_same(HeadTable.load(tmp_path), first)


def remove_all(folder):
    for path in folder.iterdir():
        path.unlink()


def overwrite_numbers(folder):
    (stored,) = folder.glob("*.npz")
    stored.write_bytes(stored.read_bytes()[:-9] + b"123456789")


def change_format(folder):
    table = folder / "heads.json"
    table.write_text(table.read_text().replace('"format": 2', '"format": 99'))


@pytest.mark.parametrize(
    "damage, words",
    [
        (remove_all, r"heads\.json: cannot read the audit"),
        (overwrite_numbers, "is damaged"),
        (change_format, "format 99, expected 2"),
    ],
)
def test_damaged_and_missing_results_are_errors(tmp_path, damage, words):
    result(FIRST).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=words):
        HeadTable.load(tmp_path)


@pytest.mark.parametrize("name", ["items", "correct", "share", "baseline"])
def test_counts_of_other_shapes_are_refused(tmp_path, name):
    """A file that its digest fits, which another program wrote."""
    result(FIRST).save(tmp_path)
    table = tmp_path / "heads.json"
    (stored,) = tmp_path.glob("*.npz")
    arrays = dict(np.load(stored))
    arrays[f"0/{name}"] = arrays[f"0/{name}"][:-1]
    np.savez(stored, **arrays)
    manifest = json.loads(table.read_text())
    manifest["counts"]["sha256"] = hashlib.sha256(stored.read_bytes()).hexdigest()
    table.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"heads\.json: .*40 images, but counts of other shapes"):
        HeadTable.load(tmp_path)


def test_table_of_all_heads():
    found = result(FIRST, relations=["det"])
    table = found.to_pandas()
    assert len(table) == 3 * 4
    assert set(table.kind) == {"text_to_region", "relations"}
    row = table.set_index(["group", "layer", "head"]).loc["people", "cross 1", 0]
    people = found.entities["text_to_region"]["people"]
    assert row.accuracy == people.accuracy[1, 0]
    assert (row["items"], row.images, row.upper_bound) == (50, 10, 0.8)
    assert row.low <= row.accuracy <= row.high
    assert row.active


def test_card_section_names_the_choice_the_numbers_and_the_limits():
    found = result(FIRST, relations=["det"]).choose_on(result(OTHER, "validation", relations=["det"]))
    text = found.to_card_section()
    best = found.best_heads()[0]
    accuracy = f"{best['accuracy']:.1%} ({best['interval'][0]:.1%} to"
    for words in (f"| cross 1-1 | {accuracy}", "chosen on validation", "on scenes, split test", "| relation, det |"):
        assert words in text
    assert "this overstates them" in result(FIRST).to_card_section()
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {9}
    assert len(table) == 2 + 3


@pytest.mark.parametrize("split", [SAME_SPLIT, "validation"])
def test_every_figure_frames_the_head_that_the_table_names(tmp_path, monkeypatch, split):
    """Another head is the best on the reported items, for which the table has no row."""
    drawn = []
    monkeypatch.setattr(figures, "heads_figure", lambda *given: drawn.append(given))
    there = result(OTHER, "validation", relations=["det", "nsubj"])
    found = result(FIRST, relations=["det", "nsubj"]).choose_on(there if split == "validation" else split)
    files = [file.name for file in found.plot(tmp_path)]
    assert files == ["text_to_region.png", "text_to_region_types.png", "relations.png"]
    named = {}
    for best in found.best_heads():
        named[best["group"]] = [(found.layers.index(best["layer"]), best["head"])]
    framed = {}
    for panels, _, _, layers, frames, title in drawn:
        assert layers == found.layers
        assert found.choice.ring in title
        assert frames.keys() <= panels.keys()
        for panel, pairs in frames.items():
            framed[panel.partition(" (")[0]] = pairs
    assert framed == named
    everything, chance, *_ = drawn[0]
    counted = found.counts
    assert_array_equal(everything[f"all ({counted.total} items)"], counted.accuracy)
    assert_array_equal(everything["attention on all candidates"], counted.mean_share)
    assert chance == counted.chance_accuracy


@pytest.fixture
def two_models():
    """Tables of two models, one of whose heads changed."""
    before = result(FIRST)
    correct = before.counts.correct.copy()
    correct[:, 1, 1] = before.counts.items
    changed = replace(before.counts, correct=correct)
    return before, HeadTable(before.layers, 2, {"text_to_region": {"all": changed}}, about=before.about)


def test_changes_are_found_where_there_are_any(two_models, tmp_path):
    changes = compare(*two_models, ("a/none", "b/direct"), draws=500)
    assert changes.significant("text_to_region").tolist() == [[False, False], [False, True]]
    text = changes.to_markdown()
    assert "b/direct against a/none" in text
    assert "1 of 4 heads changed, 1 of them for the better" in text
    found = json.loads(json.dumps(changes.to_dict()))
    assert found["text_to_region"]["p_corrected"][0][0] == 1
    (file,) = changes.plot(tmp_path)
    assert file.name == "changes_text_to_region.png"


def test_models_of_two_splits_are_not_compared():
    with pytest.raises(ValueError, match="have split 'test' and 'validation'"):
        compare(result(FIRST), result(FIRST, "validation"))


def test_heads_that_a_layer_lacks_are_not_counted():
    """Layer 1 has two heads of four, layer 2 none, the heads of layer 3 see nothing of the image."""
    real = np.zeros((4, 4), dtype=bool)
    real[0] = True
    real[1, :2] = True
    before = counts(0.6 * real, share=0.5 * real)
    changed = before.correct.copy()
    changed[:, 0, 0] = 0
    first, second = (
        HeadTable(tuple("0123"), 4, {"text_to_region": {"all": values}}, headless=(2,))
        for values in (before, replace(before, correct=changed))
    )
    assert first.real.sum() == 4 + 2 + 4  # windows: they exist
    assert len(first.to_pandas()) == 10
    changes = compare(first, second)
    p = changes.comparisons["text_to_region"].p[0, 0]
    assert changes.corrected["text_to_region"][0, 0] == pytest.approx(10 * p)
    assert "1 of 10 heads changed" in changes.to_markdown()
    frequency = localization_frequency(before.mean_share, np.ones((3, 4, 4)), first.real)
    assert (frequency[~first.real] == -1).all()


def test_the_figure_of_changes_has_both_models_and_frames_what_changed(two_models, tmp_path):
    figure = compare(*two_models).figure("text_to_region", tmp_path / "a.png")
    maps = [axes for axes in figure.axes if axes.images]
    for axes, table in zip(maps, two_models, strict=True):
        assert_array_equal(axes.images[0].get_array(), table.counts.accuracy)
    [frame] = maps[1].patches
    x, y, width, height = frame.get_bbox().bounds
    assert (x + width / 2, y + height / 2) == pytest.approx((1, 1))
    assert not maps[0].patches
