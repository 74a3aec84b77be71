# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Words while cells of their picture are covered: against captum, plain loops, and a model that sees one cell."""

import json

import numpy as np
import pytest
import torch
from captum.attr import FeatureAblation
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image, ImageFilter

from grounded_attention.commands.look import main
from grounded_attention.lens import COVERS
from grounded_attention.lens.batches import READ_ALONE
from grounded_attention.lens.exchanges import ready
from grounded_attention.lens.faithfulness import CoveredAnswer, measure_words
from tests.helpers.commands import read_error, read_result
from tests.helpers.own_rows import write_rows
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.tiny_vlm_processors import ANSWERERS, PROCESSORS, meant, type_of
from tests.lens.answered_rows import ROWS, picture

ANSWER = "a small cat near two red balls"
CAT = {"text": "a small cat", "start": 0, "end": 11, "sentence": 0}
BALLS = {"text": "two red balls", "start": 17, "end": 30, "sentence": 0}
BOX = [0.1, 0.2, 0.6, 0.9]


def row(number=0, **boxes):
    phrases = [{**CAT, "boxes": boxes.get("cat", [BOX])}, {**BALLS, "boxes": boxes.get("balls", [[0.5, 0, 1, 0.4]])}]
    return {"image_id": str(number), "image": ROWS[number]["image"], "text": ANSWER, "phrases": phrases}


def covered(family="llava", image=ROWS[0]["image"]):
    model, patches = ready(*make_pair(family))
    return CoveredAnswer(model, patches, image, "what is this ?", ANSWER)


def log_probability(answer, image, number):
    """Of a word, from a pass over one picture, all logits, one token after another."""
    model, patches = answer.model, answer.patches
    alone = CoveredAnswer(model, patches, image, "what is this ?", ANSWER)
    with torch.no_grad():
        logits = model(**alone.whole.inputs).logits[0].double()
    total = 0.0
    for place in alone.whole.words[number].rows:
        token = alone.whole.inputs["decoder_input_ids" if patches.family.decoder else "input_ids"][0, place]
        total += float(logits[place - 1].softmax(-1)[token].log())
    return total


@pytest.mark.parametrize("family", sorted({*meant(), *ANSWERERS} | ({*READ_ALONE} & {*PROCESSORS})))
def test_a_batch_of_pictures_is_read_as_each_alone(family):
    answer = covered(family)
    number = len(answer.whole.words) - 1
    shown = np.random.default_rng(0).random((3, len(answer.cells))) < 0.6
    pictures = answer.cover(shown, "mean")
    rows = answer.whole.words[number].rows
    if type_of(family) in READ_ALONE:
        found = [answer.predict([each], rows)[0] for each in pictures]
    else:
        found = answer.predict(pictures, rows)
    assert_allclose(found, [log_probability(answer, each, number) for each in pictures], atol=2e-5)


def test_a_covered_cell_is_the_ablated_feature_of_captum():
    answer = covered()
    number = len(answer.whole.words) - 1
    pixels = torch.from_numpy(answer.pixels.astype(np.float32)).permute(2, 0, 1)[None]
    mean = pixels.mean((2, 3), keepdim=True).round()

    def score(batch):
        pictures = [Image.fromarray(each.permute(1, 2, 0).numpy().astype(np.uint8)) for each in batch]
        return torch.tensor([log_probability(answer, each, number) for each in pictures])

    mask = torch.from_numpy(answer.cell_of.astype(np.int64))[None, None]
    attributed = FeatureAblation(score).attribute(pixels, baselines=mean.expand_as(pixels), feature_mask=mask)
    of_cells = torch.zeros(len(answer.cells) + 1)  # the last one is outside of all
    of_cells = of_cells.index_put((mask.flatten(),), attributed[0, 0].flatten())[:-1].numpy()
    assert np.ptp(of_cells) > 1e-3
    maps = np.stack([np.eye(len(answer.cells))[cell] for cell in range(len(answer.cells))])
    curves = answer.measure(maps, number, "mean", np.array([0, 1 / len(answer.cells)]), 8)
    assert_allclose(curves[:, 0, 0] - curves[:, 0, 1], of_cells, atol=5e-5)


@pytest.mark.parametrize("size", [(56, 40), (30, 90), (301, 97)])
def test_what_is_shown_stays_and_what_is_covered_has_the_fill(size):
    answer = covered(image=picture(size, 5))
    shown = np.random.default_rng(1).random((2, len(answer.cells))) < 0.5
    blurred = np.asarray(answer.picture.filter(ImageFilter.GaussianBlur(0.1 * max(size))))
    mean = np.round(answer.pixels.reshape(-1, 3).mean(0))
    for cover in COVERS:
        for which, each in zip(shown, answer.cover(shown, cover), strict=True):
            assert each.size == size
            painted = np.asarray(each)
            for y, x in np.random.default_rng(2).integers(0, (size[1], size[0]), (60, 2)):
                middle = ((x + 0.5) / size[0], (y + 0.5) / size[1])
                inside = (answer.cells[:, :2] <= middle) & (middle < answer.cells[:, 2:])
                cells = np.flatnonzero(inside.all(1))
                assert len(cells) < 2
                if which[cells].all():  # also where no cell is
                    assert_array_equal(painted[y, x], answer.pixels[y, x])
                elif cover == "mean":
                    assert_array_equal(painted[y, x], mean)
                elif cover == "blur":
                    assert_array_equal(painted[y, x], blurred[y, x])


def test_neighbours_fill_what_is_covered():
    """Between a red and a blue side the fill goes from red to blue; with nothing shown it is the mean."""
    image = Image.new("RGB", (60, 60), (200, 0, 0))
    image.paste((0, 0, 100), (30, 0, 60, 60))
    answer = covered(image=image)
    columns = answer.grid.columns
    shown = np.zeros((2, len(answer.cells)), dtype=bool)
    shown[0].reshape(-1, columns)[:, [0, -1]] = True
    between, nothing = (np.asarray(each).astype(int) for each in answer.cover(shown, "neighbours"))
    reds = between[30, :, 0]
    assert (np.diff(reds) <= 0).all()
    assert (reds[0], reds[-1]) == (200, 0)
    middle = answer.cell_of < len(answer.cells)
    assert_array_equal(np.unique(nothing[middle], axis=0), [(100, 0, 50)])


def test_a_picture_with_other_image_tokens_is_refused():
    answer = covered("qwen2_5_vl")
    with pytest.raises(ValueError, match="other image tokens"):
        answer.predict([picture((200, 40), 0)], (len(answer.whole.inputs["input_ids"][0]) - 1,))


class Decides:
    """Instead of a model: a word is the less likely the darker one cell of its picture is."""

    def __init__(self, answer, cell):
        self.answer = answer
        self.inside = answer.cell_of == cell

    def predict(self, pictures, rows):
        return np.array([np.asarray(each)[self.inside].mean() / 255 - 1 for each in pictures])


def test_the_map_of_the_cell_that_decides_is_the_most_faithful(monkeypatch):
    answer = covered(image=Image.new("RGB", (56, 40)))
    count = len(answer.cells)
    cell = count // 2
    answer.pixels = answer.pixels.copy()
    answer.pixels[answer.cell_of == cell] = 255
    monkeypatch.setattr(answer, "predict", Decides(answer, cell).predict)
    true_effect = np.zeros(count)
    true_effect[cell] = 1
    drawn = [np.random.default_rng(seed).random(count) for seed in range(20)]
    curves = answer.measure(np.stack([true_effect, *drawn]), 0, "mean", np.linspace(0, 1, count + 1), 16)
    areas = np.trapezoid(curves, dx=1 / count, axis=-1)
    assert (areas[0, 0] <= areas[1:, 0]).all()
    assert (areas[0, 1] >= areas[1:, 1]).all()
    assert areas[0, 0] < areas[1:, 0].mean()


def test_rows_are_measured_with_all_forms():
    rows = [row(0), row(1, cat=[]), row(2, cat=[BOX], balls=[BOX])]
    found = measure_words(*make_pair("llava"), rows, forms=("sinks", "rollout"), steps=3, instruction="what ?")
    assert found.maps == ("plain", "sinks", "rollout", "gold", "random")
    assert found.image_ids == ("0", "0", "1", "2", "2")
    assert found.about["left_out"] == {"without_box": 1, "without_token": 0, "other_letters": 0}
    assert found.scores.shape == (5, 5, 2, 4)
    ends = found.scores[..., [0, -1]]
    assert_array_equal(ends, ends[:, :1].repeat(5, 1))  # all pictures, or none of them
    assert_array_equal(found.scores[:, :, 0, 0], found.scores[:, :, 1, -1])
    assert (found.more["pointing"][:, 3] == 1).all()
    assert set(found.about["ms_a_word"]) == {"plain", "sinks", "rollout"}


def test_numbers_do_not_depend_on_the_batch():
    pair = make_pair("qwen2_5_vl")
    first, second = (measure_words(*pair, [row()], steps=2, batch_size=size, seed=1) for size in (1, 7))
    assert_allclose(first.scores, second.scores, atol=2e-5)
    assert (measure_words(*pair, [row()], steps=2, seed=2).scores[:, -1, :, 1] != first.scores[:, -1, :, 1]).any()


def test_words_end_with_the_answer_that_has_enough():
    rows = iter([row(0), row(1), row(2)])
    found = measure_words(*make_pair("llava"), rows, most_words=3, steps=1)
    assert found.image_ids == ("0", "0", "1", "1")
    assert next(rows)["image_id"] == "2"


@pytest.mark.parametrize(
    "rows, options, message",
    [
        ([row(cat=[], balls=[])], {}, "no word to measure.*'without_box': 2"),
        ([row()], {"cover": "black"}, "cover"),
        ([row()], {"forms": ("heat",)}, "form"),
        (
            [{**row(), "text": "a\u0301 bo", "phrases": [{"text": "bo", "start": 3, "end": 5, "boxes": [BOX]}]}],
            {},
            "'other",
        ),
    ],
)
def test_what_cannot_be_measured_is_said(rows, options, message):
    with pytest.raises(ValueError, match=message):
        measure_words(*make_pair("llava"), rows, steps=1, **options)


def test_the_command(tmp_path, capsys):
    model = save_llava(tmp_path / "model")
    rows = write_rows(tmp_path / "rows", 2)
    given = [
        "--data",
        rows,
        "--boxes",
        "xyxy pixels",
        "--model",
        model,
        "--faithful",
        "plain",
        "sinks",
        "--output",
        tmp_path / "out",
        "--json",
    ]
    assert main([*map(str, given)]) == 0
    printed = read_result(capsys)
    assert printed == json.loads((tmp_path / "out" / "faithful.json").read_text())
    assert printed["items"] == 4
    assert (tmp_path / "out" / "faithful.png").stat().st_size > 5000
    for unread in (["--again"], ["--form", "sinks"], ["--batch-size", "2"]):
        assert main([*map(str, given), *unread]) == 2
        assert unread[0] in read_error(capsys)
