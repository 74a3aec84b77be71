# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The evidence score tells who answers from the evidence from who is lucky, or knows the texts alone."""

import numpy as np
import pytest

from grounded_attention.training.experiments.scoring import VIEWS, best_head, evidence_metrics

QUESTIONS = 600
HEADS = 12
CHANCE = 0.2
RNG = np.random.default_rng(5)
IMAGES = [str(number // 3) for number in range(QUESTIONS)]
RANDOM_HEADS = (RNG.random((QUESTIONS, HEADS)) < CHANCE).astype(float)
GOOD_HEADS = RANDOM_HEADS.copy()
GOOD_HEADS[:, 7] = RNG.random(QUESTIONS) < 0.8


def guesses(share):
    return (RNG.random(QUESTIONS) < share).astype(float)


def seeing():
    """Right with evidence, a guess without: the whole picture or the evidence alone, and neither."""
    return {"whole": guesses(0.9), "kept": guesses(0.85), "masked": guesses(0.25), "replaced": guesses(0.25)}


def score(right, heads):
    return evidence_metrics(right, IMAGES, heads, np.full(QUESTIONS, CHANCE))


def test_a_model_that_looks_is_told_from_a_lucky_one():
    found = score(seeing(), GOOD_HEADS)
    assert found["evidence_score"].low > 0.3
    assert found["evidence_score"].value == pytest.approx(0.6 * (0.8 - CHANCE) / (1 - CHANCE), abs=0.06)
    assert found["attention"].value == pytest.approx(0.8, abs=0.05)
    lucky = score({view: guesses(0.5) for view in VIEWS}, RANDOM_HEADS)
    assert lucky["evidence_score"].low <= 0 <= lucky["evidence_score"].high
    assert lucky["attention"].value == pytest.approx(CHANCE, abs=0.05)


def test_neither_answers_nor_attention_are_enough():
    blind = guesses(0.7)  # the text alone: the same answer whatever the picture has
    found = score(dict.fromkeys(VIEWS, blind), GOOD_HEADS)
    assert found["accuracy"].value > 0.6
    assert found["dependence"].value == found["evidence_score"].value == 0.0
    elsewhere = score(seeing(), RANDOM_HEADS)
    assert elsewhere["dependence"].low > 0.5
    assert elsewhere["evidence_score"].low <= 0 <= elsewhere["evidence_score"].high


def test_by_hand():
    """The fourth question has no grounded words, and all regions are evidence of the last: of both, answers count."""
    right = {"whole": [1, 1, 0, 1, 1, 0], "kept": [1, 1, 0, 1, 1, 0], "masked": [0, 1, 0, 0, 0, 0]}
    right["replaced"] = [0, 1, 0, 1, 0, 0]
    heads = np.array([[1.0], [1.0], [1.0], [np.nan], [0.5], [1.0]])
    chance = [0.5, 0.5, 0.5, np.nan, 0.6, 1.0]
    found = evidence_metrics(right, list("abcdef"), heads, chance)
    values = {name: each.value for name, each in found.items()}
    assert values == pytest.approx({
        "accuracy": 4 / 6, "accuracy, kept": 4 / 6, "accuracy, masked": 1 / 6, "accuracy, replaced": 2 / 6,
        "dependence": (1 + 0 + 0 + 0.5 + 1 + 0) / 6,
        "attention": (1 + 1 + 1 + 0.5) / 4,
        "agreement": 1 / 4,  # two look where their answer does not come from; half of the words are not most
        "evidence_score": (1 * 1 + 0 * 1 + 0 * 1 + 1 * (0.5 - 0.6) / 0.4) / 4,
    })  # fmt: skip
    assert "evidence_score" not in evidence_metrics(right, list("abcdef"))


def test_the_head_is_chosen_on_other_images():
    """Of many random heads the luckiest is no better than chance; a head that is best everywhere is found."""
    heads = (RNG.random((60, 400)) < CHANCE).astype(float).repeat(5, axis=0)  # five alike questions an image
    images = np.arange(60).repeat(5).astype(str).tolist()
    assert heads.mean(0).max() > CHANCE + 0.1
    assert best_head(heads, images).mean() < CHANCE + 0.05
    assert (best_head(GOOD_HEADS, IMAGES) == GOOD_HEADS[:, 7]).all()
    assert np.isfinite(best_head(RANDOM_HEADS[:3], ["a", "a", "a"])).all()
