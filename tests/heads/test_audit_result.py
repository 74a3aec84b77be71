# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The result of an audit: choice of heads, files, tables, card section, and comparison of two results."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from grounded_attention.heads import SAME_SPLIT, figures
from grounded_attention.heads.changes import compare
from grounded_attention.heads.choosing import localization_frequency
from grounded_attention.heads.table import HeadCounts, HeadTable

pytestmark = pytest.mark.drawn_figures


def counts(accuracies, share=0.5, images=40, items=5, seed=0):
    """Random counts whose heads are right with these probabilities (L, H)."""
    rng = np.random.default_rng(seed)
    accuracies = np.asarray(accuracies)
    shape = (images, *accuracies.shape)
    shares = np.broadcast_to(np.asarray(share) * items, shape).astype(float)
    return HeadCounts(
        tuple(f"i{n}" for n in range(images)),
        np.full(images, items),
        rng.binomial(items, accuracies, shape),
        shares,
        rng.binomial(items, 0.2, images),
        np.full(images, 0.1 * items),
        np.full(images, items - 1),
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
    there = result(OTHER, "validation")
    same = here.choose_on(SAME_SPLIT)
    chosen = here.choose_on(there)
    best = {one["group"]: one for one in chosen.best_heads()}["all"]
    accuracy = here.entities["text_to_region"]["all"].accuracy
    assert (best["layer"], best["head"]) == ("cross 1", 1)
    assert best["accuracy"] == accuracy[1, 1]
    assert best["interval"][0] < best["accuracy"] < best["interval"][1]
    assert best["upper_bound"] == 0.8
    flattered = same.best_heads()[0]
    assert (flattered["layer"], flattered["head"], flattered["accuracy"]) == ("cross 0", 0, accuracy.max())
    assert chosen.choice.split == "validation"
    assert here.choice.split == same.choice.split == SAME_SPLIT
    assert chosen.name(1, 0) == "cross 1-0"


def test_active_heads_come_first_and_none_need_be_active():
    shares = [[0.1, 0.3], [0.25, 0.2]]  # 0.2 itself is not more than 20 %
    best = result(FIRST, share=shares).best_heads()[0]
    assert (best["layer"], best["head"], best["active"]) == ("cross 1", 0, True)
    best = result(FIRST, share=0.1).best_heads()[0]
    assert (best["layer"], best["head"], best["active"]) == ("cross 0", 0, False)


def test_what_cannot_be_chosen_on():
    with pytest.raises(ValueError, match="expected the audit of another split, or 'same_split'"):
        result(FIRST).choose_on("val")
    with pytest.raises(ValueError, match="1 layers of 2 heads"):
        result(FIRST).choose_on(result(FIRST[:1]))
    lacking = result(FIRST, relations=["det"]).choose_on(result(OTHER))
    assert "det" not in {best["group"] for best in lacking.best_heads()}


def assert_same(one, other):
    assert (one.layers, one.heads, one.about) == (other.layers, other.heads, other.about)
    assert one.choice == other.choice
    for kind, groups in one.counted.items():
        assert list(groups) == list(other.counted[kind])
        for group, first in groups.items():
            second = other.counted[kind][group]
            assert first.image_ids == second.image_ids
            for name in ("items", "correct", "share", "baseline", "chance", "reachable"):
                np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_saved_results_load_as_they_were_and_a_second_one_replaces_the_first(tmp_path):
    first = result(FIRST, relations=["det", "nsubj"]).choose_on(
        result(OTHER, "validation", relations=["det", "nsubj"])
    )
    first.save(tmp_path / "audit")
    assert_same(HeadTable.load(tmp_path / "audit"), first)
    second = result(OTHER, seed=7)
    second.save(tmp_path / "audit")
    assert_same(HeadTable.load(tmp_path / "audit"), second)
    assert len(list((tmp_path / "audit").iterdir())) == 2


def test_an_interrupted_save_leaves_the_old_result(tmp_path, monkeypatch):
    first = result(FIRST)
    first.save(tmp_path)
    monkeypatch.setattr("grounded_attention.heads.table.to_json", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        result(OTHER, seed=7).save(tmp_path)
    assert_same(HeadTable.load(tmp_path), first)


def test_damaged_and_missing_results_are_errors(tmp_path):
    with pytest.raises(ValueError, match=r"heads\.json: cannot read the audit"):
        HeadTable.load(tmp_path)
    result(FIRST).save(tmp_path)
    (stored,) = tmp_path.glob("*.npz")
    content = stored.read_bytes()
    stored.write_bytes(content[:-9] + b"123456789")
    with pytest.raises(ValueError, match="is damaged"):
        HeadTable.load(tmp_path)
    stored.write_bytes(content)
    manifest = json.loads((tmp_path / "heads.json").read_text())
    (tmp_path / "heads.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(ValueError, match="format 99, expected 2"):
        HeadTable.load(tmp_path)


@pytest.mark.parametrize("name", ["items", "correct", "share", "baseline"])
def test_counts_of_other_shapes_are_refused(tmp_path, name):
    """A file that its digest fits, which another program wrote."""
    result(FIRST).save(tmp_path)
    table, (stored,) = tmp_path / "heads.json", tmp_path.glob("*.npz")
    arrays = dict(np.load(stored))
    manifest = json.loads(table.read_text())
    np.savez(stored, **arrays | {f"0/{name}": arrays[f"0/{name}"][:-1]})
    manifest["counts"]["sha256"] = hashlib.sha256(stored.read_bytes()).hexdigest()
    table.write_text(json.dumps(manifest))
    with pytest.raises(
        ValueError, match=r"heads\.json: cannot read the audit \(40 images, but counts of other shapes"
    ):
        HeadTable.load(tmp_path)


def test_table_of_all_heads():
    found = result(FIRST, relations=["det"])
    table = found.to_pandas()
    assert len(table) == 3 * 4
    assert set(table.kind) == {"text_to_region", "relations"}
    row = table[(table.group == "people") & (table.layer == "cross 1") & (table["head"] == 0)].iloc[0]
    people = found.entities["text_to_region"]["people"]
    assert (row.accuracy, row["items"], row.images) == (people.accuracy[1, 0], 50, 10)
    assert row.low <= row.accuracy <= row.high
    assert row.active
    assert row.upper_bound == 0.8


def test_card_section_names_the_choice_the_numbers_and_the_limits():
    found = result(FIRST, relations=["det"]).choose_on(result(OTHER, "validation", relations=["det"]))
    text = found.to_card_section()
    best = found.best_heads()[0]
    assert f"| text → region | cross 1-1 | {best['accuracy']:.1%} ({best['interval'][0]:.1%} to" in text
    assert "chosen on validation" in text
    assert "on scenes, split test" in text
    assert "| relation, det |" in text
    assert "this overstates them" in result(FIRST).to_card_section()
    header, rule, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in (header, rule, *rows)} == {9}
    assert len(rows) == 3


@pytest.mark.parametrize("split", [SAME_SPLIT, "validation"])
def test_every_figure_frames_the_head_that_the_table_names(tmp_path, monkeypatch, split):
    """Another head is the best on the reported items, for which the table has no row."""
    drawn = []
    monkeypatch.setattr(figures, "heads_figure", lambda *given: drawn.append(given))
    there = result(OTHER, "validation", relations=["det", "nsubj"])
    found = result(FIRST, relations=["det", "nsubj"]).choose_on(there if split == "validation" else split)
    assert [file.name for file in found.plot(tmp_path)] == [
        "text_to_region.png",
        "text_to_region_types.png",
        "relations.png",
    ]
    named = {best["group"]: [(found.layers.index(best["layer"]), best["head"])] for best in found.best_heads()}
    framed = {}
    for panels, _, _, layers, frames, title in drawn:
        assert layers == found.layers
        assert found.choice.ring in title
        assert frames.keys() <= panels.keys()
        framed |= {panel.partition(" (")[0]: pairs for panel, pairs in frames.items()}
    assert framed == named
    everything, chance, *_ = drawn[0]
    counted = found.counts
    np.testing.assert_array_equal(everything[f"all ({counted.total} items)"], counted.accuracy)
    np.testing.assert_array_equal(everything["attention on all candidates"], counted.mean_share)
    assert chance == counted.chance_accuracy


def test_changes_are_found_where_there_are_any(tmp_path):
    before = result(FIRST)
    changed = result([[0.9, 0.1], [0.5, 0.95]], seed=1)
    correct = before.entities["text_to_region"]["all"].correct.copy()
    correct[:, 1, 1] = changed.entities["text_to_region"]["all"].correct[:, 1, 1]  # one head only
    old = before.entities["text_to_region"]["all"]
    new = HeadCounts(old.image_ids, old.items, correct, old.share, old.baseline, old.chance)
    after = HeadTable(before.layers, before.heads, {"text_to_region": {"all": new}}, {}, before.about)
    changes = compare(before, after, ("a/none", "b/direct"), draws=500)
    assert changes.significant("text_to_region").tolist() == [[False, False], [False, True]]
    text = changes.to_markdown()
    assert "b/direct against a/none" in text
    assert "1 of 4 heads changed, 1 of them for the better" in text
    found = changes.to_dict()
    assert found["text_to_region"]["p_corrected"][0][0] == 1
    assert json.dumps(found)
    assert [file.name for file in changes.plot(tmp_path)] == [
        "changes_text_to_region.png",
    ]
    with pytest.raises(ValueError, match="have split 'test' and 'validation'"):
        compare(before, result(FIRST, "validation"))


def test_heads_that_a_layer_lacks_are_not_counted():
    """Layer 1 has two heads of four, layer 2 none, the heads of layer 3 see nothing of the image."""
    images = 12
    shape = (12, 4, 4)
    real = np.zeros(shape[1:], dtype=bool)
    real[0] = real[1, :2] = True
    correct = np.zeros(shape, dtype=int)
    correct[:5, 0], correct[:8, 1, :2] = 1, 1

    def table(seed):
        drawn = correct.copy()
        drawn[:, 0, 0] = np.random.default_rng(seed).random(images) < seed
        counts = HeadCounts(
            tuple(map(str, range(images))), np.ones(images, int), drawn, np.ones(shape) * real * 0.5,
            np.zeros(images, int), np.ones(images) / 5,
        )  # fmt: skip
        return HeadTable(tuple("0123"), 4, {"text_to_region": {"all": counts}}, headless=(2,))

    before = table(0)
    after = table(1)
    assert before.real.sum() == 4 + 2 + 4  # windows: they exist
    assert len(before.to_pandas()) == 10
    changes = compare(before, after)
    p = changes.comparisons["text_to_region"].p[0, 0]
    assert changes.corrected["text_to_region"][0, 0] == pytest.approx(10 * p)
    assert "1 of 10 heads changed" in changes.to_markdown()
    entropies = np.ones((3, 4, 4))
    frequency = localization_frequency(before.counts.mean_share, entropies, before.real)
    assert (frequency[~before.real] == -1).all()


def test_the_figure_of_changes_has_both_models_and_frames_what_changed(tmp_path):
    before = result(FIRST)
    correct = before.counts.correct.copy()
    correct[:, 1, 1] = before.counts.items
    after = HeadTable(
        before.layers, 2, {"text_to_region": {"all": replace(before.counts, correct=correct)}}, about=before.about
    )
    figure = compare(before, after).figure("text_to_region", tmp_path / "a.png")
    maps = [axes for axes in figure.axes if axes.images]
    for axes, table in zip(maps, (before, after), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), table.counts.accuracy)
    [frame] = maps[1].patches
    x, y, width, height = frame.get_bbox().bounds
    assert (x + width / 2, y + height / 2) == pytest.approx((1, 1))
    assert not maps[0].patches
