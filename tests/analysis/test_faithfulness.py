# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Deletion and insertion curves against loops, captum, and a model whose answer hangs on one region."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from captum.attr import FeatureAblation
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from grounded_attention.analysis.faithfulness import FaithfulCurves, measure_curves, random_map, step_fractions
from grounded_attention.analysis.relevancy import MAPS as ALL_MAPS
from grounded_attention.analysis.relevancy import ReadOut, region_maps
from grounded_attention.heads.statistics import ratio_intervals
from grounded_attention.modeling.attention_calls import one_stream_calls

pytestmark = pytest.mark.drawn_figures

T = 4
R = 6
SIGN = torch.tensor([1.0, -1.0])

MAPS = ALL_MAPS[:-1]  # contributions need the attention function of a model, which the toy model has not


class Outputs(dict):
    """As the outputs of a model: keys are attributes too."""

    __getattr__ = dict.__getitem__


class OneRegionModel(nn.Module):
    """Two heads look at the regions from word 0. The one that decides finds the region that is flagged, and says which
    of two classes it shows; the other looks harder, at a decoy, and nobody listens to it. Without the flagged region
    the answer is wrong.

    Features: is it flagged, is it the decoy, what it says.
    """

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation="eager", attention_calls=one_stream_calls(1, 2))
        self.heads = nn.Parameter(torch.tensor([[4.0, 0.0], [0.0, 9.0]]))

    def forward(self, input_ids, region_features, region_attention_mask, output_attentions=False, return_dict=True):
        scores = torch.zeros(len(input_ids), 2, T + R)
        scores[:, :, T:] = torch.einsum("hf,brf->bhr", self.heads, region_features[..., :2])
        kept = torch.cat([torch.ones(len(input_ids), T), region_attention_mask], 1).bool()
        rows = scores.masked_fill(~kept[:, None], -1e9).softmax(-1)
        maps = torch.eye(T + R).expand(len(input_ids), 2, -1, -1).clone()
        maps[:, :, 0] = rows
        values = nn.functional.pad(region_features[..., 2], (T, 0))
        context = (maps[:, 0, 0] * values).sum(-1)  # the second head's is not read
        return Outputs(logits=context[:, None] * SIGN, attentions=(maps,) if output_attentions else None)


def one_region_batch(examples=40, seed=0):
    generator = np.random.default_rng(seed)
    features = torch.zeros(examples, R, 3)
    labels = torch.from_numpy(generator.integers(2, size=examples))
    for row in range(examples):
        flagged, decoy = generator.choice(R, 2, replace=False)
        features[row, flagged, 0] = 1.0
        features[row, decoy, 1] = 1.0
        features[row, :, 2] = -0.02 * SIGN[labels[row]]  # all others say the wrong thing, quietly
        features[row, flagged, 2] = SIGN[labels[row]]
    words = torch.ones(examples, T, dtype=torch.long)
    inputs = {"input_ids": words, "region_features": features}
    return {**inputs, "region_attention_mask": torch.ones(examples, R, dtype=torch.long)}, labels


def measure_one_region():
    model = OneRegionModel().eval()
    inputs, labels = one_region_batch()

    def read_out(outputs, inputs):
        return ReadOut(outputs.logits.max(-1).values, torch.zeros(len(outputs.logits), dtype=torch.long))

    @torch.no_grad()
    def score(steps):
        scores = []
        for shown in torch.from_numpy(steps):
            logits = model(**{**inputs, "region_attention_mask": shown.long()}).logits
            scores.append((logits.argmax(-1) == labels) & (logits.abs().sum(-1) > 0))  # nothing seen is no answer
        return torch.stack(scores).double().numpy()

    found = region_maps(model, inputs, read_out, MAPS)
    drawn = np.stack([random_map(R, 0, number) for number in range(len(labels))])
    maps = np.stack([*(found[name].numpy() for name in MAPS), drawn], 1)
    fractions = step_fractions(R)
    scores = measure_curves(maps, np.ones((len(labels), R), dtype=bool), score, fractions)
    images = tuple(f"image {row // 2}" for row in range(len(labels)))
    return FaithfulCurves((*MAPS, "random"), fractions, images, scores, about={"task": "toy"})


def test_a_faithful_map_takes_the_one_region_first_and_shows_it_first():
    found = measure_one_region()
    deletion, insertion = found.curves[MAPS.index("relevancy")]
    assert_array_equal(deletion, [1, 0, 0, 0, 0, 0, 0])
    assert_array_equal(insertion, [0, 1, 1, 1, 1, 1, 1])


def test_a_map_that_looks_at_the_decoy_is_found_out():
    """Raw attention takes the decoy first: one step later than relevancy; a random order stands between."""
    found = measure_one_region().summary()
    relevancy, raw, random = (found[name] for name in ("relevancy", "raw_last", "random"))
    assert relevancy["deletion"].value < raw["deletion"].value < random["deletion"].value
    assert relevancy["insertion"].value > raw["insertion"].value > random["insertion"].value
    assert relevancy["gap - random"].low > 0
    assert random["gap"].low < 0 < random["gap"].high


def curves_by_loops(maps, candidates, score_one, fractions):
    """The same for one example at a time, with sorted lists; `score_one` from example and shown places (R,)."""
    curves = np.zeros((*maps.shape[:2], 2, len(fractions)))
    for example, of_example in enumerate(maps):
        for number, values in enumerate(of_example):
            places = [place for place in range(len(values)) if candidates[example, place]]
            order = sorted(places, key=lambda place: (-values[place], place))
            for step, fraction in enumerate(fractions):
                first = order[: int(len(order) * fraction + 0.5)]
                without = np.ones(len(values), dtype=bool)
                without[first] = False
                alone = ~candidates[example]
                alone[first] = True
                curves[example, number, :, step] = score_one(example, without), score_one(example, alone)
    return curves


def test_curves_are_those_of_loops():
    generator = np.random.default_rng(3)
    maps = generator.integers(-2, 3, (5, 3, 9)).astype(float)  # with ties and negative values
    candidates = generator.random((5, 9)) < 0.7
    weights = generator.normal(size=(5, 9))

    def score_one(example, shown):
        return np.tanh(weights[example] @ shown)

    def score(steps):
        assert len(np.unique(steps, axis=0)) == len(steps)
        return np.array([[score_one(example, shown) for example, shown in enumerate(step)] for step in steps])

    fractions = step_fractions(4)
    found = measure_curves(maps, candidates, score, fractions)
    assert_allclose(found, curves_by_loops(maps, candidates, score_one, fractions))


def test_the_steps_of_a_linear_model_are_the_attributions_of_captum():
    weights = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = torch.randn(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    attributed = FeatureAblation(lambda batch: batch @ weights).attribute(values[None])[0].numpy()

    def score(steps):
        return (steps * values.numpy()) @ weights.numpy()

    candidates = np.ones((1, 12), dtype=bool)
    [[[deletion, insertion]]] = measure_curves(attributed[None, None], candidates, score, step_fractions(12))
    largest_first = np.sort(attributed)[::-1]
    assert_allclose(-np.diff(deletion), largest_first)
    assert_allclose(np.diff(insertion), largest_first)


def test_a_constant_score_has_itself_as_area_and_no_gap():
    maps = np.random.default_rng(0).random((4, 2, 7))
    candidates = np.ones((4, 7), dtype=bool)
    scores = measure_curves(maps, candidates, lambda steps: np.full(steps.shape[:2], -1.25), step_fractions(3))
    found = FaithfulCurves(("a", "plain"), step_fractions(3), ("x", "x", "y", "z"), scores).measures
    assert_allclose(found["deletion"], -1.25)
    assert_allclose(found["insertion"], -1.25)
    assert_array_equal(found["gap"], 0)
    assert_array_equal(found["gap - plain"], 0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_map_without_an_order_is_refused(value):
    maps = np.zeros((1, 1, 3))
    maps[0, 0, 1] = value
    candidates = np.ones((1, 3), dtype=bool)
    with pytest.raises(ValueError, match="NaN or infinite"):
        measure_curves(maps, candidates, None, step_fractions(2))
    candidates[0, 1] = False  # what is no candidate has no order
    assert measure_curves(maps, candidates, lambda steps: np.zeros(steps.shape[:2]), step_fractions(2)).shape
    with pytest.raises(ValueError, match="steps is 0"):
        step_fractions(0)


def test_the_random_map_depends_on_seed_and_number_alone():
    assert_array_equal(random_map(5, 0, 3), random_map(5, 0, 3))
    assert (random_map(5, 0, 3) != random_map(5, 1, 3)).all()
    assert (random_map(5, 0, 3) != random_map(5, 0, 4)).all()


def test_intervals_are_over_images():
    found = measure_one_region()
    summary = found.summary()
    images, place = np.unique(found.image_ids, return_inverse=True)
    for measure, values in found.measures.items():
        sums = np.zeros((len(images), len(found.maps)))
        np.add.at(sums, place, values)
        low, high = ratio_intervals(sums, np.bincount(place))
        for number, name in enumerate(found.maps):
            estimate = summary[name][measure]
            assert estimate.value == pytest.approx(values[:, number].mean())
            assert_allclose([estimate.low, estimate.high], [low[number], high[number]], atol=0.03)


def test_files_and_figure(tmp_path):
    from grounded_attention.pages.figures import faithful_figure

    found = measure_one_region()
    printed = found.save(tmp_path / "out")
    written = json.loads((tmp_path / "out" / "faithful.json").read_text())
    assert (written["task"], written["items"], written["images"]) == ("toy", 40, 20)
    assert_allclose(written["curves"]["rollout"], found.curves[MAPS.index("rollout")])
    mean, low, high = written["maps"]["raw_mean"]["deletion"]
    assert low <= mean <= high
    for name in found.maps:
        assert f"| {name} " in printed
    figure = faithful_figure(found, tmp_path / "curves.png")
    for way, axes in enumerate(figure.axes):
        assert_allclose([line.get_ydata() for line in axes.lines], found.curves[:, way])
