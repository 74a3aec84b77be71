# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Figures of yes-or-no answers against loops, and against scikit-learn's definitions written out."""

import numpy as np
import pytest

from grounded_attention.metrics.object_hallucination import (
    ObjectHallucination,
    count_outcomes,
    hallucination_metrics,
    read_yes_or_no,
)


@pytest.mark.parametrize(
    "answer, read",
    [
        ("Yes, there is a dog.", "yes"),
        ("No", "no"),
        ("There is not a dog in the image.", "no"),
        ("yes. There is no cat.", "yes"),  # only the first sentence counts
        ("a notable dog", "yes"),
        ("", "yes"),
    ],
)
def test_free_answers(answer, read):
    assert read_yes_or_no(answer) == read


def test_figures_by_a_loop():
    rng = np.random.default_rng(0)
    predicted, gold = (rng.choice(["yes", "no"], 200, p=[0.7, 0.3]).tolist() for _ in range(2))
    pairs = list(zip(predicted, gold, strict=True))
    found = hallucination_metrics(count_outcomes(predicted, gold))
    right = [g for p, g in pairs if p == "yes"].count("yes")
    precision = right / predicted.count("yes")
    recall = right / gold.count("yes")
    assert found["accuracy"] == sum(p == g for p, g in pairs) / 200
    assert found["precision"] == precision
    assert found["recall"] == recall
    assert found["f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    assert found["yes_share"] == predicted.count("yes") / 200
    assert set(hallucination_metrics(count_outcomes([], [])).values()) == {0.0}


def test_samplings_are_apart_and_batches_add_up():
    batches = [
        {"sampling": ["random", None, "popular"], "answer": ["yes", "red", "no"], "generated": ["Yes.", "red", "yes"]},
        {"sampling": ["random"], "answer": ["no"], "generated": ["No."]},
    ]
    metric = ObjectHallucination()
    for batch in batches:
        metric.update(None, batch)
    figures = metric.compute(metric.state())
    assert figures["hallucination_random_accuracy"] == figures["hallucination_random_f1"] == 1.0
    assert figures["hallucination_popular_accuracy"] == 0.0
    assert figures["hallucination_popular_yes_share"] == 1.0
    assert len(figures) == 10
    empty = ObjectHallucination()
    assert empty.compute(empty.state()) == {}
