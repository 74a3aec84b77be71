# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VCR and VGP scores against counting, and the threshold against trying all."""

import numpy as np
import pytest

from grounded_attention.metrics.vcr_accuracy import joint_accuracy
from grounded_attention.metrics.vgp_scores import precision_recall_f1


def test_joint_accuracy_counts_questions():
    rng = np.random.default_rng(0)
    labels, chosen = rng.integers(0, 4, (50, 2)), rng.integers(0, 4, (50, 2))
    answers, rationales = (dict(enumerate(column)) for column in chosen.T.tolist())
    found = joint_accuracy(answers, rationales, dict(enumerate(map(tuple, labels.tolist()))))
    right = chosen == labels
    assert found["q_to_a"] == pytest.approx(right[:, 0].mean())
    assert found["qa_to_r"] == pytest.approx(right[:, 1].mean())
    assert found["q_to_ar"] == pytest.approx(right.all(axis=1).mean())


def test_an_unanswered_question_is_named():
    with pytest.raises(ValueError, match="1 of 2 questions have no chosen rationale, such as b"):
        joint_accuracy({"a": 0, "b": 1}, {"a": 2}, {"a": (0, 2), "b": (1, 1)})


def counted(predicted, gold):
    """The four cells of the table, one pair at a time."""
    cells = {(p, g): 0 for p in (False, True) for g in (False, True)}
    for pair in zip(predicted, gold, strict=True):
        cells[pair] += 1
    return cells


@pytest.mark.parametrize("seed", range(3))
def test_precision_recall_and_f1_follow_from_the_table(seed):
    rng = np.random.default_rng(seed)
    predicted, gold = (rng.random(40) < 0.4).tolist(), (rng.random(40) < 0.3).tolist()
    cells, found = counted(predicted, gold), precision_recall_f1(predicted, gold)
    right, spurious, missed = cells[True, True], cells[True, False], cells[False, True]
    assert found["precision"] == pytest.approx(right / (right + spurious))
    assert found["recall"] == pytest.approx(right / (right + missed))
    assert found["f1"] == pytest.approx(right / (right + (spurious + missed) / 2))


def test_nothing_predicted_scores_zero():
    assert precision_recall_f1([False, False], [True, False]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
