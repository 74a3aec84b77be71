# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Figures, looked at as pixels and as text, the way a reader sees them."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.text import Text
from numpy.testing import assert_array_equal
from PIL import Image

from grounded_attention.heads.attention_grounding import summarise
from grounded_attention.pages.attention_pictures import ATTENDED, GOLD
from grounded_attention.pages.figures import (
    WordAttention,
    attention_figure,
    heads_figure,
    loss_curves_figure,
    method_comparison_figure,
)
from grounded_attention.training.experiments.measuring import chosen_heads

pytestmark = pytest.mark.drawn_figures

CAPTION = (
    "Two dogs run, a $5 red ball lies behind the small dog and a $3 bone is somewhere under the old green bench ."
)

PHRASES = ["Two dogs", "a $5 red ball", "the small dog", "a $3 bone", "the old green bench", "somewhere"]
BOXES = np.array([[0.1, 0.3, 0.3, 0.7], [0.4, 0.25, 0.6, 0.6], [0.7, 0.5, 0.95, 0.9], [0.0, 0.0, 0.2, 0.15]])


@pytest.fixture
def image():
    return Image.new("RGB", (200, 150), (200, 210, 190))


def attention(phrase, weights=(0.1, 0.6, 0.2, 0.1), gold=(1,)):
    marks = np.isin(np.arange(len(BOXES)), gold)
    return WordAttention(phrase, BOXES, np.array(weights), marks)


@pytest.fixture
def draw(image, tmp_path):
    """Draws words on the image; gives the figure and the pixels of its file."""

    def attention_picture(*words, **options):
        figure = attention_figure(image, CAPTION, words, tmp_path / "a.png", **options)
        return figure, pixels(tmp_path / "a.png")

    return attention_picture


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def edge(figure, axes, box, outset=0.0):
    """(row, column) of the picture's pixels along a box, `outset` pixels outside it."""
    left, top = axes.transData.transform(box[:2])
    right, bottom = axes.transData.transform(box[2:])
    height = round(figure.bbox.height)
    first_row = int(height - top - outset)
    last_row = int(height - bottom + outset)
    first_column = int(left - outset)
    last_column = int(right + outset)
    across = range(first_column + 2, last_column - 1)
    down = range(first_row + 2, last_row - 1)
    horizontal = [(row, column) for row in (first_row, last_row) for column in across]
    vertical = [(row, column) for row in down for column in (first_column, last_column)]
    return horizontal + vertical


def share_of(colour, picture, places):
    target = np.array(to_rgb(colour)) * 255
    return float(np.mean([np.abs(picture[place] - target).max() < 12 for place in places]))


@pytest.mark.parametrize("top", range(3))
def test_the_most_attended_box_is_drawn_in_the_attention_colour(draw, top):
    weights = np.roll([0.6, 0.2, 0.2, 0.0], top)
    figure, picture = draw(attention("Two dogs", weights, gold=()))
    shares = [share_of(ATTENDED, picture, edge(figure, figure.axes[0], box)) for box in BOXES[:3]]
    assert shares[top] > 0.9
    assert max(np.delete(shares, top)) < 0.1


def test_gold_boxes_are_dashed_and_beside_the_attention(draw):
    figure, picture = draw(attention("Two dogs", gold=(1, 2)))
    gold = [share_of(GOLD, picture, edge(figure, figure.axes[0], box, outset=4)) for box in BOXES]
    assert 0.3 < gold[2] < 0.9, "dashes and gaps"
    assert gold[1] > 0.3
    assert gold[0] == gold[3] == 0
    assert share_of(ATTENDED, picture, edge(figure, figure.axes[0], BOXES[1])) > 0.8, "gold hides no attention"


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_panel_for_every_word_fits_the_sheet(draw, count):
    figure, picture = draw(*map(attention, PHRASES[:count]))
    assert figure.get_suptitle().replace("\n", " ") == CAPTION
    titles = [axes.get_title().replace("\n", " ") for axes in figure.axes]
    assert titles == PHRASES[:count]
    for text in figure.findobj(Text):
        assert "$" not in text.get_text() or not text.get_parse_math()
    assert picture.shape[1] <= 841
    assert_nothing_is_cut_or_overlaps(figure)


def assert_inside(box, frame):
    assert box.x0 >= frame.x0 - 0.5
    assert box.y0 >= frame.y0 - 0.5
    assert box.x1 <= frame.x1 + 0.5
    assert box.y1 <= frame.y1 + 0.5


def assert_nothing_is_cut_or_overlaps(figure):
    labels = [*figure.texts, *figure.legends]
    for axes in figure.axes:
        share = axes.texts[-1].get_bbox_patch()
        assert_inside(share.get_window_extent(), axes.get_window_extent())
        labels += [axes.title, axes.xaxis.label, axes.yaxis.label]
    written = [label for label in labels if not isinstance(label, Text) or label.get_text().strip()]
    boxes = [artist.get_window_extent() for artist in (*written, *figure.axes)]
    for box in boxes:
        assert_inside(box, figure.bbox)
    for one, other in combinations(boxes, 2):
        assert not one.padded(-1).overlaps(other.padded(-1))


@pytest.mark.parametrize(
    "box", [[0, 0, 1, 1], [0.97, 0.0, 1, 0.04], [0.0, 0.96, 0.03, 1], [0.5, 0.5, 0.5, 0.5], [0.9, 0.0, 1, 1]]
)
def test_the_share_stays_inside_the_picture(draw, box):
    word = WordAttention("Two dogs", [box], [1.0], [True])
    figure, _ = draw(word, word, word)
    assert figure.axes[0].texts[-1].get_text() == "100%"
    assert_nothing_is_cut_or_overlaps(figure)


@pytest.mark.parametrize(
    "gold, verdict", [((1,), "✓ hit, 60% on gold"), ((0, 2), "✗ miss, 30% on gold"), ((), "– no gold region")]
)
def test_the_verdict_states_whether_the_top_region_is_gold(draw, gold, verdict):
    figure, _ = draw(attention("Two dogs", gold=gold), attention("ball"))
    assert figure.axes[0].get_xlabel() == verdict
    assert figure.axes[0].texts[-1].get_text() == "60%"


def test_a_picture_without_any_gold_region_judges_nothing_and_shows_its_notes(draw):
    words = [attention("Two dogs", gold=())] * 3
    note = "the features are those of 'microsoft/resnet-50', but the model was trained on those of 'scenes' " * 2
    figure, _ = draw(*words, notes=[note])
    assert "gold" not in " ".join(text.get_text() for text in figure.findobj(Text))
    assert_nothing_is_cut_or_overlaps(figure)
    assert f"warning: {note.strip()}" in figure.get_suptitle().replace("\n", " ")


@pytest.mark.parametrize("size, mode", [((40, 400), "RGB"), ((1000, 200), "L"), ((1, 1), "RGBA")])
def test_any_image_keeps_its_proportions(tmp_path, size, mode):
    figure = attention_figure(Image.new(mode, size), CAPTION, [attention("Two dogs")], tmp_path / "a.png")
    extent = figure.axes[0].get_window_extent()
    assert extent.width / extent.height == pytest.approx(size[0] / size[1], rel=0.03)
    assert extent.height <= 1.3 * 500


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_same_input_same_bytes(image, tmp_path, suffix):
    def drawn(gold):
        path = tmp_path / "new" / f"a{suffix}"
        attention_figure(image, CAPTION, [attention("Two dogs", gold=gold)], path)
        return path.read_bytes()

    assert drawn((1,)) == drawn((1,)) != drawn(())


def test_methods_are_rows_on_one_scale(image, tmp_path):
    unsure = [attention(phrase, (0.2, 0.3, 0.25, 0.25)) for phrase in PHRASES[:3]]
    sure = [attention(phrase, (0.02, 0.9, 0.04, 0.04)) for phrase in PHRASES[:3]]
    methods = {"none": unsure, "semi_direct": sure}
    figure = method_comparison_figure(image, CAPTION, methods, tmp_path / "a.png")
    assert_nothing_is_cut_or_overlaps(figure)
    corners = np.array([axes.get_position().p0 for axes in figure.axes]).round(4)
    assert len({*corners[:, 0]}) == 3
    assert len({*corners[:, 1]}) == 2
    labels = {axes.get_ylabel(): axes.yaxis.label.get_window_extent() for axes in figure.axes}
    assert labels["none"].y0 > figure.axes[3].get_window_extent().y1 > labels["semi_direct"].y1
    widest = []
    for axes in figure.axes:
        attended = [patch for patch in axes.patches if patch.get_edgecolor() == to_rgba(ATTENDED)]
        widest.append(max(patch.get_linewidth() for patch in attended))
    assert widest[0] == widest[1] < widest[3], "a flat head is not drawn as strong as a sure one"


def test_logs_without_losses_and_other_kinds_of_files_are_refused(image, tmp_path):
    for histories in ({"none": []}, {}):
        with pytest.raises(ValueError, match="nothing to draw"):
            loss_curves_figure(histories, tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"'\.jpg'"):
        attention_figure(image, CAPTION, [attention("Two dogs")], tmp_path / "a.jpg")


# Charts


def heat_maps(figure):
    return [axes for axes in figure.axes if axes.images]


def test_heat_maps_share_a_scale_and_show_their_numbers(tmp_path):
    accuracy = {"none": np.full((2, 3), 0.125), "direct": np.array([[0.2, 0.3, 0.4], [0.5, np.nan, 0.99]])}
    figure = heads_figure(accuracy, 0.14, tmp_path / "a.png")
    none, direct = heat_maps(figure)
    assert none.images[0].get_clim() == direct.images[0].get_clim() == (0, 1)
    numbers = np.empty((2, 3), dtype=object)
    for text in direct.texts:
        head, layer = text.get_position()
        numbers[layer, head] = text.get_text()
    assert numbers.tolist() == [["0.20", "0.30", "0.40"], ["0.50", "–", "0.99"]]
    assert "chance 0.14" in figure.get_suptitle()
    assert direct.get_title() == "direct, best 0.99"


def test_the_frame_is_around_the_head_of_the_table_and_the_title_has_its_accuracy(tmp_path):
    """Head 1-0 is chosen on validation, where it is the best; on the reported rows 0-2 is."""
    test = {"text_to_region_by_head": [[0.2, 0.3, 0.9], [0.6, 0.5, 0.4]], "text_to_region_chance": 0.1}
    validation = {**test, "text_to_region_by_head": [[0.1, 0.2, 0.7], [0.8, 0.3, 0.2]]}
    chosen = chosen_heads({"direct": {"validation": validation, "test": test}, "none": {"test": test}})
    assert chosen == {"direct": [(1, 0)]}
    assert summarise(validation, test)["best_head"] == pytest.approx(0.6)
    accuracy = np.array(test["text_to_region_by_head"])
    figure = heads_figure({"none": accuracy, "direct": accuracy}, 0.14, tmp_path / "a.png", chosen=chosen)
    none, direct = heat_maps(figure)
    [frame] = direct.patches
    x0, y0, x1, y1 = frame.get_bbox().extents
    assert (x0 + x1) / 2 == pytest.approx(0)
    assert (y0 + y1) / 2 == pytest.approx(1)
    assert not none.patches
    assert none.get_title() == "none, best 0.90"
    assert direct.get_title() == "direct, chosen 0.60"
    assert "frame: chosen on validation" in figure.get_suptitle()


def test_layers_with_names_show_them(tmp_path):
    accuracy = {"none": np.full((2, 3), 0.5)}
    names = ["cross 0", "cross 1"]
    [axes] = heat_maps(heads_figure(accuracy, 0.1, tmp_path / "a.png", names))
    assert [text.get_text() for text in axes.get_yticklabels()] == names
    assert list(axes.get_yticks()) == [0, 1]
    heads_figure(accuracy, 0.1, tmp_path / "c.png", ["0", "1"])
    heads_figure(accuracy, 0.1, tmp_path / "d.png")
    assert (tmp_path / "c.png").read_bytes() == (tmp_path / "d.png").read_bytes()


def history(scale):
    steps = (2, 4, 6, 100)
    records = [{"step": step, "loss": scale / step, "loss_vgp": 1 + scale / step, "epoch": step / 9} for step in steps]
    middle = {"step": 4, "eval_vgp_accuracy": 0.5, "eval_vgp_count": 30}
    return [*records, middle, {"step": 100, "train_loss": 1.0, "train_runtime": 3.2}]


def test_one_panel_a_component_one_line_a_method(tmp_path):
    supervised = [*history(1), {"step": 2, "loss_attention": 2.0}]
    figure = loss_curves_figure({"none": history(2), "direct": supervised}, tmp_path / "a.png")
    panels = {axes.get_title(): [line.get_label() for line in axes.get_lines()] for axes in figure.axes if axes.lines}
    both = ["none", "direct"]
    assert panels == {"loss": both, "loss vgp": both, "loss attention": ["direct"], "eval vgp accuracy": both}
    assert [axes.get_yscale() for axes in figure.axes[:2]] == ["log", "linear"]
    figure.canvas.draw()
    low, high = figure.axes[0].get_ylim()
    assert low < 0.02
    assert high > 1
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == both


def test_a_resumed_log_counts_as_logged_last_and_gaps_are_left_out(tmp_path):
    losses = [(1, 5.0), (2, 9.0), (3, np.nan), (2, 4.0), (4, 3.0)]
    records = [{"step": step, "loss": loss} for step, loss in losses]
    figure = loss_curves_figure({"mine": records}, tmp_path / "a.png")
    assert_array_equal(figure.axes[0].lines[0].get_xydata(), [[1, 5], [2, 4], [4, 3]])


def test_methods_look_different(tmp_path):
    names = ["none", "indirect", "direct", "semi_direct", *"abcdefgh"]
    figure = loss_curves_figure(dict.fromkeys(names, history(1)), tmp_path / "a.png")
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(styles) == len(names)
    figure.canvas.draw()
    assert_inside(figure.legends[0].get_window_extent(), figure.bbox)
