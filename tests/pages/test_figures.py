# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Figures, looked at as pixels and as text, the way a reader sees them."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.text import Text
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


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def edge(figure, axes, box, outset=0.0):
    """(row, column) of the picture's pixels along a box, `outset` pixels outside it."""
    height = round(figure.bbox.height)
    (left, top), (right, bottom) = (axes.transData.transform(corner) for corner in (box[:2], box[2:]))
    left = left - outset
    right = right + outset
    top = height - top - outset
    bottom = height - bottom + outset
    x = np.arange(int(left) + 2, int(right) - 1)
    y = np.arange(int(top) + 2, int(bottom) - 1)
    sides = [(np.full_like(x, row), x) for row in (int(top), int(bottom))]
    sides += [(y, np.full_like(y, column)) for column in (int(left), int(right))]
    return [(int(r), int(c)) for rows, columns in sides for r, c in zip(rows, columns, strict=True)]


def share_of(colour, picture, places):
    target = np.array(to_rgb(colour)) * 255
    return float(np.mean([np.abs(picture[place] - target).max() < 12 for place in places]))


@pytest.mark.parametrize("top", range(3))
def test_the_most_attended_box_is_drawn_in_the_attention_colour(image, tmp_path, top):
    weights = np.roll([0.6, 0.2, 0.2, 0.0], top)
    figure = attention_figure(image, CAPTION, [attention("Two dogs", weights, gold=())], tmp_path / "a.png")
    picture = pixels(tmp_path / "a.png")
    shares = [share_of(ATTENDED, picture, edge(figure, figure.axes[0], box)) for box in BOXES[:3]]
    assert shares[top] > 0.9
    assert max(np.delete(shares, top)) < 0.1


def test_gold_boxes_are_dashed_and_beside_the_attention(image, tmp_path):
    figure = attention_figure(image, CAPTION, [attention("Two dogs", gold=(1, 2))], tmp_path / "a.png")
    picture = pixels(tmp_path / "a.png")
    gold = [share_of(GOLD, picture, edge(figure, figure.axes[0], box, outset=4)) for box in BOXES]
    assert 0.3 < gold[2] < 0.9, "dashes and gaps"
    assert gold[1] > 0.3
    assert gold[0] == gold[3] == 0
    assert share_of(ATTENDED, picture, edge(figure, figure.axes[0], BOXES[1])) > 0.8, "gold hides no attention"


def test_the_caption_and_the_word_of_each_picture_are_written_as_they_are(image, tmp_path):
    words = [attention(phrase) for phrase in PHRASES]
    figure = attention_figure(image, CAPTION, words, tmp_path / "a.png")
    assert figure.get_suptitle().replace("\n", " ") == CAPTION
    assert [axes.get_title().replace("\n", " ") for axes in figure.axes] == PHRASES
    assert not any(text.get_parse_math() for text in figure.findobj(Text) if "$" in text.get_text())


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_panel_for_every_word_fits_the_sheet(image, tmp_path, count):
    words = [attention(phrase) for phrase in PHRASES[:count]]
    figure = attention_figure(image, CAPTION, words, tmp_path / "a.png")
    assert len(figure.axes) == count
    assert pixels(tmp_path / "a.png").shape[1] <= 841
    assert_nothing_is_cut_or_overlaps(figure)


def assert_nothing_is_cut_or_overlaps(figure):
    labels = [label for axes in figure.axes for label in (axes.xaxis.label, axes.yaxis.label)]
    written = [*figure.texts, *labels, *(axes.title for axes in figure.axes)]
    texts = [text.get_window_extent() for text in written if text.get_text().strip()]
    panels = [axes.get_window_extent() for axes in figure.axes]
    legends = [legend.get_window_extent() for legend in figure.legends]
    shares = [axes.texts[-1].get_bbox_patch().get_window_extent() for axes in figure.axes]
    for box in [*texts, *panels, *legends, *shares]:
        assert box.x0 >= -0.5
        assert box.y0 >= -0.5
        assert box.x1 <= figure.bbox.x1 + 0.5
        assert box.y1 <= figure.bbox.y1 + 0.5
    everything = [*texts, *panels, *legends]
    for i, one in enumerate(everything):
        assert not any(one.padded(-1).overlaps(other.padded(-1)) for other in everything[i + 1 :])
    for share, panel in zip(shares, panels, strict=True):
        assert panel.x0 <= share.x0
        assert share.x1 <= panel.x1
        assert panel.y0 <= share.y0
        assert share.y1 <= panel.y1


@pytest.mark.parametrize(
    "box", [[0, 0, 1, 1], [0.97, 0.0, 1, 0.04], [0.0, 0.96, 0.03, 1], [0.5, 0.5, 0.5, 0.5], [0.9, 0.0, 1, 1]]
)
def test_the_share_stays_inside_the_picture(image, tmp_path, box):
    word = WordAttention("Two dogs", [box], [1.0], [True])
    figure = attention_figure(image, CAPTION, [word] * 3, tmp_path / "a.png")
    assert [text.get_text() for text in figure.axes[0].texts[-1:]] == ["100%"]
    assert_nothing_is_cut_or_overlaps(figure)


@pytest.mark.parametrize(
    ("gold", "verdict"), [((1,), "✓ hit, 60% on gold"), ((0, 2), "✗ miss, 30% on gold"), ((), "– no gold region")]
)
def test_the_verdict_states_whether_the_top_region_is_gold(image, tmp_path, gold, verdict):
    words = [attention("Two dogs", gold=gold), attention("ball")]
    figure = attention_figure(image, CAPTION, words, tmp_path / "a.png")
    assert figure.axes[0].get_xlabel() == verdict
    assert [text.get_text() for text in figure.axes[0].texts[-1:]] == ["60%"]


def test_a_picture_without_any_gold_region_judges_nothing_and_shows_its_notes(image, tmp_path):
    words = [attention("Two dogs", gold=())] * 3
    plain = attention_figure(image, CAPTION, words, tmp_path / "a.png")
    note = "the features are those of 'microsoft/resnet-50', but the model was trained on those of 'scenes' " * 2
    noted = attention_figure(image, CAPTION, words, tmp_path / "b.png", notes=[note])
    for figure in (plain, noted):
        assert "gold" not in " ".join(text.get_text() for text in figure.findobj(Text))
        assert_nothing_is_cut_or_overlaps(figure)
    assert f"warning: {note.strip()}" in noted.get_suptitle().replace("\n", " ")


@pytest.mark.parametrize(("size", "mode"), [((40, 400), "RGB"), ((1000, 200), "L"), ((1, 1), "RGBA")])
def test_any_image_keeps_its_proportions(tmp_path, size, mode):
    figure = attention_figure(Image.new(mode, size), CAPTION, [attention("Two dogs")], tmp_path / "a.png")
    extent = figure.axes[0].get_window_extent()
    assert extent.width / extent.height == pytest.approx(size[0] / size[1], rel=0.03)
    assert extent.height <= 1.3 * 500


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_same_input_same_bytes(image, tmp_path, suffix):
    words = [attention(phrase) for phrase in PHRASES[:2]]
    paths = [tmp_path / "new" / name / f"a{suffix}" for name in ("one", "two")]
    for path in paths:
        attention_figure(image, CAPTION, words, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    attention_figure(image, CAPTION, [attention(PHRASES[0], gold=()), words[1]], paths[1])
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_methods_are_rows_on_one_scale(image, tmp_path):
    sure = (0.02, 0.9, 0.04, 0.04)
    unsure = (0.2, 0.3, 0.25, 0.25)
    methods = {
        "none": [attention(p, unsure) for p in PHRASES[:3]],
        "semi_direct": [attention(p, sure) for p in PHRASES[:3]],
    }
    figure = method_comparison_figure(image, CAPTION, methods, tmp_path / "a.png")
    assert_nothing_is_cut_or_overlaps(figure)
    assert len(figure.axes) == 6
    places = [axes.get_position() for axes in figure.axes]
    assert len({round(p.y0, 4) for p in places}) == 2
    assert len({round(p.x0, 4) for p in places}) == 3
    labels = {axes.get_ylabel(): axes.yaxis.label.get_window_extent() for axes in figure.axes}
    assert labels["none"].y0 > figure.axes[3].get_window_extent().y1 > labels["semi_direct"].y1
    widest = [max(p.get_linewidth() for p in a.patches if p.get_edgecolor() == to_rgba(ATTENDED)) for a in figure.axes]
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
    numbers = {text.get_position(): text.get_text() for text in direct.texts}
    expected = {(0, 0): "0.20", (1, 0): "0.30", (2, 0): "0.40", (0, 1): "0.50", (1, 1): "–", (2, 1): "0.99"}
    assert numbers == expected, "x is the head, y the layer, counted from 0"
    assert "chance 0.14" in figure.get_suptitle()
    assert direct.get_title() == "direct, best 0.99"


def test_the_frame_is_around_the_head_of_the_table_and_the_title_has_its_accuracy(tmp_path):
    """Head 1-0 is chosen on validation, where it is the best; on the reported rows 0-2 is."""
    test = np.array([[0.2, 0.3, 0.9], [0.6, 0.5, 0.4]])
    validation = np.array([[0.1, 0.2, 0.7], [0.8, 0.3, 0.2]])
    by_split = {
        split: {"text_to_region_by_head": values.tolist(), "text_to_region_chance": 0.1}
        for split, values in (("validation", validation), ("test", test))
    }
    chosen = chosen_heads({"direct": by_split, "none": {"test": by_split["test"]}})
    assert chosen == {"direct": [(1, 0)]}
    assert summarise(by_split["validation"], by_split["test"])["best_head"] == pytest.approx(0.6)
    figure = heads_figure({"none": test, "direct": test}, 0.14, tmp_path / "a.png", chosen=chosen)
    none, direct = heat_maps(figure)
    [frame] = direct.patches
    x, y, width, height = frame.get_bbox().bounds
    assert (x + width / 2, y + height / 2) == pytest.approx((0, 1))
    assert not none.patches
    assert (none.get_title(), direct.get_title()) == ("none, best 0.90", "direct, chosen 0.60")
    assert "frame: chosen on validation" in figure.get_suptitle()


def test_layers_with_names_show_them(tmp_path):
    accuracy = {"none": np.full((2, 3), 0.5), "direct": np.full((2, 3), 0.6)}
    names = ["cross 0", "cross 1"]
    for axes in heat_maps(heads_figure(accuracy, 0.1, tmp_path / "a.png", names)):
        assert [text.get_text() for text in axes.get_yticklabels()] == names
        assert list(axes.get_yticks()) == [0, 1]
    heads_figure(accuracy, 0.1, tmp_path / "c.png", ["0", "1"])
    heads_figure(accuracy, 0.1, tmp_path / "d.png")
    assert (tmp_path / "c.png").read_bytes() == (tmp_path / "d.png").read_bytes()


def history(scale, attention=True):
    records = [{"step": s, "loss": scale / s, "loss_vgp": 1 + scale / 10 / s, "epoch": s / 9} for s in (2, 4, 6, 100)]
    if attention:
        records = [record | {"loss_attention": 2.0} for record in records]
    middle = {"step": 4, "eval_vgp_accuracy": 0.5, "eval_vgp_count": 30}
    return [*records, middle, {"step": 100, "train_loss": 1.0, "train_runtime": 3.2}]


def test_one_panel_a_component_one_line_a_method(tmp_path):
    figure = loss_curves_figure({"none": history(2, False), "direct": history(1)}, tmp_path / "a.png")
    panels = {axes.get_title(): [line.get_label() for line in axes.get_lines()] for axes in figure.axes if axes.lines}
    both = ["none", "direct"]
    assert panels == {"loss": both, "loss vgp": both, "loss attention": ["direct"], "eval vgp accuracy": both}
    assert [axes.get_yscale() for axes in figure.axes[:2]] == ["log", "linear"]
    figure.canvas.draw()
    low, high = figure.axes[0].get_ylim()
    assert low < 0.02
    assert high > 1
    assert len(figure.legends) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == both


def test_a_resumed_log_counts_as_logged_last_and_gaps_are_left_out(tmp_path):
    records = [{"step": s, "loss": v} for s, v in [(1, 5.0), (2, 9.0), (3, float("nan")), (2, 4.0), (4, 3.0)]]
    figure = loss_curves_figure({"mine": records}, tmp_path / "a.png")
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xydata(), [[1, 5], [2, 4], [4, 3]])


def test_methods_look_different(tmp_path):
    names = ["none", "indirect", "direct", "semi_direct", *(f"other {i}" for i in range(8))]
    figure = loss_curves_figure({name: history(1) for name in names}, tmp_path / "a.png")
    assert len({(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}) == len(names)
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1
