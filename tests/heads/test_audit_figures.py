# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit's figures, read back from what matplotlib drew and from the file's pixels."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from grounded_attention.heads.figures import changes_figure, grounding_panels_figure
from grounded_attention.heads.table import HeadCounts
from grounded_attention.pages.colours import BLUE, GREY, SKY

pytestmark = pytest.mark.drawn_figures

LAYERS = 3
HEADS = 4
IMAGES = 30


def counts(seed=0, images=IMAGES, layers=LAYERS, heads=HEADS, least=0.0) -> HeadCounts:
    rng = np.random.default_rng(seed)
    items = rng.integers(1, 6, images)
    correct = rng.binomial(items[:, None, None], rng.random((layers, heads)))
    share = np.maximum(rng.random((layers, heads)) * 0.4, least) * items[:, None, None]
    ids = tuple(map(str, range(images)))
    return HeadCounts(ids, items, correct, share, rng.binomial(items, 0.3), items * 0.1)


def points(axes, colour):
    """(n, 2) places of the filled points of a colour."""
    found = [
        c
        for c in axes.collections
        if len(c.get_facecolors()) and np.allclose(c.get_facecolors()[0][:3], to_rgb(colour))
    ]
    return np.concatenate([c.get_offsets() for c in found])


def level(axes, colour):
    (line,) = [line for line in axes.get_lines() if line.get_color() == colour]
    return line.get_ydata()[0]


def test_active_heads_are_large_and_dark_at_their_accuracy(tmp_path):
    found = counts()
    (axes,) = grounding_panels_figure({"one": found}, tmp_path / "a.png").axes
    active = found.mean_share > 0.2
    assert 0 < active.sum() < active.size
    for colour, heads in ((BLUE, active), (SKY, ~active)):
        drawn = points(axes, colour)
        assert np.array_equal(np.round(drawn[:, 0]), np.nonzero(heads)[0])
        assert np.allclose(drawn[:, 1], 100 * found.accuracy[heads])
    sizes = {tuple(c.get_facecolors()[0][:3]): c.get_sizes()[0] for c in axes.collections if len(c.get_facecolors())}
    assert sizes[to_rgb(BLUE)] > 2 * sizes[to_rgb(SKY)]
    assert np.isclose(level(axes, GREY), 100 * found.baseline_accuracy)
    assert np.isclose(level(axes, "black"), 100 * found.chance_accuracy)


def test_heads_of_a_layer_do_not_hide_each_other(tmp_path):
    (axes,) = grounding_panels_figure({"one": counts(least=0.3)}, tmp_path / "a.png").axes
    x = points(axes, BLUE)[:, 0]
    assert len(np.unique(x.round(6))) == LAYERS * HEADS
    assert np.diff(np.sort(x)).min() > 0.05


def test_the_chosen_head_is_named(tmp_path):
    found = counts()
    layers = ["cross 0", "cross 1", "cross 2"]
    chosen = {"one": (1, 2)}
    (axes,) = grounding_panels_figure({"one": found}, tmp_path / "a.png", layers=layers, chosen=chosen).axes
    assert [text.get_text() for text in axes.texts] == [f"cross 1-2: {100 * found.accuracy[1, 2]:.1f}"]
    (silent,) = grounding_panels_figure({"one": found}, tmp_path / "b.png").axes
    assert not silent.texts, "no head is chosen"


def test_intervals_are_drawn_where_they_lie(tmp_path):
    found = counts(least=0.3)
    given = np.stack(found.intervals())
    (axes,) = grounding_panels_figure({"one": found}, tmp_path / "a.png", intervals=True).axes
    (lines,) = [c for c in axes.collections if not hasattr(c, "get_sizes")]
    drawn = np.array([segment[:, 1] for segment in lines.get_segments()])
    assert np.allclose(drawn, 100 * given.reshape(2, -1).T)


def test_panels_share_one_scale_that_holds_every_point(tmp_path):
    many = {name: counts(seed) for seed, name in enumerate(["det", "pobj", "amod", "$w_1$", "prep"])}
    figure = grounding_panels_figure(many, tmp_path / "a.svg")
    panels = figure.axes[: len(many)]
    assert [axes.get_title() for axes in panels] == [f"{name} ({c.total} items)" for name, c in many.items()]
    assert len({axes.get_ylim() for axes in panels}) == 1
    for axes, found in zip(panels, many.values(), strict=True):
        assert axes.get_ylim()[1] > 100 * found.accuracy.max()
        assert len(points(axes, BLUE)) + len(points(axes, SKY)) == LAYERS * HEADS


def test_changes_show_the_difference_and_mark_what_is_significant(tmp_path):
    before = counts(1)
    after = counts(2)
    after = HeadCounts(
        before.image_ids,
        before.items,
        np.minimum(after.correct, before.items[:, None, None]),
        after.share,
        before.baseline,
        before.chance,
    )
    p = np.ones((LAYERS, HEADS))
    p[1, 2] = p[0, 3] = 0.01
    figure = changes_figure(before, after, tmp_path / "a.pdf", p=p, names=("start", "direct"))
    grid = figure.axes[0]
    assert np.allclose(grid.images[0].get_array(), 100 * (after.accuracy - before.accuracy))
    stars = {(line.get_ydata()[0], line.get_xdata()[0]) for line in grid.get_lines()}
    assert stars == {(1, 2), (0, 3)}
    assert "2 of 12 heads significant" in figure.get_suptitle()


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_the_same_input_gives_the_same_bytes(tmp_path, kind):
    for name in "ab":
        grounding_panels_figure({"one": counts()}, tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_nothing_leaves_the_page(tmp_path):
    figure = grounding_panels_figure({str(n): counts(n) for n in range(5)}, tmp_path / "a.png")
    width, height = Image.open(tmp_path / "a.png").size
    for text in [t for axes in figure.axes for t in (*axes.texts, axes.title, axes.xaxis.label) if t.get_text()]:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
