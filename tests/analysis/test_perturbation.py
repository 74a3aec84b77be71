# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The perturbation test on a model whose answer hangs on one region."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from grounded_attention.analysis.perturbation_curves import LEAST, MOST, RANDOM, perturb
from grounded_attention.analysis.relevancy import MAPS, ReadOut
from grounded_attention.modeling.attention_calls import one_stream_calls
from grounded_attention.pages.figures import perturbation_figure

pytestmark = pytest.mark.drawn_figures

T = 4
R = 6
SIGN = torch.tensor([1.0, -1.0])


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
        self.config = SimpleNamespace(_attn_implementation="sdpa", attention_calls=one_stream_calls(1, 2))
        self.heads = nn.Parameter(torch.tensor([[4.0, 0.0], [0.0, 9.0]]))
        self.calls = []

    def set_attn_implementation(self, name):
        self.config._attn_implementation = name

    def forward(self, input_ids, region_features, region_attention_mask, output_attentions=False, return_dict=True):
        self.calls.append(self.config._attn_implementation)
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
    ones = torch.ones(examples, R, dtype=torch.long)
    words = torch.ones(examples, T, dtype=torch.long)
    return {
        "input_ids": words,
        "region_features": features,
        "region_attention_mask": ones,
        "region_candidate_mask": ones,
        "labels": labels,
    }


def inputs_of(batch):
    return {name: batch[name] for name in ("input_ids", "region_features", "region_attention_mask")}


def read_out(outputs, inputs):
    return ReadOut(outputs.logits.max(-1).values, torch.zeros(len(outputs.logits), dtype=torch.long))


def part_of(batch, rows):
    return {name: value[rows] for name, value in batch.items()}


def scores(outputs, batch):
    shown = outputs.logits.abs().sum(-1) > 0  # nothing seen is no answer
    return ((outputs.logits.argmax(-1) == batch["labels"]) & shown).double().tolist()


OPTIONS = {"inputs": inputs_of, "read_out": read_out, "scores": scores, "steps": R}


def perturbed(model=None, batch=None, **options):
    model = model or OneRegionModel()
    batch = batch or one_region_batch()
    images = [f"image {row // 2}" for row in range(len(batch["labels"]))]
    return perturb(model.eval(), [(batch, images)], **{**OPTIONS, **options})


def test_a_faithful_map_takes_the_one_region_first_or_last():
    found = perturbed()
    assert_allclose(found.fractions, np.arange(R + 1) / R)
    assert_array_equal(found.curve("relevancy", MOST), [1, 0, 0, 0, 0, 0, 0])
    assert_array_equal(found.curve("relevancy", LEAST), [1, 1, 1, 1, 1, 1, 0])
    areas = dict(zip(found.curves, found.areas, strict=True))
    assert areas["relevancy", MOST] == pytest.approx(0.5 / R)
    assert areas["relevancy", LEAST] == pytest.approx(1 - 0.5 / R)


def test_a_map_that_looks_at_the_decoy_is_found_out():
    """Raw attention takes the decoy first: one step later than relevancy; random order stands between the two ends."""
    found = perturbed()
    assert_array_equal(found.curve("raw_last", MOST)[:3], [1, 1, 0])
    areas = dict(zip(found.curves, found.areas, strict=True))
    assert areas["relevancy", MOST] < areas["raw_last", MOST] < areas[RANDOM, RANDOM] < areas["relevancy", LEAST]
    assert areas[RANDOM, RANDOM] == pytest.approx(0.5, abs=0.12)


def test_random_order_depends_on_seed_and_example_alone():
    batch = one_region_batch(10)
    images = [*"abcdefghij"]
    parts = [(part_of(batch, slice(0, 4)), images[:4]), (part_of(batch, slice(4, 10)), images[4:])]
    whole = perturb(OneRegionModel(), [(batch, images)], **OPTIONS).sums
    assert_array_equal(perturb(OneRegionModel(), parts, **OPTIONS).sums, whole)
    other = perturb(OneRegionModel(), [(batch, images)], **OPTIONS, seed=1).sums
    assert (other[:, :-1] == whole[:, :-1]).all()
    assert (other[:, -1] != whole[:, -1]).any()


def test_what_is_no_candidate_stays():
    """The flagged region as one that is no candidate: nothing that can be taken away changes the answer."""
    batch = one_region_batch()
    batch["region_candidate_mask"] = (batch["region_features"][..., 0] == 0).long()
    found = perturbed(batch=batch)
    assert_array_equal(found.accuracy, np.ones_like(found.accuracy))


def test_each_example_loses_its_own_share():
    """Of 2 candidates at half one is gone, of 6 three: rows with padding go by their own number."""
    batch = one_region_batch(2)
    batch["region_candidate_mask"] = torch.tensor([[1, 1, 0, 0, 0, 0], [1] * R])
    batch["region_attention_mask"] = batch["region_candidate_mask"]
    kept = []

    class Watching(OneRegionModel):
        def forward(self, input_ids, region_features, region_attention_mask, **kwargs):
            kept.append(region_attention_mask.sum(1).tolist())
            return super().forward(input_ids, region_features, region_attention_mask, **kwargs)

    perturbed(Watching(), batch, steps=2, maps=("raw_last",))
    assert kept[0] == kept[1] == [2, 6]
    assert kept[2] == [0, 0]
    assert kept[3:] == [[1, 3]] * 3


def test_examples_without_a_score_do_not_count():
    def half(outputs, batch):
        values = scores(outputs, batch)
        values[::2] = [None] * 20
        return values

    found = perturbed(scores=half)
    assert found.items.tolist() == [1] * 20
    assert found.image_ids[0] == "image 0"
    odd = perturbed(batch=part_of(one_region_batch(), slice(1, None, 2)))
    assert_array_equal(found.accuracy[:-1], odd.accuracy[:-1])  # the random order goes by the example
    with pytest.raises(ValueError, match="no example has a score"):
        perturbed(scores=lambda outputs, batch: [None] * len(outputs.logits))
    with pytest.raises(ValueError, match="steps is 0"):
        perturbed(steps=0)


def test_back_end_is_eager_for_maps_only():
    model = OneRegionModel()
    perturbed(model, steps=1)
    assert model.calls[0] == "eager"
    assert set(model.calls[1:]) == {"sdpa"}


def test_summary_files_and_figure(tmp_path):
    found = perturbed(about={"task": "toy"})
    rows = {row["map"]: row for row in found.summary()}
    assert list(rows) == [*MAPS, RANDOM]
    relevancy = rows["relevancy"]
    raw = rows["raw_last"]
    random = rows[RANDOM]
    assert relevancy["gap"] == pytest.approx(1 - 1 / R)
    assert relevancy["gap_low"] == pytest.approx(1 - 1 / R), "every image says the same"
    assert raw["gap_low"] <= raw["gap"] <= raw["gap_high"]
    assert random["gap"] == 0
    assert random["most_low"] < random["most"] < random["most_high"]
    assert found.save(tmp_path / "out") == tmp_path / "out"
    written = json.loads((tmp_path / "out" / "perturbation.json").read_text())
    assert written["about"] == {"task": "toy"}
    assert written["examples"] == 40
    assert written["images"] == 20
    assert len((tmp_path / "out" / "perturbation.csv").read_text().splitlines()) == 1 + len(found.curves) * (R + 1)
    frame = found.to_pandas()
    chosen = frame[(frame["map"] == "rollout") & (frame["order"] == LEAST)]
    assert_array_equal(chosen["accuracy"], found.curve("rollout", LEAST))
    figure = perturbation_figure(found, tmp_path / "curves.png")
    drawn = [axes for axes in figure.axes if axes.lines]
    assert len(drawn) == len(MAPS)
    for name, axes in zip(MAPS, drawn, strict=True):
        lines = [line.get_ydata() for line in axes.lines]
        for order in (MOST, LEAST):
            assert any(np.array_equal(line, found.curve(name, order)) for line in lines)
