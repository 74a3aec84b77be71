# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VCR scores against counting."""

import numpy as np
import pytest

from grounded_attention.tasks.vcr import joint_accuracy


def test_joint_accuracy_counts_questions():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, (50, 2))
    chosen = rng.integers(0, 4, (50, 2))
    answers, rationales = (dict(enumerate(column)) for column in chosen.T.tolist())
    found = joint_accuracy(answers, rationales, dict(enumerate(map(tuple, labels.tolist()))))
    right = chosen == labels
    assert found["q_to_a"] == pytest.approx(right[:, 0].mean())
    assert found["qa_to_r"] == pytest.approx(right[:, 1].mean())
    assert found["q_to_ar"] == pytest.approx(right.all(axis=1).mean())


def test_an_unanswered_question_is_named():
    with pytest.raises(ValueError, match="no chosen rationale for 1 of 2 questions, such as b"):
        joint_accuracy({"a": 0, "b": 1}, {"a": 2}, {"a": (0, 2), "b": (1, 1)})
